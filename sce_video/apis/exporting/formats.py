"""Exports the videos of an index or of a feature file to the viewers that people have."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sce_video.apis.exporting.bundle import Bundle
from sce_video.apis.exporting.fiftyone import write_fiftyone
from sce_video.apis.exporting.parquet import import_pyarrow, write_parquet
from sce_video.apis.exporting.places import neighbours, plane
from sce_video.apis.exporting.projector import write_projector
from sce_video.apis.exporting.source import read_videos

FORMATS: dict[str, Callable[[Path, Bundle], None]] = {
    "parquet": write_parquet,
    "projector": write_projector,
    "fiftyone": write_fiftyone,
}
#: Formats of networks, see :mod:`sce_video.apis.exporting.network_files`.
NETWORK_FORMATS = ("pretrained", "onnx", "program")


@dataclass(frozen=True)
class ExportReport:
    """What was written.

    Attributes:
        path: The file or folder.
        videos: Number of videos.
        labelled: Of these, with a label.
        map_name: "PCA", "UMAP" or "t-SNE".
        failures: (path, reason) of the videos without a thumbnail.
        notes: Remarks, for example on videos left out.
    """

    path: Path
    videos: int
    labelled: int
    map_name: str
    failures: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def export(
    source: str | os.PathLike,
    to: str,
    out: str | os.PathLike,
    *,
    labels: str | os.PathLike | None = None,
    class_file: str | os.PathLike | None = None,
    thumbnail_side: int = 128,
    num_neighbours: int = 10,
    with_embedding: bool = True,
    workers: int = 0,
    on_video: Callable[[int, bool], None] | None = None,
) -> ExportReport:
    """Write videos with their paths, labels, map, thumbnails and features.

    Args:
        source: Folder of an index, or an .npz file of features.
        to: "parquet", "projector" or "fiftyone".
        out: File (parquet) or folder (the others) to write.
        labels: List with ``path label`` on every line; None for the labels of the source.
        class_file: Names of the labels of the list.
        thumbnail_side: Longest side of a thumbnail, pixels; 0 writes none. FiftyOne makes its own.
        num_neighbours: Nearest neighbours of each video in a parquet file; 0 for none.
        with_embedding: Whether the features are written; the projector needs them.
        workers: Processes that read thumbnails; 0 reads in this one.
        on_video: Called after every thumbnail with the number of videos and whether it failed.

    Raises:
        ValueError: an unknown format, a number out of range, or see
            :func:`~sce_video.apis.exporting.source.read_videos`.
        FileNotFoundError: no such source.
        FileExistsError: there is something at ``out``.
        MissingPackageError: pyarrow is not installed.
        WriteError: ``out`` cannot be written.
    """
    out = Path(out)
    if to not in FORMATS:
        raise ValueError(f"the format must be one of {', '.join(FORMATS)}, got {to!r}")
    for name, value in (("thumbnail_side", thumbnail_side), ("num_neighbours", num_neighbours)):
        if not 0 <= value <= 1024:
            raise ValueError(f"{name} must be from 0 to 1024, got {value}")
    if to == "parquet" and out.suffix != ".parquet":
        raise ValueError(f"a parquet file must end in .parquet to be read as one, got {str(out)!r}")
    if os.path.lexists(out):
        raise FileExistsError(f"{out} exists: remove it, or give another --out")
    if to == "parquet":
        import_pyarrow()  # before the work, not after it
    videos = read_videos(source, labels, class_file)
    map_name, points = plane(videos.features)
    rows, distances = neighbours(videos.features, num_neighbours if to == "parquet" else 0)
    bundle = Bundle(
        videos=videos,
        map_name=map_name,
        points=points,
        neighbour_rows=rows,
        distances=distances,
        thumbnail_side=thumbnail_side,
        workers=workers,
        with_embedding=with_embedding,
        on_video=lambda failed: on_video(len(videos), failed) if on_video is not None else None,
    )
    FORMATS[to](out, bundle)
    labelled = sum(label is not None for label in videos.labels)
    return ExportReport(out, len(videos), labelled, map_name, bundle.failures, bundle.notes)
