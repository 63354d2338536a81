"""Prepare UCF101: from the official downloads to annotation lists.

    python tools/data/ucf101.py data/ucf101 [--samples 1000] [--workers N] [--no-check] [--strict]

writes {train,test}_split{1,2,3}.txt and classes.txt, and lists missing and unreadable files in
missing_ucf101.txt and unreadable_ucf101.txt. See docs/data.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sce_video.data_tools.preparation.command import (
    add_common_options,
    add_samples_option,
    run_command,
    with_samples,
)
from sce_video.data_tools.preparation.files import Located
from sce_video.data_tools.preparation.official import OfficialLists
from sce_video.utils.command import command
from sce_video.data_tools.preparation.ucf101 import LAYOUT, locate_ucf101, read_ucf101


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Prepare UCF101: annotation lists of its splits.")
    add_common_options(parser, LAYOUT)
    add_samples_option(parser, "train_split1.txt")
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and return the exit status."""
    args = parse_args(argv)

    def read() -> tuple[OfficialLists, dict[str, Located]]:
        official = read_ucf101(args.root, args.annotations)
        official = with_samples(official, "train_split1.txt", args.samples)
        return official, locate_ucf101(args.root, official, args.videos)

    return run_command("ucf101", args, read)


if __name__ == "__main__":
    sys.exit(main())
