"""Compare the decoding backends side by side, on one core.

The work: two random clips of 2.56 s, 8 frames each, random resized crop to 224 pixels, as in
pretraining. All candidates take their turn on the same file with the same seeds, one sample each
in rotation, so that a busy machine slows all of them alike; the figures are medians.

Usage:
    python benchmarks/decode.py VIDEO [VIDEO ...] [--rounds 30] [--num-threads 1]

Prints, for each video and candidate, samples per second and the ratio to ``av``. ``mmaction2`` is
mmaction2's own decord pipeline with the same clips and crop.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import cv2
import numpy as np
import torch

from sce_video.datasets import backend_importable
from sce_video.datasets.transforms import (
    DecodeClips,
    OpenVideo,
    PackClips,
    RandomClips,
    RandomResizedCropClips,
)

CLIP_DURATION, NUM_FRAMES, SIZE = 2.56, 8, 224


def ours(backend: str, num_threads: int) -> Callable[[str, int], None]:
    """A function (path, seed) that makes one sample with one of our backends."""
    steps = [
        OpenVideo(backend, num_threads),
        RandomClips(CLIP_DURATION, NUM_FRAMES),
        DecodeClips(),
        RandomResizedCropClips(SIZE),
        PackClips(),
    ]

    def sample(path: str, seed: int) -> None:
        results = {"path": path, "label": -1, "index": 0, "seed": seed}
        results["rng"] = np.random.default_rng(seed)
        for step in steps:
            results = step(results)

    return sample


def mmaction2(num_threads: int) -> Callable[[str, int], None]:
    """The same with mmaction2's transforms; its interval is the frames of our clip over 8."""
    from mmaction.datasets.transforms import (
        DecordDecode,
        DecordInit,
        RandomResizedCrop,
        Resize,
        SampleFrames,
    )

    def sample(path: str, seed: int) -> None:
        np.random.seed(seed)
        results = {"filename": path, "start_index": 0, "modality": "RGB"}
        results = DecordInit(num_threads=num_threads)(results)
        interval = round(CLIP_DURATION * results["avg_fps"] / NUM_FRAMES)
        results = SampleFrames(NUM_FRAMES, frame_interval=interval, num_clips=2)(results)
        results = DecordDecode()(results)
        results = RandomResizedCrop(area_range=(0.2, 0.766))(results)
        Resize(scale=(SIZE, SIZE), keep_ratio=False)(results)

    return sample


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("videos", nargs="+")
    parser.add_argument("--rounds", type=int, default=30, help="samples per candidate and video")
    parser.add_argument("--num-threads", type=int, default=1, help="threads of the decoder")
    args = parser.parse_args()
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    names = [name for name in ("av", "decord", "torchcodec") if backend_importable(name)]
    candidates = {name: ours(name, args.num_threads) for name in names}
    candidates["mmaction2"] = mmaction2(args.num_threads)
    for video in args.videos:
        seconds: dict[str, list[float]] = {name: [] for name in candidates}
        for seed in range(args.rounds + 1):
            for name, sample in candidates.items():
                start = time.perf_counter()
                try:
                    sample(video, seed)
                except Exception as error:  # a backend that cannot read it is part of the answer
                    print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
                    continue
                if seed > 0:  # the first turn warms up
                    seconds[name].append(time.perf_counter() - start)
        print(f"\n{video}")
        base = statistics.median(seconds["av"]) if seconds["av"] else float("nan")
        for name, times in seconds.items():
            if times:
                middle = statistics.median(times)
                print(
                    f"  {name:<11}{1 / middle:7.1f} samples/s  {1e3 * middle:7.1f} ms  "
                    f"{base / middle:5.2f} x av"
                )


if __name__ == "__main__":
    main()
