"""Prepare Tiny-ImageNet: from the unpacked official archive to annotation lists.

    python tools/data/tiny_imagenet.py data/tiny_imagenet [--workers N] [--no-check] [--strict]

writes train.txt, val.txt and classes.txt, and lists missing and unreadable images in
missing_tiny_imagenet.txt and unreadable_tiny_imagenet.txt. See docs/data.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sce_video.data_tools.preparation.command import add_common_options, run_command
from sce_video.data_tools.preparation.files import Located
from sce_video.data_tools.preparation.official import OfficialLists
from sce_video.data_tools.preparation.tiny_imagenet import (
    LAYOUT,
    locate_tiny_imagenet,
    read_tiny_imagenet,
)
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Prepare Tiny-ImageNet: annotation lists.")
    add_common_options(parser, LAYOUT, other_folders=False)
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and return the exit status."""
    args = parse_args(argv)

    def read() -> tuple[OfficialLists, dict[str, Located]]:
        official = read_tiny_imagenet(args.root)
        return official, locate_tiny_imagenet(args.root, official)

    return run_command("tiny_imagenet", args, read)


if __name__ == "__main__":
    sys.exit(main())
