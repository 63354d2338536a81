"""``sce-video sweep``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from sce_video.options.command_line import parse
from sce_video.options.training import SweepOptions
from sce_video.utils.command import command


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the sweeps and return the exit status, 1 if a step failed."""
    options = parse(SweepOptions, argv)
    # Imported here, so that --help does not load NumPy.
    from sce_video.runs.sweep import describe_steps, sweep

    result = sweep(options)
    if options.list_steps:
        for one in result.steps:
            print(f"{one.state:<12} {one.step.folder}")
            for words in one.step.commands:
                print("    " + shlex.join(("python", *words)))
        print(describe_steps(result.steps))
    for name, text in result.tables.items():
        print(f"\n{text}\nwritten to {result.out / name}.md, .json and .png")
    if result.left:
        count = len(result.steps)
        print(f"{result.left} of {count} steps failed or were left out", file=sys.stderr)
    return 1 if result.left else 0
