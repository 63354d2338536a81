"""Prepare HMDB51: from the official downloads to annotation lists.

    python tools/data/hmdb51.py data/hmdb51 [--workers N] [--no-check] [--strict] [--force]

writes {train,test}_split{1,2,3}.txt and classes.txt, and lists missing and unreadable files in
missing_hmdb51.txt and unreadable_hmdb51.txt. See docs/data.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sce_video.data_tools.preparation.command import add_common_options, run_command
from sce_video.data_tools.preparation.files import Located
from sce_video.data_tools.preparation.hmdb51 import LAYOUT, locate_hmdb51, read_hmdb51
from sce_video.utils.command import command
from sce_video.data_tools.preparation.official import OfficialLists


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Prepare HMDB51: annotation lists of its splits.")
    add_common_options(parser, LAYOUT)
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and return the exit status."""
    args = parse_args(argv)

    def read() -> tuple[OfficialLists, dict[str, Located]]:
        official = read_hmdb51(args.root, args.annotations)
        return official, locate_hmdb51(args.root, official, args.videos)

    return run_command("hmdb51", args, read)


if __name__ == "__main__":
    sys.exit(main())
