"""``sce-video repack``."""

from __future__ import annotations

from collections.abc import Sequence

from sce_video.options.command_line import parse
from sce_video.options.prepare import RepackOptions
from sce_video.utils.command import RESUMABLE, command


@command(interrupted=RESUMABLE)
def main(argv: Sequence[str] | None = None) -> int:
    """Repack the videos and return the exit status, 1 if some failed."""
    options = parse(RepackOptions, argv)
    # Imported here, so that a wrong command line is reported before the readers load.
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
