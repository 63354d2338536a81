"""Prepare AVA v2.2: from the official files and person detections to lists of key frames.

    python tools/data/ava.py data/ava [--detections FILE ...] [--min-score 0.9]
    python tools/data/ava.py data/ava --frames data/ava/frames [--strict] [--force]

writes ava_train.jsonl and ava_val.jsonl, one key frame per line with its boxes, actions and person
detections, and ava_actions.json; missing and unreadable videos are listed in missing_ava.txt and
unreadable_ava.txt. See docs/data.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sce_video.data_tools.preparation.ava import prepare_ava
from sce_video.data_tools.preparation.ava_options import LAYOUT, AvaOptions
from sce_video.utils.command import command
from sce_video.data_tools.preparation.command import add_common_options


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Prepare AVA v2.2: lists of key frames.")
    add_common_options(parser, LAYOUT)
    parser.add_argument(
        "--frames",
        type=Path,
        metavar="DIR",
        help="folder of frame folders, instead of videos",
    )
    parser.add_argument(
        "--detections",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="person detections of train and val: SlowFast's csv or mmaction2's pkl",
    )
    parser.add_argument(
        "--no-detections",
        action="store_true",
        help="use none: the lists cannot serve for testing",
    )
    parser.add_argument(
        "--min-score",
        type=float,
        default=0.9,
        metavar="SCORE",
        help="leave out detections with a lower score (default: %(default)s)",
    )
    parser.add_argument(
        "--unannotated",
        action="store_true",
        help="also list seconds of val with detections but no ground truth, as SlowFast does",
    )
    parser.add_argument(
        "--skip-frameless",
        action="store_true",
        help="leave out key frames outside of their video, instead of an error",
    )
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Prepare and return the exit status: 1 if, with --strict, a count differs."""
    args = parse_args(argv)
    agrees = prepare_ava(
        AvaOptions(
            root=args.root,
            annotations=args.annotations,
            detections=tuple(args.detections),
            without_detections=args.no_detections,
            min_score=args.min_score,
            videos=args.videos,
            frames=args.frames,
            out=args.out,
            workers=args.workers,
            time_limit=args.time_limit,
            ray=args.ray,
            check=not args.no_check,
            keep_missing=args.keep_missing,
            skip_frameless=args.skip_frameless,
            unannotated=args.unannotated,
            force=args.force,
        )
    )
    if not agrees:
        print(
            "ava.py: counts differ from the published ones, see the table"
            + ("" if args.strict else " (an error with --strict only)"),
            file=sys.stderr,
        )
    return 1 if args.strict and not agrees else 0


if __name__ == "__main__":
    sys.exit(main())
