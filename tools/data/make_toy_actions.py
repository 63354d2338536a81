"""Write the toy-action videos: labelled h264 files to try the codebase with, no download needed.

    python tools/data/make_toy_actions.py data/toy_actions
    python tools/data/make_toy_actions.py data/toy_small --train 48 --val 24 --test 24 --seed 1

writes data/toy_actions/{train,val,test}/CLASS/NUMBER.mp4, one folder per class. Repeating the
command does nothing after a complete run and resumes an interrupted one. --patterns also writes
data/toy_actions/{train,val,test}_patterns.txt, lists with the pattern as the label, which a single
frame shows. See sce_video/data_tools/toy_actions.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sce_video.utils.command import command
from sce_video.data_tools.toy_actions import (
    CLASSES,
    generate_toy_actions,
    write_pattern_lists,
)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Generate labelled toy-action videos.")
    parser.add_argument("root", type=Path, help="folder to write to")
    parser.add_argument("--train", type=int, default=480, help="videos of the part, 0 for none")
    parser.add_argument("--val", type=int, default=120, help="videos of the part, 0 for none")
    parser.add_argument("--test", type=int, default=240, help="videos of the part, 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=64, help="height and width in pixels")
    parser.add_argument("--num-frames", type=int, default=60)
    parser.add_argument("--fps", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2, help="threads that render and encode")
    parser.add_argument(
        "--patterns", action="store_true", help="also write lists labelled by the pattern alone"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace videos made with other parameters"
    )
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Generate; returns the exit status."""
    args = parse_args(argv)
    parts = {"train": args.train, "val": args.val, "test": args.test}
    start = time.monotonic()
    generate_toy_actions(
        args.root,
        {part: count for part, count in parts.items() if count != 0},
        args.seed,
        size=args.size,
        num_frames=args.num_frames,
        fps=args.fps,
        workers=args.workers,
        overwrite=args.overwrite,
    )
    if args.patterns:
        write_pattern_lists(args.root)
    print(
        f"{args.root}: {sum(parts.values())} videos of {len(CLASSES)} classes "
        f"({time.monotonic() - start:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
