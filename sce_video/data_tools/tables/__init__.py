"""Making a table of videos: see ``sce-video import`` and docs/tables.md."""

from sce_video.data_tools.tables.fill_table import RowMaker, fill_table
from sce_video.data_tools.tables.import_videos import import_videos, row_sources
from sce_video.data_tools.tables.video_row import RowSource, failed_row, row_identity, video_row
from sce_video.data_tools.tables.writer import (
    ImportOptions,
    ImportResult,
    TableWriter,
    summarize,
    write_rows,
)

__all__ = [
    "ImportOptions",
    "ImportResult",
    "RowMaker",
    "RowSource",
    "TableWriter",
    "failed_row",
    "fill_table",
    "import_videos",
    "row_identity",
    "row_sources",
    "summarize",
    "video_row",
    "write_rows",
]
