"""``sce-video test``."""

from __future__ import annotations

from collections.abc import Sequence

from sce_video.options.command_line import parse
from sce_video.options.measure import TestOptions
from sce_video.utils.command import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Test each checkpoint, print its table, and return the exit status."""
    options = parse(TestOptions, argv)
    # Imported here, so that --help does not load NumPy.
    from sce_video.runs.measure import test

    test(options)
    from sce_video.utils.distributed import leave_process_group  # needs torch

    leave_process_group()
    return 0
