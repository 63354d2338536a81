"""``sce-video export``, which writes networks, videos with features, or segments."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sce_video.datasets.named_files import check_exists, check_index, check_out, check_run
from sce_video.options.connect import NETWORK_FORMATS, ExportOptions
from sce_video.utils.command import progress_bar

if TYPE_CHECKING:
    from sce_video.interop.export.networks import NetworkReport
    from sce_video.interop.export.segment_formats import ExportedSegments
    from sce_video.interop.export.viewers import VideosReport


@dataclass(frozen=True)
class ExportResult:
    """Result of an export, in which exactly one field is not None.

    Attributes:
        network: Report on an exported network.
        segments: Report on exported segments.
        videos: Report on an exported index or feature file.
    """

    network: NetworkReport | None = None
    segments: ExportedSegments | None = None
    videos: VideosReport | None = None


def export(options: ExportOptions) -> ExportResult:
    """Write a network, videos with features, or segments for another program.

    Raises:
        FileExistsError: If the output already exists.
        FileNotFoundError: If the source or a list is missing.
        ValueError: If the source contains nothing to export, or a network cannot be traced.
        MissingPackageError: If a package for the format is not installed.
        WriteError: If the output cannot be written.
    """
    check_out(options.out)
    if os.path.lexists(options.out):
        raise FileExistsError(f"{options.out} already exists. Remove it, or give a different --out")
    if options.to in NETWORK_FORMATS:
        check_run(options.source)
        # Import these modules only now, so that wrong names are reported before torch loads.
        from sce_video.interop.export.networks import export_network
        from sce_video.interop.pretrained import load_network

        network = load_network(options.source, options.config, "cpu")
        return ExportResult(network=export_network(network, options.to, options.out))
    if options.of_segments:
        check_exists(options.source, "file of segments")
        from sce_video.interop.export.segment_formats import export_segments

        written = export_segments(options.source, options.to, options.out, options.data_root)
        return ExportResult(segments=written)
    check_exists(options.source, "index or feature file")
    check_exists(options.labels, "annotation file")
    check_exists(options.classes, "file of class names")
    if os.path.isdir(options.source):
        check_index(options.source)
    from sce_video.interop.export.viewers import export_videos

    with progress_bar("reading thumbnails") as count:
        return ExportResult(videos=export_videos(options, count))
