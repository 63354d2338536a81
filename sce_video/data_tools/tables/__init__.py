"""Making a table of videos: see ``sce-video import`` and docs/tables.md."""

from sce_video.data_tools.tables.fill import (
    RowMaker,
    fill_table,
    import_videos,
    row_sources,
)
from sce_video.data_tools.tables.video_row import RowSource, failed_row, row_identity, video_row
from sce_video.data_tools.tables.writer import (
    ImportOptions,
    ImportResult,
    TableWriter,
    describe_import,
    write_rows,
)

__all__ = [
    "ImportOptions",
    "ImportResult",
    "RowMaker",
    "RowSource",
    "TableWriter",
    "describe_import",
    "failed_row",
    "fill_table",
    "import_videos",
    "row_identity",
    "row_sources",
    "video_row",
    "write_rows",
]
