"""``sce-video train``."""

from __future__ import annotations

from collections.abc import Sequence

from sce_video.options.command_line import parse
from sce_video.options.training import TrainOptions
from sce_video.utils.command import command, printable_lines


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Train or print the recipe, and return the exit status, 128 + n after signal n."""
    options = parse(TrainOptions, argv)
    # Imported here, so that --help does not load NumPy.
    from sce_video.runs.train import train

    result = train(options)
    if result.recipe is not None:
        print(printable_lines(str(result.recipe)))
        return 0
    from sce_video.utils.distributed import leave_process_group  # imports torch

    leave_process_group(result.status)
    return result.status
