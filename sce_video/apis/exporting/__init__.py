"""Features with paths, labels, a map and thumbnails, as files of viewers."""

from sce_video.apis.exporting.formats import FORMATS, ExportReport, export

__all__ = ["FORMATS", "ExportReport", "export"]
