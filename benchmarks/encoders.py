"""From files to the input of encoders of transformers: our path beside each model's processor.

    python benchmarks/encoders.py [--json OUT] [--rounds 5] [--videos 4]

The network is not computed. Both sides make the same clips of the same generated files, as float
tensors that the network takes, in turn in one process with one thread:

    theirs   transformers.video_utils.load_video (PyAV, which decodes from the first frame to the
             last that is needed and converts those needed), then the model's own processor
    ours     the reader of sce-video embed, resizing as the processor, and VideoDataPreprocessor

Files: 10 s of 340x256 at 25 frames per second, h264, with a key frame every 2 s (as cameras and
sites write them) and with x264's default, one for the whole file. Clips: 1, the centre, as in the
examples of transformers, and 4, the default of sce-video embed and index. Processors are made from
the default settings of their classes. The JSON's ``ratio`` is that of videos per second, ours to
theirs, from medians of CPU time; ``difference`` is the largest between the two tensors. Processors
that need torchvision are left out, with the reason, where it is missing.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import torch
from torch.nn import functional

from sce_video.datasets.readers import open_reader
from sce_video.datasets.transforms import CenterSegmentClip, UniformClips
from sce_video.evaluation.multi_view import view_chunks
from sce_video.inference.embed import EmbedOptions, file_reader
from sce_video.inference.encoders.source import ProcessorSettings, read_processor
from sce_video.inference.model_settings import ModelSettings
from sce_video.models.backbones.hf_families import config_of
from sce_video.models.data_preprocessors import VideoDataPreprocessor
from sce_video.utils.files import write_json

SECONDS, FPS, HEIGHT, WIDTH = 10, 25, 256, 340
KEY_FRAMES = {"2 s": 2 * FPS, "whole file": SECONDS * FPS}
#: Class of the processor with torchvision, without it (None: there is none), and whether it takes
#: videos or images.
PROCESSORS = {
    "videomae": ("VideoMAEImageProcessor", "VideoMAEImageProcessorPil", "pixel_values"),
    "vjepa2": ("VJEPA2VideoProcessor", None, "pixel_values_videos"),
    "dinov2": ("BitImageProcessor", "BitImageProcessorPil", "pixel_values"),
    "dinov3_vit": ("DINOv3ViTImageProcessor", None, "pixel_values"),
    "xclip": ("CLIPImageProcessor", "CLIPImageProcessorPil", "pixel_values"),
}


class Network:
    """What the reader asks of a network: its settings."""

    def __init__(self, settings: ProcessorSettings) -> None:
        resize = "square" if settings.square else settings.interpolation
        self.settings = ModelSettings(
            backbone={"type": "HFEncoder"},
            mean=settings.mean,
            std=settings.std,
            clip_duration=settings.clip_duration,
            num_frames=settings.num_frames,
            short_side=settings.short_side,
            crop_size=settings.crop_size,
            resize="network" if settings.in_float else resize,
        )


def make_video(path: Path, seed: int, key_frames: int) -> None:
    """A file of moving smooth noise."""
    rng = np.random.default_rng(seed)
    still = cv2.resize(
        rng.integers(0, 256, (20, 26, 3), dtype=np.uint8),
        (2 * WIDTH, 2 * HEIGHT),
        interpolation=cv2.INTER_CUBIC,
    )
    grain = rng.integers(-8, 9, (2 * HEIGHT, 2 * WIDTH, 1))
    still = np.clip(still.astype(int) + grain, 0, 255).astype(np.uint8)
    options = {"crf": "23", "g": str(key_frames), "keyint_min": "25", "sc_threshold": "0"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for t in range(SECONDS * FPS):
            frame = np.ascontiguousarray(still[t : t + HEIGHT, 5 + t : 5 + t + WIDTH])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def own_processor(family: str, folder: Path) -> tuple[Any, str]:
    """The processor of a family with the default settings of its class, and its backend."""
    import transformers

    with_torchvision, without, _ = PROCESSORS[family]
    backend = "torchvision" if transformers.utils.is_torchvision_available() else "Pillow"
    name = with_torchvision if backend == "torchvision" else without
    if name is None:
        raise ImportError(f"{with_torchvision} needs torchvision")
    processor = getattr(transformers, name)()
    processor.save_pretrained(folder)
    return processor, backend


def frames_of_clips(path: str, settings: ProcessorSettings, num_clips: int) -> list[np.ndarray]:
    """Positions of the frames of each clip: both sides take these."""
    sampling: Any = CenterSegmentClip(settings.num_frames)
    if settings.clip_duration is not None:
        sampling = UniformClips(settings.clip_duration, settings.num_frames, num_clips)
    reader = open_reader(path)
    clips = sampling({"reader": reader, "rng": np.random.default_rng(0)})["clips"]
    reader.close()
    return [np.asarray(clip.frames) for clip in clips]


def their_clips(path: str, clips: list[np.ndarray], processor: Any, key: str) -> list[torch.Tensor]:
    """K clips (1, T, 3, H, W) by transformers."""
    from transformers.video_utils import load_video

    needed = np.unique(np.concatenate(clips))
    frames, _ = load_video(path, backend="pyav", sample_indices_fn=lambda **_: needed)
    found = []
    for clip in clips:
        chosen = frames[np.searchsorted(needed, clip)]
        given = chosen if key == "pixel_values_videos" else list(chosen)
        values = torch.as_tensor(np.asarray(processor(given, return_tensors="pt")[key]))
        found.append(values if values.ndim == 5 else values[None])
    return found


def measure(family: str, num_clips: int, files: list[str], rounds: int, folder: Path) -> dict:
    """Times of both sides on all files."""
    processor, backend = own_processor(family, folder)
    key = PROCESSORS[family][2]
    settings = read_processor(folder, config_of({"model_type": family}))
    network = Network(settings)
    reader = file_reader(network, EmbedOptions(num_clips=num_clips, timeout=60.0))  # type: ignore[arg-type]
    normalise = VideoDataPreprocessor(mean=settings.mean, std=settings.std).normalise
    positions = {path: frames_of_clips(path, settings, num_clips) for path in files}

    def ours(path: str) -> list[torch.Tensor]:
        chunks = view_chunks(reader.read(path), "cpu", 32)  # as sce-video embed
        clips = [normalise(chunk).transpose(1, 2) for chunk in chunks]
        return [resized(clip) for clip in clips] if settings.in_float else clips

    def resized(clips: torch.Tensor) -> torch.Tensor:
        images, side = clips.flatten(0, 1), (settings.crop_size, settings.crop_size)
        images = functional.interpolate(images, side, mode="bilinear", antialias=True)
        return images.unflatten(0, clips.shape[:2])  # as HFEncoder does

    sides: dict[str, Callable[[str], list[torch.Tensor]]] = {
        "ours": ours,
        "theirs": lambda path: their_clips(path, positions[path], processor, key),
    }
    first = {name: torch.cat(side(files[0])) for name, side in sides.items()}
    same = first["ours"].shape == first["theirs"].shape
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for path in files:
            for name in sorted(sides, reverse=bool(number % 2)):
                begin = time.process_time()
                sides[name](path)
                times[name].append(time.process_time() - begin)
    rates = {name: 1 / statistics.median(found) for name, found in times.items()}
    return {
        "backend": backend,
        "frames": settings.num_frames,
        "clips": len(positions[files[0]]),
        "videos_per_second": {name: round(rate, 2) for name, rate in rates.items()},
        "ratio": round(rates["ours"] / rates["theirs"], 2),
        "difference": float((first["ours"] - first["theirs"]).abs().max()) if same else None,
    }


def main() -> None:
    """Measure and print; write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--videos", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    results: dict[str, Any] = {}
    machine = {"cpu": platform.processor() or platform.machine(), "threads": 1}
    machine |= {"videos": args.videos, "rounds": args.rounds}
    with tempfile.TemporaryDirectory() as temporary:
        for name, distance in KEY_FRAMES.items():
            files = [str(Path(temporary, f"{distance}_{i}.mp4")) for i in range(args.videos)]
            for seed, path in enumerate(files):
                make_video(Path(path), seed, distance)
            for family in PROCESSORS:
                for num_clips in (1, 4):
                    label = f"{family}, {num_clips} clips, key frame every {name}"
                    try:
                        found = measure(
                            family, num_clips, files, args.rounds, Path(temporary, family)
                        )
                    except ImportError as error:
                        found = {"left out": str(error)}
                    results[label] = found
                    print(label, found, flush=True)
                    if args.json is not None:
                        write_json(args.json, {"machine": machine, "results": results})


if __name__ == "__main__":
    main()
