"""``sce-video finetune-splits``."""

from __future__ import annotations

import sys

from sce_video.options.protocols import FinetuneSplitsOptions
from sce_video.utils.command import RESUMABLE, command


@command(options=FinetuneSplitsOptions, interrupted=RESUMABLE)
def main(options: FinetuneSplitsOptions) -> int:
    """Run all splits, and return 0, or 128 + n if signal n stopped a run."""
    from sce_video.runs.measure import finetune_splits

    result = finetune_splits(options)
    from mmengine.dist import is_main_process

    from sce_video.utils.distributed import leave_process_group

    status = 128 + result.stopped_by if result.stopped_by else 0
    if status:
        print(
            f"sce-video finetune-splits: stopped by signal {result.stopped_by}; the same "
            "command resumes from here",
            file=sys.stderr,
        )
    elif is_main_process():
        print(f"\n{result.table}\nwritten to {result.file}")
    leave_process_group(status)
    return status
