"""Throughput of the pretraining data pipeline on one core: ours, mmaction2's, the decoder's limit.

    python benchmarks/data_pipeline.py --videos DIR [--json OUT] [--repacked DIR] [--seconds 120]
        [--backend av]

A sample: two random clips of 2.56 s, 8 frames each, a random resized crop to 224 pixels of each, as
uint8 tensors. Interleaved, on the originals and on their repacked versions:

    mmaction2          its pipeline: DecordInit, SampleFrames, DecordDecode, RandomResizedCrop,
                       Resize, FormatShape, PackActionInputs; one decoder thread
    av, decord, ...    ours, with each backend that can be imported here
    limit              the frames of our sample decoded by a plain PyAV loop with known positions:
                       open, seek, decode; no conversion, no crop
    limit, our reader  the same with our reader
    files, in batches  our data set of files, batches of 16 samples as a loader worker makes them
    table, in batches  the same samples from a local Lance table of the repacked files, each of the
                       16 from a row of its own (where Lance is installed)

Prints videos per second, ratios to mmaction2 on the original, CPU time by stage. The JSON's
``ratios`` are geometric means over the files of ratios of CPU time (``ratios_wall``: wall time) of
one backend (``--backend``; ``av`` is our default): ``original`` and ``repacked`` to mmaction2 on
the originals, ``of_decoder_limit`` on the originals to the faster of the two limits of each file;
``table`` to mmaction2 on the originals, ``table_to_repacked`` to the repacked files in batches.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import side_by_side as sbs

from sce_video.datasets import LanceVideoDataset, SampleRequest, VideoDataset, run_pipeline
from sce_video.datasets.readers import AvReader
from sce_video.datasets.transforms import (
    DecodeClips,
    OpenVideo,
    PackClips,
    RandomClips,
    RandomResizedCropClips,
)

CLIP_DURATION, NUM_FRAMES, SIZE = 2.56, 8, 224
BATCH = 16
FILES, TABLE = "files, in batches", "table, in batches"


def pipeline(backend: str) -> list[Any]:
    """The transforms of our sample."""
    return [
        OpenVideo(backend),
        RandomClips(CLIP_DURATION, NUM_FRAMES),
        DecodeClips(),
        RandomResizedCropClips(SIZE),
        PackClips(),
    ]


def ours(backend: str) -> sbs.Sample:
    """A function that makes one sample with one of our backends."""
    steps = pipeline(backend)

    def sample(path: str, seed: int) -> None:
        results: dict[str, Any] = {"path": path, "label": -1, "index": 0, "seed": seed}
        results["rng"] = np.random.default_rng(seed)
        results = run_pipeline(steps, results)
        assert results["inputs"][1].shape == (NUM_FRAMES, SIZE, SIZE, 3)

    return sample


class InBatches:
    """A candidate that makes batches with a data set; the times are those of one sample.

    Args:
        build: Makes the data set of a path, with :data:`BATCH` entries.
    """

    kinds = ("repacked",)

    def __init__(self, build: Callable[[str], VideoDataset]) -> None:
        self._build = build
        self._datasets: dict[str, VideoDataset] = {}

    def __call__(self, path: str, seed: int) -> tuple[float, float]:
        if path not in self._datasets:
            self._datasets[path] = self._build(path)
        requests = [SampleRequest(k, BATCH * seed + k) for k in range(BATCH)]
        cpu, wall = time.process_time(), time.perf_counter()
        samples = self._datasets[path].__getitems__(requests)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        assert not any(sample["failures"] for sample in samples)
        assert samples[0]["inputs"][1].shape == (NUM_FRAMES, SIZE, SIZE, 3)
        return cpu / BATCH, wall / BATCH


def in_batches(folder: str) -> dict[str, sbs.Sample]:
    """The candidates that make batches; the table only where Lance is installed.

    Args:
        folder: For the lists and tables.
    """

    def files(path: str) -> VideoDataset:
        listed = os.path.join(folder, f"{len(os.listdir(folder))}.txt")
        with open(listed, "w", encoding="utf-8") as file:
            file.write(f"{os.path.abspath(path)}\n" * BATCH)
        return VideoDataset("", listed, pipeline("av"))

    def table(path: str) -> VideoDataset:
        from sce_video.data_tools.tables.video_row import RowSource, video_row
        from sce_video.data_tools.tables.writer import TableWriter, write_rows

        made = os.path.join(folder, f"{len(os.listdir(folder))}.lance")
        writer = TableWriter(made)  # imports Lance, so that this process itself reads
        rows = (video_row(RowSource(path, f"{k:02}.mp4")) for k in range(BATCH))
        writer.commit(write_rows(made, rows))
        return LanceVideoDataset(made, None, pipeline("av"))

    found: dict[str, sbs.Sample] = {FILES: InBatches(files)}
    if importlib.util.find_spec("lance") is not None:
        found[TABLE] = InBatches(table)
    return found


def mmaction2() -> sbs.Sample:
    """The same with mmaction2's transforms; frame interval: frames of our clip divided by 8."""
    from mmaction.datasets.transforms import (
        DecordDecode,
        DecordInit,
        FormatShape,
        PackActionInputs,
        RandomResizedCrop,
        Resize,
        SampleFrames,
    )

    opening, decoding = DecordInit(num_threads=1), DecordDecode()
    crop, resize = RandomResizedCrop(area_range=(0.2, 0.766)), Resize((SIZE, SIZE), False)
    shape, pack = FormatShape("NCTHW"), PackActionInputs()

    def sample(path: str, seed: int) -> None:
        np.random.seed(seed)
        results = opening(dict(filename=path, start_index=0, modality="RGB", label=-1))
        interval = max(1, round(CLIP_DURATION * results["avg_fps"] / NUM_FRAMES))
        results = SampleFrames(NUM_FRAMES, frame_interval=interval, num_clips=2)(results)
        for step in (decoding, crop, resize, shape, pack):
            results = step(results)
        assert results["inputs"].shape == (2, 3, NUM_FRAMES, SIZE, SIZE)

    return sample


