"""Prepare EPIC-KITCHENS-100: from the official tables and whole videos to clips and annotation lists.

    python tools/data/epic_kitchens.py data/epic --segments      (which parts of EPIC-KITCHENS/ to cut)
    sce-video repack data/epic/segments.csv data/epic/clips --data-root data/epic
    python tools/data/epic_kitchens.py data/epic [--workers N] [--no-check] [--strict] [--force]

The last writes {train,val}_{verb,noun,action}.txt and files of class names, and lists missing and
unreadable clips in missing_epic_kitchens.txt and unreadable_epic_kitchens.txt. See docs/data.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sce_video.data_tools.preparation.clips import write_segments
from sce_video.data_tools.preparation.command import add_common_options, run_command
from sce_video.data_tools.preparation.epic_kitchens import (
    LAYOUT,
    locate_epic_kitchens,
    read_epic_kitchens,
)
from sce_video.data_tools.preparation.files import Located
from sce_video.data_tools.preparation.official import OfficialLists
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Prepare EPIC-KITCHENS-100: clips and annotation lists."
    )
    add_common_options(parser, LAYOUT)
    parser.add_argument(
        "--segments", action="store_true", help="write segments.csv for repack, and no lists"
    )
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and return the exit status."""
    args = parse_args(argv)
    official, clips = read_epic_kitchens(args.root, args.annotations)
    if args.segments:
        path = (args.out or args.root) / "segments.csv"
        print(write_segments(path, args.root, args.videos or args.root / "EPIC-KITCHENS", clips))
        return 0

    def read() -> tuple[OfficialLists, dict[str, Located]]:
        return official, locate_epic_kitchens(args.root, official, args.videos)

    return run_command("epic_kitchens", args, read)


if __name__ == "__main__":
    sys.exit(main())
