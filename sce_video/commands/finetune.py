"""``sce-video finetune``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from sce_video.options.command_line import parse
from sce_video.options.training import FinetuneOptions
from sce_video.utils.command import command, printable


@command(interrupted="interrupted; --resume continues from the last checkpoint, if there is one")
def main(argv: Sequence[str] | None = None) -> int:
    """Finetune and return the exit status, 128 + n if signal n has stopped the training."""
    options = parse(FinetuneOptions, argv)
    # Imported here, so that --help does not load NumPy.
    from sce_video.runs.finetune import finetune

    result = finetune(options)
    if result.alarm is not None:
        # Do not print the command for predictions, which would recommend a classifier that guesses.
        print(printable(f"alarm {result.alarm.name}: {result.alarm}"))
    elif result.status == 0 and not options.plan:
        print(printable(f"next: sce-video predict {shlex.quote(str(result.folder))} VIDEOS"))
    return result.status
