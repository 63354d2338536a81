"""Prepare Diving48: from the official downloads to annotation lists.

    python tools/data/diving48.py data/diving48 [--workers N] [--no-check] [--strict] [--force]

writes train.txt, test.txt and classes.txt, and lists missing and unreadable files in
missing_diving48.txt and unreadable_diving48.txt. See docs/data.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sce_video.data_tools.preparation.command import add_common_options, run_command
from sce_video.data_tools.preparation.diving48 import LAYOUT, locate_diving48, read_diving48
from sce_video.data_tools.preparation.files import Located
from sce_video.data_tools.preparation.official import OfficialLists
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Prepare Diving48: annotation lists.")
    add_common_options(parser, LAYOUT)
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and return the exit status."""
    args = parse_args(argv)

    def read() -> tuple[OfficialLists, dict[str, Located]]:
        official = read_diving48(args.root, args.annotations)
        return official, locate_diving48(args.root, official, args.videos)

    return run_command("diving48", args, read)


if __name__ == "__main__":
    sys.exit(main())
