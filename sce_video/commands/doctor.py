"""Is this machine fit for training? Packages, decoders, GPU, limits, and your videos.

    sce-video doctor [--videos DIR|TABLE] [--out RUNS] [--report]

Every warning and failure has a line that mends it. Exit status: 0, or 1 when something will fail.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sce_video.commands.arguments import command_line
from sce_video.datasets.named_files import check_exists, tell_others
from sce_video.utils.command import command, printable


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print all findings; returns 1 if one of them is a failure, 0 with warnings only."""
    parser, add = command_line("Is this machine fit for training?")
    add("--videos DIR", "folder or table of videos to decode, too")
    add.shared("--all-files")
    add("--out", "folder of the runs (default: this one)", Path, default=Path())
    add("--report", "text for an issue, which names no file or folder; status 0", bool)
    args = parser.parse_args(argv)
    check_exists(args.videos, "folder or table of videos")
    if args.videos is not None and os.path.isdir(args.videos) and not args.report:
        tell_others(args.videos)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.runs.doctor import FAILURE, examine, report_lines

    if args.report:
        for line in report_lines(args.out, args.videos):
            print("\n".join(map(printable, line.split("\n"))), flush=True)
        return 0
    failures = 0
    for finding in examine(args.out, args.videos):
        print("\n".join(map(printable, finding.line().split("\n"))), flush=True)
        failures += finding.level == FAILURE
    return int(failures > 0)
