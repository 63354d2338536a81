"""PyAV's colour conversion by one thread against its default pool, side by side.

    python benchmarks/colour_conversion.py VIDEO [VIDEO ...]

A fresh converter for every eight frames, as a sample of one video needs it; the two take turns.
Prints the medians and the ratio. Why ``AvReader`` converts with the decoder's number of threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import islice

import av
from av.video.reformatter import VideoReformatter

FRAMES, ROUNDS = 8, 20


def microseconds(frames: list[av.VideoFrame], threads: int) -> float:
    """Time of a frame, the making of the converter included."""
    start = time.perf_counter()
    converter = VideoReformatter()
    for frame in frames:
        converter.reformat(frame, format="rgb24", threads=threads)
    return (time.perf_counter() - start) / len(frames) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Colour conversion: one thread against a pool.")
    parser.add_argument("videos", nargs="+")
    for path in parser.parse_args().videos:
        with av.open(path) as container:
            frames = list(islice(container.decode(video=0), FRAMES))
        rounds = [(microseconds(frames, 0), microseconds(frames, 1)) for _ in range(ROUNDS)]
        pool, one = (statistics.median(column) for column in zip(*rounds, strict=True))
        size = f"{frames[0].width}x{frames[0].height}"
        print(f"{path} ({size}): pool {pool:.0f} us, one thread {one:.0f} us, {pool / one:.1f} x")


if __name__ == "__main__":
    main()