def needed(path: str, seed: int) -> np.ndarray:
    """Indices of the frames in our sample of this seed, ascending."""
    with AvReader(path) as reader:
        results = {"reader": reader, "rng": np.random.default_rng(seed)}
        clips = RandomClips(CLIP_DURATION, NUM_FRAMES)(results)["clips"]
    return np.unique(np.concatenate([clip.frames for clip in clips]))


def ratios(times: dict, backend: str, speed: str) -> dict[str, float | None]:
    """One of our backends against mmaction2 and the limit, rounded."""
    base = ("original", sbs.MMACTION2)
    original, repacked = ("original", backend), ("repacked", backend)
    found = {
        "original": sbs.mean_ratio(times, original, base, speed),
        "repacked": sbs.mean_ratio(times, repacked, base, speed),
        "of_decoder_limit": sbs.mean_ratio_to_best(times, original, sbs.LIMITS, speed),
        "table": sbs.mean_ratio(times, ("repacked", TABLE), base, speed),
        "table_to_repacked": sbs.mean_ratio(times, ("repacked", TABLE), ("repacked", FILES), speed),
    }
    return {name: None if value is None else round(value, 3) for name, value in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison."""
    args = sbs.arguments("Throughput of the pretraining data pipeline on one core.").parse_args(
        argv
    )
    core = sbs.prepare_process()
    videos = sbs.find_videos(args.videos, args.all)
    candidates = {sbs.MMACTION2: mmaction2()}
    candidates |= {name: ours(name) for name in sbs.importable_backends()}
    candidates |= sbs.limits(needed)
    with tempfile.TemporaryDirectory(prefix="tables_") as folder:
        candidates |= in_batches(folder)
        sbs.compare(args, core, videos, candidates, ratios, (ours("av"), "pack, rest"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
