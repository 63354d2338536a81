"""From nothing to a search page in minutes: generated videos, a training, its test, a search.

    sce-video demo [--out work_dirs/demo] [--minutes 3] [--method simclr] [--no-serve]

Runs the commands that you would type for videos of your own, and prints them. Safe to repeat: the
videos are kept, the rest is done again.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from sce_video.commands.arguments import command_line, number
from sce_video.engine.recipes import methods
from sce_video.utils.command import command
from sce_video.utils.cores import usable_cores


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the commands one after the other; returns the exit status of the last one."""
    parser, add = command_line("Generate videos, learn from them, search them: a page opens.")
    add("--out", "folder of videos, run and index", Path, default=Path("work_dirs/demo"))
    add("--minutes", "of training", number(float, above=0), default=3.0)
    known = sorted(set(methods()) - {"distill"})
    add("--method", "of pretraining (default: that of sce-video pretrain)", choices=known)
    add("--no-serve", "end with the index, open no page", bool)
    add("--smoke", "a few videos and steps: does it run here?", bool)
    args = parser.parse_args(argv)
    from sce_video.commands.main import main as run_command
    from sce_video.data_tools.generated import generate_toy_actions

    videos, run, index = (str(args.out / name) for name in ("videos", "run", "index"))
    numbers = dict(train=32, test=24) if args.smoke else dict(train=480, test=240)
    print(f"{sum(numbers.values())} videos of 12 actions in {videos}", flush=True)
    generate_toy_actions(Path(videos), numbers, workers=usable_cores())
    train, test = os.path.join(videos, "train"), os.path.join(videos, "test")
    budget = ["--epochs", "2"] if args.smoke else ["--hours", f"{args.minutes / 60:g}"]
    method = ["--method", args.method] if args.method else []
    commands = [
        ["pretrain", train, "--out", run, *budget, *method, "--overwrite"],
        ["evaluate", run, "--test", test, "--gallery", train],
        ["index", test, "--checkpoint", run, "--out", index],
        *([] if args.no_serve else [["search", "--serve", index]]),
    ]
    for words in commands:
        print(f"\n$ {shlex.join(['sce-video', *words])}", flush=True)
        if status := run_command(words):
            return status
    print(f"\nThe page of this run: {run}/run.html. Yours: sce-video pretrain VIDEOS --out RUN")
    return 0
