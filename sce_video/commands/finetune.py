"""``sce-video finetune``."""

from __future__ import annotations

import shlex

from sce_video.options.training import FinetuneOptions
from sce_video.utils.command import command, printable


@command(options=FinetuneOptions, interrupted="interrupted; --resume continues the training")
def main(options: FinetuneOptions) -> int:
    """Finetune and test, and return 0, or 128 + n if signal n stopped the training."""
    from sce_video.runs.finetune import finetune

    result = finetune(options)
    if result.alarm is not None:
        # Do not suggest predict as the next step, because the classifier only guesses.
        print(printable(f"alarm {result.alarm.name}: {result.alarm}"))
    elif result.status == 0 and not options.plan:
        print(printable(f"next: sce-video predict {shlex.quote(str(result.folder))} VIDEOS"))
    return result.status
