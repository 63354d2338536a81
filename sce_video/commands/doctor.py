"""Is this machine fit for training? Packages, decoders, GPU, limits, and your videos.

    sce-video doctor [--videos DIR|TABLE] [--out RUNS]

Every warning and failure has a line that mends it. Exit status: 0, or 1 when something will fail.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sce_video.commands.arguments import Parser, check_exists
from sce_video.utils.command import command
from sce_video.utils.printable import printable


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(description="Is this machine fit for training?")
    parser.add_argument("--videos", metavar="DIR", help="folder or table of videos to decode, too")
    parser.add_argument(
        "--out", type=Path, default=Path(), help="folder of the runs (default: this one)"
    )
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print all findings."""
    args = parse_args(argv)
    if args.videos is not None:
        check_exists(args.videos, "folder or table of videos")
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.runs.doctor import FAILURE, examine

    failures = 0
    for finding in examine(args.out, args.videos):
        print("\n".join(map(printable, finding.line().split("\n"))), flush=True)
        failures += finding.level == FAILURE
    return int(failures > 0)
