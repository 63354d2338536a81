"""The sides of the rows of benchmarks/peers.py: the work of each library in its own process.

    python benchmarks/peer_sides.py SIDE       # for peers.py: one job per line, one answer per line

A side is a function of a job. It imports its libraries itself, because no environment contains all
of them. The first job of a side is not measured. If a side returns frames, they are compared with
ours.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import peer_copies
import peer_search

Job = dict[str, Any]
CLIP_SECONDS, FRAMES, SIZE = 2.56, 8, 224
NEIGHBOURS = 10


# -- frames of a file: job has path and indices, ascending; the result is (n, H, W, 3) uint8 ------


def our_frames(job: Job) -> np.ndarray:
    """Read by the reader of the package's pipelines."""
    from sce_video.datasets.readers import open_reader

    with open_reader(job["path"]) as reader:
        return reader.read(np.asarray(job["indices"]))


@functools.cache
def _packets(path: str) -> tuple[list[int], list[int], list[bool]]:
    """Return timestamps in display order, and timestamps and key flags in decoding order."""
    from sce_video.datasets.readers.av_file import open_container

    with open_container(path) as container:
        packets = [p for p in container.demux(video=0) if p.size]
        return sorted(p.pts for p in packets), [p.pts for p in packets], [
            p.is_keyframe for p in packets
        ]  # fmt: skip


def decoder_alone(job: Job) -> None:
    """Open, seek and decode the needed frames in plain PyAV with known packets, unconverted.

    This bounds readers that use FFmpeg, because frames that nobody needs are skipped.
    """
    from sce_video.datasets.readers.av_file import open_container

    shown, stamps, keys = _packets(job["path"])
    wanted = {shown[index] for index in job["indices"]}
    sections: list[list[int]] = []
    for stamp in sorted(wanted):
        key = max((k for k, is_key in enumerate(keys) if is_key and stamps[k] <= stamp), default=0)
        last = stamps.index(stamp)
        if sections and key <= sections[-1][1]:
            sections[-1][1] = max(sections[-1][1], last)
        else:
            sections.append([key, last])
    cpu = time.process_time()
    found = 0
    with open_container(job["path"]) as container:
        stream = container.streams.video[0]
        codec = stream.codec_context
        codec.thread_count = 1
        for key, last in sections:
            container.seek(stamps[key], stream=stream)
            for packet in container.demux(stream):
                codec.skip_frame = "DEFAULT" if packet.pts in wanted else "NONREF"
                found += sum(frame.pts in wanted for frame in codec.decode(packet))
                if packet.pts == stamps[last] or not packet.size:
                    break
            found += sum(frame.pts in wanted for frame in codec.decode(None))
            codec.flush_buffers()
    job["cpu"] = time.process_time() - cpu  # without the search for packets
    if found != len(wanted):
        raise RuntimeError(f"{found} of {len(wanted)} frames found")


def torchcodec_frames(job: Job, seek_mode: str = "exact") -> Any:
    """Read by ``VideoDecoder.get_frames_at``."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(
        job["path"], seek_mode=seek_mode, dimension_order="NHWC", num_ffmpeg_threads=1
    )
    return decoder.get_frames_at(job["indices"]).data


def torchcodec_approximate(job: Job) -> Any:
    """Read by torchcodec without reading all packets first, with times from the mean rate."""
    return torchcodec_frames(job, "approximate")


def decord_frames(job: Job) -> np.ndarray:
    """Read by ``VideoReader.get_batch``."""
    import decord

    return decord.VideoReader(job["path"], num_threads=1).get_batch(job["indices"]).asnumpy()


def spdl_frames(job: Job) -> np.ndarray:
    """Read by ``sample_decode_video`` of all packets and one conversion to an array."""
    import spdl.io

    packets = spdl.io.demux_video(job["path"])
    one = spdl.io.decode_config(decoder_options={"threads": "1"})
    frames = spdl.io.sample_decode_video(packets, job["indices"], decode_config=one)
    return spdl.io.to_numpy(spdl.io.convert_frames(frames))


def pyav_frames(job: Job) -> np.ndarray:
    """Read by the loop in transformers' documentation (VideoMAE), which decodes from the start."""
    import av

    wanted, frames = set(job["indices"]), []
    with av.open(job["path"]) as container:
        container.streams.video[0].thread_count = 1
        container.seek(0)
        for number, frame in enumerate(container.decode(video=0)):
            if number > job["indices"][-1]:
                break
            if number in wanted:
                frames.append(frame.to_ndarray(format="rgb24"))
    return np.stack(frames)


# -- two clips of a file, cropped to 224, as a batch: job has path and each sample's seed and clips


