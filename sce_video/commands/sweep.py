"""``sce-video sweep``."""

from __future__ import annotations

import shlex
import sys

from sce_video.options.training import SweepOptions
from sce_video.utils.command import RESUMABLE, command


@command(options=SweepOptions, interrupted=RESUMABLE)
def main(options: SweepOptions) -> int:
    """Run the sweeps, and return 1 if a step failed or was left out, else 0."""
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
