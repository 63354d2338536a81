"""Prepare a data set of transfer learning: from the official downloads to lists of its splits.

    python tools/data/transfer.py food101 data/transfer/Food [--workers N] [--no-check] [--strict]

writes lists/{train,test}.txt, lists/val.txt where the set has an official validation split, and
lists/classes.txt, and reports missing and unreadable files. See docs/transfer.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sce_video.data_tools.preparation.prepare import Options
from sce_video.data_tools.transfer import TRANSFER_SETS, prepare_transfer_set
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    layouts = "\n".join(f"{name}\n{item.layout}" for name, item in TRANSFER_SETS.items())
    parser = argparse.ArgumentParser(
        description="Prepare a transfer set: lists of its splits.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"ROOT holds the unpacked official downloads:\n{layouts}",
    )
    parser.add_argument("name", choices=sorted(TRANSFER_SETS), help="the data set")
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder of the data set")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write the lists here instead of ROOT/lists; paths in them stay relative to ROOT",
    )
    parser.add_argument(
        "--workers",
        type=int,
        help="processes that decode images (default: all cores, of the cluster with --ray)",
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="on a Ray cluster: its address, or 'auto'"
    )
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="only check that files exist, do not decode them",
    )
    parser.add_argument(
        "--keep-missing",
        action="store_true",
        help="keep missing and unreadable files in the lists",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit status 1 if a count differs from the published one",
    )
    parser.add_argument("--force", action="store_true", help="replace existing lists that differ")
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and return the exit status."""
    args = parse_args(argv)
    options = Options(
        root=args.root,
        out=args.out,
        workers=args.workers,
        ray=args.ray,
        check=not args.no_check,
        keep_missing=args.keep_missing,
        force=args.force,
    )
    agrees = prepare_transfer_set(args.name, options)
    if not agrees:
        print(
            "transfer.py: counts differ from the published ones, see the table"
            + ("" if args.strict else " (an error with --strict only)"),
            file=sys.stderr,
        )
    return 1 if args.strict and not agrees else 0


if __name__ == "__main__":
    sys.exit(main())
