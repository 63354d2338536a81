"""``sce-video train``."""

from __future__ import annotations

from sce_video.options.training import TrainOptions
from sce_video.utils.command import command, printable_lines


@command(options=TrainOptions)
def main(options: TrainOptions) -> int:
    """Train or print the recipe, and return 0, or 128 + n if signal n stopped the training."""
    from sce_video.runs.train import train

    result = train(options)
    if result.recipe is not None:
        print(printable_lines(str(result.recipe)))
        return 0
    from sce_video.utils.distributed import leave_process_group  # imports torch

    leave_process_group(result.status)
    return result.status
