"""Prepare Kinetics-400, and Kinetics-200 from it: from the official downloads to annotation lists.

    python tools/data/kinetics.py data/kinetics400 [--workers N] [--no-check] [--strict] [--force]
    python tools/data/kinetics.py data/kinetics400 --k200
    python tools/data/kinetics.py data/kinetics400 --k200 --k200-ids train_ytid_list.txt \\
        val_ytid_list.txt
    python tools/data/kinetics.py data/kinetics400 --k200-classes my_classes.txt

writes k400_train.txt, k400_val.txt and k400_classes.txt; with --test also k400_test.txt; with
--k200 or --k200-classes also k200_train.txt, k200_val.txt and k200_classes.txt. Missing and
unreadable files are listed in missing_k400.txt and unreadable_k400.txt. See docs/data.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sce_video.data_tools.preparation.command import add_common_options, run_command
from sce_video.data_tools.preparation.files import Located
from sce_video.data_tools.preparation.k200_classes import K200_CLASSES
from sce_video.data_tools.preparation.kinetics import (
    LAYOUT,
    add_k200,
    locate_kinetics,
    read_class_list,
    read_kinetics400,
)
from sce_video.utils.command import command
from sce_video.data_tools.preparation.official import OfficialLists


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Prepare Kinetics-400, and Kinetics-200 from it: annotation lists."
    )
    add_common_options(parser, LAYOUT)
    parser.add_argument("--test", action="store_true", help="also prepare test.csv and test/")
    parser.add_argument(
        "--k200",
        action="store_true",
        help="also write lists of the 200 classes of Mini-Kinetics-200 (Xie et al. 2018)",
    )
    parser.add_argument(
        "--k200-classes",
        type=Path,
        metavar="FILE",
        help="use the classes of this file instead, one name per line (implies --k200)",
    )
    parser.add_argument(
        "--k200-ids",
        type=Path,
        nargs=2,
        metavar=("TRAIN", "VAL"),
        help="only the videos of these classes whose YouTube ids are listed, one per line: "
        "train_ytid_list.txt and val_ytid_list.txt of the authors of Mini-Kinetics-200",
    )
    args = parser.parse_args(argv)
    args.k200 = args.k200 or args.k200_classes is not None
    if args.k200_ids and not args.k200:
        parser.error("--k200-ids needs --k200 or --k200-classes")
    return args


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and return the exit status."""
    args = parse_args(argv)

    def read() -> tuple[OfficialLists, dict[str, Located]]:
        parts = ("train", "val", "test") if args.test else ("train", "val")
        official = read_kinetics400(args.root, args.annotations, parts)
        if args.k200:
            known = official.class_maps[0].names
            names = K200_CLASSES
            if args.k200_classes is not None:
                names = read_class_list(args.k200_classes, known)
            ids = dict(zip(("train", "val"), args.k200_ids, strict=True)) if args.k200_ids else None
            official = add_k200(official, names, ids)
        return official, locate_kinetics(args.root, official, args.videos)

    return run_command("kinetics", args, read)


if __name__ == "__main__":
    sys.exit(main())
