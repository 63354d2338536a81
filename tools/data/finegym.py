"""Prepare FineGym-99: from the official lists and whole videos to clips and annotation lists.

    python tools/data/finegym.py data/finegym --segments      (which parts of videos/ to cut)
    sce-video repack data/finegym/segments.csv data/finegym/subactions --data-root data/finegym
    python tools/data/finegym.py data/finegym [--samples 1000] [--workers N] [--strict] [--force]

The last writes {train,val}.txt, {train,val}_{fx_s1,ub_s1}.txt (two sets of elements) and files of class
names, and lists missing and unreadable clips in missing_finegym.txt and unreadable_finegym.txt. Clips
that were cut already are taken as they are. See docs/data.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sce_video.data_tools.preparation.clips import write_segments
from sce_video.data_tools.preparation.command import (
    add_common_options,
    add_samples_option,
    run_command,
    with_samples,
)
from sce_video.data_tools.preparation.files import Located
from sce_video.data_tools.preparation.finegym import (
    LAYOUT,
    finegym_clips,
    locate_finegym,
    read_finegym,
)
from sce_video.data_tools.preparation.official import OfficialLists
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Prepare FineGym-99: clips and annotation lists.")
    add_common_options(parser, LAYOUT)
    add_samples_option(parser, "train.txt")
    parser.add_argument(
        "--segments", action="store_true", help="write segments.csv for repack, and no lists"
    )
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and return the exit status."""
    args = parse_args(argv)
    if args.segments:
        official = read_finegym(args.root, args.annotations)
        clips = finegym_clips(args.root, official, args.annotations)
        path = (args.out or args.root) / "segments.csv"
        print(write_segments(path, args.root, args.videos or args.root / "videos", clips))
        return 0

    def read() -> tuple[OfficialLists, dict[str, Located]]:
        official = with_samples(read_finegym(args.root, args.annotations), "train.txt", args.samples)
        return official, locate_finegym(args.root, official, args.videos)

    return run_command("finegym", args, read)


if __name__ == "__main__":
    sys.exit(main())
