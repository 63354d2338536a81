"""Processor time of each protocol of frozen features, on generated features.

    python benchmarks/protocol_times.py [--gallery 8000] [--queries 2000] [--size 128]
        [--classes 20] [--protocols knn linear ...] [--json OUT]

Features are class centres with noise, one thread computes. The network's passes and decoding are
not in these times; the sense of time needs four passes of each clip, all others one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from sce_video.evaluation import PROTOCOLS, Rows
from sce_video.evaluation.functional.frame_order import ALTERATIONS
from sce_video.utils.atomic_file import write_json
from sce_video.utils.command import command

#: Standard deviation of the noise beside that of the class centres: half of the queries are right.
_NOISE = 4.0


def generate(name: str, count: int, size: int, classes: int, seed: int) -> Rows:
    """Rows of features, and of altered ones, that share class centres with those of other names."""
    centres = torch.randn(classes, size, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes

    def features() -> torch.Tensor:
        return centres[labels] + _NOISE * torch.randn(count, size, generator=generator)

    paths = [f"{name}/{number}.mp4" for number in range(count)]
    altered = {alteration: features() for alteration in ALTERATIONS}
    return Rows(features(), labels, torch.arange(count), paths, altered=altered)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("gallery", 8000), ("queries", 2000), ("size", 128), ("classes", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--protocols", nargs="+", choices=sorted(PROTOCOLS), default=[*PROTOCOLS])
    parser.add_argument("--json", type=Path, help="file for the times")
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    args = parse_args(argv)
    torch.set_num_threads(1)
    gallery = generate("gallery", args.gallery, args.size, args.classes, 1)
    queries = generate("queries", args.queries, args.size, args.classes, 2)
    seconds = {}
    for name in args.protocols:
        start = time.process_time()
        numbers = PROTOCOLS[name]().compute(queries, gallery)
        seconds[name] = time.process_time() - start
        first, value = next(iter(numbers.items()))
        print(f"{name:<10} {seconds[name]:8.1f} s   ({first} {100 * value:.1f})", flush=True)
        if args.json is not None:
            given = {name: value for name, value in vars(args).items() if name != "json"}
            write_json(args.json, {**given, "torch": torch.__version__, "seconds": seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
