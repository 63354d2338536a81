"""``sce-video demo``, which runs the typical commands on generated videos."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from sce_video.options.prepare import DemoOptions
from sce_video.utils.command import command


@command(options=DemoOptions)
def main(options: DemoOptions) -> int:
    """Run the demo, and return the exit status of its last command."""
    result = demo(options)
    if result.status == 0:
        print(f"\nThe page of this run is {result.run / 'run.html'}.")
        print("For your own videos, start with: sce-video pretrain VIDEOS --out RUN")
    return result.status


@dataclass(frozen=True)
class DemoResult:
    """Result of the demo.

    Attributes:
        videos: Folder of the generated videos.
        run: Folder of the pretraining run.
        index: Folder of the search index.
        status: Exit status of the last command. The demo ends with the first command that fails.
    """

    videos: Path
    run: Path
    index: Path
    status: int


def demo(options: DemoOptions) -> DemoResult:
    """Generate videos, and run the commands that a user would type for their own videos.

    Raises:
        ValueError: If the demo does not support the method.
    """
    from sce_video.commands.main import main as run_command
    from sce_video.data_tools.generated import generate_toy_actions
    from sce_video.engine.recipes import methods
    from sce_video.utils.cores import usable_cores

    known = sorted(set(methods()) - {"distill"})  # distill needs a teacher network
    if options.method not in (None, *known):
        raise ValueError(
            f"the demo does not support the method {options.method!r}. Choose one of "
            f"{', '.join(known)}"
        )
    videos, run, index = (Path(options.out, name) for name in ("videos", "run", "index"))
    numbers = dict(train=32, test=24) if options.smoke else dict(train=480, test=240)
    print(f"{sum(numbers.values())} videos of 12 actions in {videos}", flush=True)
    generate_toy_actions(videos, numbers, workers=usable_cores())
    train, test = os.path.join(videos, "train"), os.path.join(videos, "test")
    budget = ["--epochs", "2"] if options.smoke else ["--hours", f"{options.minutes / 60:g}"]
    method = ["--method", options.method] if options.method else []
    commands = [
        ["pretrain", train, "--out", str(run), *budget, *method, "--overwrite"],
        ["evaluate", str(run), "--test", test, "--gallery", train],
        ["index", test, "--checkpoint", str(run), "--out", str(index)],
        *([["search", "--serve", str(index)]] if options.serve else []),
    ]
    status = 0
    for words in commands:
        print(f"\n$ {shlex.join(['sce-video', *words])}", flush=True)
        status = run_command(words)
        if status:
            break
    return DemoResult(videos, run, index, status)
