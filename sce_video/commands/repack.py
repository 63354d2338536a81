"""``sce-video repack``."""

from __future__ import annotations

from sce_video.options.prepare import RepackOptions
from sce_video.utils.command import RESUMABLE, command


@command(options=RepackOptions, interrupted=RESUMABLE)
def main(options: RepackOptions) -> int:
    """Repack the videos, and return 1 if some of them failed, else 0."""
    from sce_video.data_tools.repack.repack_job import repack
    from sce_video.data_tools.repack.repack_report import describe_repack
    from sce_video.data_tools.table_writer import describe_import

    result = repack(options)
    if result.rows is not None:
        print(describe_import(result.rows, str(options.to), "repacked"))
    if result.report is not None:
        print(describe_repack(result.report))
    for path in result.written:
        print(f"written: {path}")
    return 0 if result.complete else 1
