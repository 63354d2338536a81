"""Colour conversion and scaling of decoded frames: two decisions of the ``av`` backend, measured.

    python benchmarks/colour_conversion.py VIDEO [VIDEO ...]

Threads: PyAV's colour conversion with one thread against its default thread pool, with a new
converter for every eight frames, as for a sample of one video. This is why ``AvReader`` converts
with the decoder's number of threads.

Scaling: conversion to RGB followed by OpenCV's linear resizing to a short side of 256, as in our
transforms, against FFmpeg's conversion and scaling in one call, with the difference of the pixels.
This is why conversion and resizing are not one call.

The variants are interleaved; prints medians and ratios, of wall times for the threads and of CPU
times for the scaling.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import islice

import av
import cv2
import numpy as np
from av.video.reformatter import VideoReformatter

from sce_video.datasets.readers.containers import open_video

FRAMES, ROUNDS, SHORT_SIDE = 8, 20, 256


def microseconds(frames: list[av.VideoFrame], threads: int) -> float:
    """Wall time per frame in microseconds, including the creation of the converter."""
    start = time.perf_counter()
    converter = VideoReformatter()
    for frame in frames:
        converter.reformat(frame, format="rgb24", threads=threads)
    return (time.perf_counter() - start) / len(frames) * 1e6


def target_size(frame: av.VideoFrame) -> tuple[int, int]:
    """Height and width with a short side of 256."""
    short = min(frame.height, frame.width)
    return frame.height * SHORT_SIDE // short, frame.width * SHORT_SIDE // short


def convert_then_resize(frame: av.VideoFrame, converter: VideoReformatter) -> np.ndarray:
    """Converted to RGB, then resized: uint8 (H, W, 3)."""
    rgb = converter.reformat(frame, format="rgb24", threads=1).to_ndarray()
    return cv2.resize(rgb, target_size(frame)[::-1], interpolation=cv2.INTER_LINEAR)


def in_one_call(how: str) -> Callable[[av.VideoFrame, VideoReformatter], np.ndarray]:
    """A function that converts and scales in one FFmpeg call with the given interpolation."""

    def scale(frame: av.VideoFrame, converter: VideoReformatter) -> np.ndarray:
        height, width = target_size(frame)
        scaled = converter.reformat(
            frame, width=width, height=height, format="rgb24", interpolation=how, threads=1
        )
        return scaled.to_ndarray()

    return scale


def compare_scaling(frames: list[av.VideoFrame]) -> None:
    """Print CPU time per frame and pixel difference of each variant."""
    variants = {"convert, resize": convert_then_resize}
    variants |= {
        f"one call, {how}": in_one_call(how) for how in ("FAST_BILINEAR", "BILINEAR", "AREA")
    }
    converters = {name: VideoReformatter() for name in variants}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, variant in variants.items():
            start = time.process_time()
            for frame in frames:
                variant(frame, converters[name])
            seconds[name].append((time.process_time() - start) / len(frames))
    base = statistics.median(seconds["convert, resize"])
    ours = convert_then_resize(frames[-1], VideoReformatter()).astype(int)
    for name, variant in variants.items():
        median = statistics.median(seconds[name])
        change = np.abs(variant(frames[-1], converters[name]) - ours)
        print(
            f"    {name:<26}{1e6 * median:7.0f} us {median / base:6.2f} x   "
            f"mean pixel difference {change.mean():.2f}, largest {change.max()}"
        )


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description="Conversion and scaling of decoded frames.")
    parser.add_argument("videos", nargs="+")
    cv2.setNumThreads(0)
    for path in parser.parse_args().videos:
        with open_video(path) as container:
            frames = list(islice(container.decode(video=0), FRAMES))
        rounds = [(microseconds(frames, 0), microseconds(frames, 1)) for _ in range(ROUNDS)]
        pool, one = (statistics.median(column) for column in zip(*rounds, strict=True))
        height, width = target_size(frames[0])
        print(f"{path} ({frames[0].width}x{frames[0].height})")
        print(f"  threads: pool {pool:.0f} us, one thread {one:.0f} us, {pool / one:.1f} x")
        print(f"  scaling to {width}x{height}:")
        compare_scaling(frames)


if __name__ == "__main__":
    main()