@functools.cache
def our_steps() -> list[Any]:
    """Return the transforms of our sample."""
    from sce_video.datasets import transforms as t

    return [
        t.OpenVideo("av"),
        t.RandomClips(CLIP_SECONDS, FRAMES),
        t.DecodeClips(),
        t.RandomResizedCropClips(SIZE),
        t.PackClips(),
    ]


def our_clips(path: str, seed: int) -> None:
    """Load one sample alone."""
    from sce_video.datasets import run_pipeline

    results: dict[str, Any] = {"path": path, "label": -1, "index": 0, "seed": seed}
    results["rng"] = np.random.default_rng(seed)
    assert run_pipeline(our_steps(), results)["inputs"][1].shape == (FRAMES, SIZE, SIZE, 3)


@functools.cache
def _our_files(path: str, samples: int) -> Any:
    from sce_video.datasets import VideoDataset

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write(f"{os.path.abspath(path)}\n" * samples)
        listed.flush()
        return VideoDataset("", listed.name, our_steps())


@functools.cache
def _our_table(path: str, samples: int) -> Any:
    from sce_video.data_tools.table_writer import TableWriter, write_rows
    from sce_video.data_tools.video_row import RowSource, video_row
    from sce_video.datasets import LanceVideoDataset

    made = os.path.join(tempfile.mkdtemp(prefix="table_", dir=os.path.dirname(path)), "t.lance")
    writer = TableWriter(made)
    rows = (video_row(RowSource(path, f"{k:02}.mp4")) for k in range(samples))
    writer.commit(write_rows(made, rows))
    return LanceVideoDataset(made, None, our_steps())


def _our_batch(dataset: Any, seeds: list[int]) -> None:
    from sce_video.datasets import SampleRequest
    from sce_video.datasets.loading.batches import collate_views

    samples = dataset.__getitems__([SampleRequest(k, seed) for k, seed in enumerate(seeds)])
    assert not any(sample["failures"] for sample in samples)
    assert collate_views(samples)["inputs"][1].shape == (len(seeds), FRAMES, SIZE, SIZE, 3)


def our_batch(job: Job) -> None:
    """Load a batch of files by our dataset and loader."""
    _our_batch(_our_files(job["path"], len(job["seeds"])), job["seeds"])


def our_table_batch(job: Job) -> None:
    """Load a batch from a Lance table, each sample from its own row."""
    job["facts"] = {"bytes": os.path.getsize(job["path"])}
    _our_batch(_our_table(job["path"], len(job["seeds"])), job["seeds"])


def mmaction2_batch(job: Job) -> None:
    """Load by mmaction2's pipeline with decord and one thread, the earlier clip first."""
    import torch
    from mmaction.datasets import transforms as t

    batch = []
    for seed, clips in zip(job["seeds"], job["clips"], strict=True):
        np.random.seed(seed)
        results = dict(filename=job["path"], start_index=0, modality="RGB", label=-1)
        results = t.DecordInit(num_threads=1)(results)
        results |= dict(frame_inds=np.concatenate(sorted(clips)), clip_len=FRAMES, num_clips=2)
        for step in (
            t.DecordDecode(),
            t.RandomResizedCrop(area_range=(0.2, 0.766)),
            t.Resize((SIZE, SIZE), False),
            t.FormatShape("NCTHW"),
            t.PackActionInputs(),
        ):
            results = step(results)
        batch.append(results["inputs"])
    assert torch.stack(batch).shape == (len(batch), 2, 3, FRAMES, SIZE, SIZE)


def torchcodec_batch(job: Job) -> None:
    """Load by ``get_frames_at`` (approximate) and torchvision's ``v2.RandomResizedCrop``."""
    import torch
    from torchcodec.decoders import VideoDecoder
    from torchvision.transforms import v2

    crop, batch = v2.RandomResizedCrop(SIZE, scale=(0.2, 0.766), antialias=True), []
    for seed, clips in zip(job["seeds"], job["clips"], strict=True):
        torch.manual_seed(seed)
        decoder = VideoDecoder(job["path"], seek_mode="approximate", num_ffmpeg_threads=1)
        frames = decoder.get_frames_at(clips[0] + clips[1]).data
        batch.append(torch.stack([crop(frames[:FRAMES]), crop(frames[FRAMES:])]))
    assert torch.stack(batch).shape == (len(batch), 2, FRAMES, 3, SIZE, SIZE)


