"""``sce-video pretrain``."""

from __future__ import annotations

from collections.abc import Sequence

from sce_video.options.command_line import parse
from sce_video.options.training import PretrainOptions
from sce_video.utils.command import command, printable


@command(interrupted="interrupted; --resume continues from the last checkpoint")
def main(argv: Sequence[str] | None = None) -> int:
    """Pretrain and return the exit status, 128 + n if signal n has stopped the training."""
    options = parse(PretrainOptions, argv)
    # Imported here, so that --help does not load NumPy.
    from sce_video.runs.pretrain import pretrain

    result = pretrain(options)
    for line in result.lines():
        print(printable(line))
    return result.status
