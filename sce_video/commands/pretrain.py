"""``sce-video pretrain``."""

from __future__ import annotations

from sce_video.options.training import PretrainOptions
from sce_video.utils.command import command, printable


@command(options=PretrainOptions, interrupted="interrupted; --resume continues the training")
def main(options: PretrainOptions) -> int:
    """Pretrain, and return 0, or 128 + n if signal n stopped the training."""
    from sce_video.runs.pretrain import pretrain

    result = pretrain(options)
    for line in result.lines():
        print(printable(line))
    return result.status
