"""``sce-video test``."""

from __future__ import annotations

from sce_video.options.measure import TestOptions
from sce_video.utils.command import command


@command(options=TestOptions)
def main(options: TestOptions) -> int:
    """Test each checkpoint, print a table for it, and return 0."""
    from sce_video.runs.measure import test

    test(options)
    from sce_video.utils.distributed import leave_process_group  # needs torch

    leave_process_group()
    return 0
