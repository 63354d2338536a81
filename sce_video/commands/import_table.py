"""``sce-video import``, in Python ``import_videos``, because ``import`` is a reserved word."""

from __future__ import annotations

from sce_video.options.prepare import ImportOptions
from sce_video.utils.command import RESUMABLE, command


@command(options=ImportOptions, interrupted=RESUMABLE)
def main(options: ImportOptions) -> int:
    """Import the videos, and return 1 if some of them failed, else 0."""
    from sce_video.data_tools.table_fill import import_videos
    from sce_video.data_tools.table_writer import describe_import

    result = import_videos(options)
    print(describe_import(result, options.table))
    return 0 if result.complete else 1
