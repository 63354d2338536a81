"""Networks for other runtimes; features with paths, labels and a map as files of viewers."""

from sce_video.interop.export.viewers import FORMATS, NETWORK_FORMATS, ExportReport, export

__all__ = ["FORMATS", "NETWORK_FORMATS", "ExportReport", "export"]
