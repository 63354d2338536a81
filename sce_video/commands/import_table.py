"""``sce-video import``. Its function is ``import_videos``, because Python reserves ``import``."""

from __future__ import annotations

from collections.abc import Sequence

from sce_video.options.command_line import parse
from sce_video.options.prepare import ImportOptions
from sce_video.utils.command import RESUMABLE, command


@command(interrupted=RESUMABLE)
def main(argv: Sequence[str] | None = None) -> int:
    """Import the videos and return the exit status, 1 if some failed."""
    options = parse(ImportOptions, argv)
    # Imported here, so that a wrong command line is reported before the readers load.
    from sce_video.data_tools.table_fill import import_videos
    from sce_video.data_tools.table_writer import describe_import

    result = import_videos(options)
    print(describe_import(result, options.table))
    return 0 if result.complete else 1
