"""Prepare ImageNet (ILSVRC2012) or ImageNet100: from the unpacked official archives to lists.

    python tools/data/imagenet.py data/imagenet [--workers N] [--no-check] [--strict] [--force]
    python tools/data/imagenet.py data/imagenet --imagenet100

writes imagenet_{train,val}.txt and imagenet_classes.txt; with --imagenet100 in their place
imagenet100_{train,val}.txt and imagenet100_classes.txt, the paper's 100 classes of the same images.
Missing and unreadable images are listed in missing_NAME.txt and unreadable_NAME.txt. See
docs/data.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sce_video.data_tools.preparation.command import add_common_options, run_command
from sce_video.data_tools.preparation.files import Located
from sce_video.data_tools.preparation.imagenet import LAYOUT, locate_imagenet, read_imagenet
from sce_video.data_tools.preparation.official import OfficialLists
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Prepare ImageNet (ILSVRC2012) or ImageNet100: annotation lists."
    )
    add_common_options(parser, LAYOUT, other_folders=False)
    parser.add_argument(
        "--imagenet100",
        action="store_true",
        help="write the lists of the 100 classes of ImageNet100, for train and val",
    )
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and return the exit status."""
    args = parse_args(argv)

    def read() -> tuple[OfficialLists, dict[str, Located]]:
        official = read_imagenet(args.root, args.imagenet100)
        return official, locate_imagenet(args.root, official)

    return run_command("imagenet", args, read)


if __name__ == "__main__":
    sys.exit(main())
