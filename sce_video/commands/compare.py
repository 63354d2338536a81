"""Curves, results and differences of the configs of several runs, on one page.

    sce-video compare RUN RUN ... --out compare.html

Differences of results are tested on the outcomes of the same videos; runs that differ in their seed
only count as one group, with their mean.

The page is one file and loads nothing. Runs may be running still.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sce_video.commands.arguments import Parser
from sce_video.utils.command import command
from sce_video.utils.run_files import check_run_folder


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        description="Curves, results and differences of the configs of several runs, on one page."
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of trainings, two or more")
    parser.add_argument(
        "--out", type=Path, default=Path("compare.html"), help="HTML file (default: compare.html)"
    )
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; returns the exit status."""
    args = parse_args(argv)
    if len(args.runs) < 2:
        raise ValueError("give two runs or more; sce-video report RUN shows a single one")
    for run in args.runs:
        check_run_folder(run)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.runs.compare import write_comparison

    for line in write_comparison(args.runs, args.out).lines():
        print(line)
    print(f"written: {args.out}")
    return 0
