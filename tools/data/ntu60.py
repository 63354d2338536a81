"""Prepare NTU RGB+D (60 actions): from the unpacked RGB videos to annotation lists.

    python tools/data/ntu60.py data/ntu60 [--workers N] [--no-check] [--strict] [--force]

writes {train,test}_{subject,view}.txt and classes.txt, and lists unreadable files in
unreadable_ntu60.txt. See docs/data.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sce_video.data_tools.preparation.command import add_common_options, run_command
from sce_video.data_tools.preparation.ntu60 import LAYOUT, read_ntu60
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Prepare NTU RGB+D (60 actions): annotation lists of both splits."
    )
    add_common_options(parser, LAYOUT, other_folders=False)
    parser.add_argument("--videos", metavar="DIR", type=Path, help="folder of the videos")
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and return the exit status."""
    args = parse_args(argv)
    return run_command("ntu60", args, lambda: read_ntu60(args.root, args.videos))


if __name__ == "__main__":
    sys.exit(main())