def spdl_batch(job: Job) -> None:
    """Demux once, and decode each clip through FFmpeg's filters for its crop and size."""
    import spdl.io

    batch = []
    one = spdl.io.decode_config(decoder_options={"threads": "1"})
    for seed, indices in zip(job["seeds"], job["clips"], strict=True):
        rng = np.random.default_rng(seed)
        packets = spdl.io.demux_video(job["path"])
        clips = []
        for chosen in indices:
            side = np.sqrt(rng.uniform(0.2, 0.766))  # of the crop, and a ratio of 3/4 to 4/3
            ratio = np.exp(rng.uniform(np.log(3 / 4) / 2, np.log(4 / 3) / 2))
            width = int(min(packets.width, side * ratio * packets.width))
            height = int(min(packets.height, side / ratio * packets.height))
            x, y = (
                rng.integers(packets.width - width + 1),
                rng.integers(packets.height - height + 1),
            )
            frames = spdl.io.sample_decode_video(
                packets.clone(),
                chosen,
                decode_config=one,
                filter_desc=f"crop={width}:{height}:{x}:{y}:exact=1,"
                f"scale={SIZE}:{SIZE}:flags=bilinear,format=pix_fmts=rgb24",
            )
            clips.append(spdl.io.to_numpy(spdl.io.convert_frames(frames)))
        batch.append(np.stack(clips))
    assert np.stack(batch).shape == (len(batch), 2, FRAMES, SIZE, SIZE, 3)


@functools.cache
def _webp_table(path: str) -> Any:
    """Write a Lance table with one row per frame, WebP with Pillow's quality 80."""
    import io

    import av
    import lance
    import pyarrow as pa

    frames = []
    with av.open(path) as container:
        for frame in container.decode(video=0):
            frame.to_image().save(file := io.BytesIO(), "WEBP", quality=80)
            frames.append(file.getvalue())
    made = os.path.join(tempfile.mkdtemp(prefix="webp_", dir=os.path.dirname(path)), "t.lance")
    return lance.write_dataset(pa.table({"frame": frames}), made), sum(map(len, frames))


def webp_batch(job: Job) -> None:
    """Load WebP frames from a Lance table with Pillow and torchvision's crop of each clip."""
    import io

    import torch
    from PIL import Image
    from torchvision.transforms import v2

    table, job["facts"] = _webp_table(job["path"])[0], {"bytes": _webp_table(job["path"])[1]}
    crop, batch = v2.RandomResizedCrop(SIZE, scale=(0.2, 0.766), antialias=True), []
    for seed, clips in zip(job["seeds"], job["clips"], strict=True):
        torch.manual_seed(seed)
        wanted, places = np.unique(np.concatenate(clips), return_inverse=True)
        stored = table.take(wanted.tolist(), columns=["frame"])["frame"].to_pylist()
        images = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in stored]
        frames = torch.from_numpy(np.stack(images)[places]).permute(0, 3, 1, 2)
        batch.append(torch.stack([crop(frames[:FRAMES]), crop(frames[FRAMES:])]))
    assert torch.stack(batch).shape == (len(batch), 2, FRAMES, 3, SIZE, SIZE)


# -- a whole command: job has a folder of videos and a network that transformers has saved ---------


def our_embedding(job: Job) -> None:
    """Run ``sce-video embed`` with one clip per video."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "features.npz")
        words = [sys.executable, "-m", "sce_video", "embed", job["folder"], "--out", out]
        words += ["--checkpoint", f"hf:{job['network']}", "--workers", "0"]
        words += ["--cfg-options", "test_dataloader.dataset.pipeline.1.num_clips=1"]
        only_cpu = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run(words, check=True, stdout=sys.stderr, env=only_cpu)
        with np.load(out) as found:
            assert len(found["features"]) == job["videos"]


def plain_embedding(job: Job) -> None:
    """Run a loop as in transformers' documentation as a separate command."""
    script = f"import peer_sides; peer_sides.embed_plainly({job['folder']!r}, {job['network']!r})"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parent)


def embed_plainly(folder: str, network: str) -> None:
    """Embed by PyAV, ``VideoMAEImageProcessor`` and ``VideoMAEModel``, video by video."""
    import av
    import torch
    from transformers import VideoMAEImageProcessor, VideoMAEModel

    torch.set_num_threads(1)
    processor = VideoMAEImageProcessor.from_pretrained(network)
    model, features = VideoMAEModel.from_pretrained(network).eval(), []
    for path in sorted(Path(folder).iterdir()):
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stream.thread_count = 1
            step = max(1, round(float(stream.average_rate or 30) / 7.5))
            start = max(0, (stream.frames - step * model.config.num_frames) // 2)
            wanted = [start + step * k for k in range(model.config.num_frames)]
        frames = pyav_frames({"path": str(path), "indices": wanted})
        with torch.no_grad():
            inputs = processor(list(frames), return_tensors="pt")
            features.append(model(**inputs).last_hidden_state.mean(1)[0].numpy())
    with tempfile.TemporaryFile() as out:
        np.savez(out, features=np.stack(features))


# -- a search, a training step (torch is imported there) ------------------------------------------


def step(side: str, job: Job) -> None:
    """Run a training step of benchmarks/peer_steps.py."""
    import peer_steps

    getattr(peer_steps, side)(job)


# -- the process ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One side of a row: its function, the packages it measures, and whether it is ours to run.

    ``own`` sides run in the environment of this project, the others in that of the peers.
    """

    run: Callable[[Job], Any]
    packages: tuple[str, ...]
    own: bool = False


def _search(name: str, packages: tuple[str, ...], own: bool = False) -> Side:
    return Side(functools.partial(peer_search.search, name), packages, own)


_CODEC, _SPDL, _LIGHTLY = ("torchcodec", "torch"), ("spdl",), ("lightly", "torch")
SIDES = {
    "sce_video": Side(our_frames, ("av",), own=True),
    "decoder alone": Side(decoder_alone, ("av",), own=True),
    "torchcodec exact": Side(torchcodec_frames, _CODEC),
    "torchcodec approximate": Side(torchcodec_approximate, _CODEC),
    "decord2": Side(decord_frames, ("decord2",)),
    "SPDL": Side(spdl_frames, _SPDL),
    "PyAV loop": Side(pyav_frames, ("av",)),
    "sce_video batch": Side(our_batch, ("av", "opencv-python"), own=True),
    "sce_video table": Side(our_table_batch, ("av", "pylance"), own=True),
    "mmaction2": Side(mmaction2_batch, ("mmaction2", "decord"), own=True),
    "torchcodec + torchvision": Side(torchcodec_batch, (*_CODEC, "torchvision")),
    "SPDL filters": Side(spdl_batch, _SPDL),
    "sce-video embed": Side(our_embedding, ("torch", "transformers", "av"), own=True),
    "WebP frames in Lance": Side(webp_batch, ("pylance", "pillow", "torchvision")),
    "sce_video vector index": _search("ours", ("pylance",), own=True),
    "sce_video exact": _search("exact", ("numpy",), own=True),
    "faiss IVF": _search("IVF", ("faiss-cpu",)),
    "faiss HNSW": _search("HNSW", ("faiss-cpu",)),
    "usearch": _search("usearch", ("usearch",)),
    "LanceDB": _search("LanceDB", ("lancedb",)),
    "sce_video step": Side(functools.partial(step, "our_step"), ("torch",), own=True),
    "lightly": Side(functools.partial(step, "lightly_step"), _LIGHTLY),
    "lightly, channels_last": Side(functools.partial(step, "lightly_channels_last"), _LIGHTLY),
    "eztorch": Side(functools.partial(step, "eztorch_step"), ("torch", "lightning")),
    "LightlyTrain": Side(functools.partial(step, "lightly_train_step"), ("lightly-train",)),
    "sce-video curate": Side(peer_copies.our_copies, ("av",), own=True),
    "PDQ of frames": Side(peer_copies.pdq_copies, ("pdqhash", "faiss-cpu", "av")),
    "transformers loop": Side(plain_embedding, ("torch", "transformers", "av")),
}


def fingerprint(frames: Any) -> list[float] | None:
    """Return mean grey levels of 4 x 4 parts of each frame of (n, H, W, 3), for comparison."""
    if frames is None:
        return None
    array = np.asarray(frames)
    rows, columns = (np.array_split(np.arange(n), 4) for n in array.shape[1:3])
    means = [
        array[:, r[0] : r[-1] + 1, c[0] : c[-1] + 1].mean((1, 2, 3)) for r in rows for c in columns
    ]
    return np.round(np.stack(means, 1), 2).ravel().tolist()


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, its threads and its finished children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def answer(run: Callable[[Job], Any], job: Job) -> dict[str, Any]:
    """Return the seconds of a job and a fingerprint of its frames, or the error."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    try:
        result = run(job)
    except Exception as error:  # a side that cannot do a job is a result
        return {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"}
    cpu, wall = job.get("cpu", cpu_seconds() - cpu), time.perf_counter() - wall
    facts = job.get("facts")  # of the side, beside its time
    return {"cpu": cpu, "wall": wall, "frames": fingerprint(result), "facts": facts}


def main() -> None:
    """Answer jobs until standard input ends."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    side = SIDES[sys.argv[1]]
    versions = {}
    for package in side.packages:
        with contextlib.suppress(PackageNotFoundError):  # the first job says so
            versions[package] = version(package)
    print(json.dumps({"versions": versions}), file=pipe, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(side.run, json.loads(line))), file=pipe, flush=True)


if __name__ == "__main__":
    main()
