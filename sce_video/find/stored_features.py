"""Features with their videos, labels and network: of a search index, or of a feature file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets.video_list import read_annotation_list
from sce_video.evaluation.feature_files import load_features
from sce_video.find.index import read_index
from sce_video.find.store import FEATURES

#: Paths that an error message names at most.
_SHOWN = 3


@dataclass(frozen=True, eq=False)
class ExportedVideos:
    """Videos with their features.

    Attributes:
        source: The index or the feature file.
        paths: N names: relative to the folder of the videos where that is known.
        files: N absolute paths.
        labels: N names of classes; None for a video without one.
        features: (N, D) float32, memory-mapped if large.
        checkpoint: Path of the network's weights; empty if it is not known.
        root: The folder, or table, that ``paths`` are relative to; empty if it is not known.
        failures: (path, reason) of the videos without features, which could not be decoded.
    """

    source: str
    paths: list[str]
    files: list[str]
    labels: list[str | None]
    features: np.ndarray
    checkpoint: str
    root: str = ""
    failures: list[tuple[str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def classes(self) -> list[str]:
        """Names of the labels that occur, sorted."""
        return sorted({label for label in self.labels if label is not None})


def read_videos(
    source: str | os.PathLike,
    labels: str | os.PathLike | None = None,
    class_file: str | os.PathLike | None = None,
    column: str | None = None,
) -> ExportedVideos:
    """The videos of a search index or of a feature file.

    Labels are those of a list; else those of the feature file; else, of an index, the first-level
    sub-folders.

    Args:
        source: Folder of :func:`~sce_video.find.index.build_index`, or an .npz file of
            ``sce-video embed``.
        labels: List with ``path label`` on every line; paths as in the source, or absolute.
        class_file: Names of the labels of the list, one per line.
        column: Of features, where the source is a table of videos with several.

    Raises:
        FileNotFoundError: no such source.
        ValueError: neither an index nor a feature file; it holds no video or no paths; the list
            names no video of it.
    """
    name = os.fspath(source)
    if os.path.isdir(source):
        found = _of_index(source, column)
    elif column is not None:
        raise ValueError(f"{name} is no table of videos: it has no column {column!r}")
    else:
        found = _of_features(name)
    if len(found) == 0:
        raise ValueError(f"{name} holds no video that could be decoded: nothing to export")
    if labels is None:
        if class_file is not None:
            raise ValueError(
                "names of classes are those of a list of labels: give it too (--labels)"
            )
        return found
    listed = read_annotation_list(
        os.fspath(labels), class_file=None if class_file is None else os.fspath(class_file)
    )
    names = _named(listed.labels.tolist(), listed.classes)
    of_path = {listed.path(i): name for i, name in enumerate(names)}
    both = zip(found.paths, found.files, strict=True)
    given = [of_path.get(path, of_path.get(file)) for path, file in both]
    if all(label is None for label in given):
        some = ", ".join(list(of_path)[:_SHOWN])
        raise ValueError(
            f"{os.fspath(labels)} gives no label to any of the {len(found)} videos of {name}: it "
            f"names {some}, they are {', '.join(found.paths[:_SHOWN])}"
        )
    return replace(found, labels=given)


def _of_index(folder: str | os.PathLike, column: str | None = None) -> ExportedVideos:
    index = read_index(folder, column)
    paths = index.paths
    return ExportedVideos(
        source=os.fspath(folder),
        paths=paths,
        files=[index.file(path) for path in paths],
        labels=[path.split(os.sep)[0] if os.sep in path else None for path in paths],
        features=np.asarray(index.features),
        checkpoint=index.header.checkpoint,
        root=index.root,
        failures=index.failures,
    )


def _of_features(file: str) -> ExportedVideos:
    if Path(file).suffix != ".npz":
        kind = "is no folder of an index" if os.path.exists(file) else "does not exist"
        raise ValueError(
            f"{file} {kind}: give the folder of sce-video index, or the .npz file of "
            "sce-video embed"
        )
    rows, provenance = load_features(file)
    if not all(rows.paths):
        raise ValueError(f"{file} has features without a path: nothing could be shown")
    if isinstance(provenance.get("index"), dict):  # of an index: paths are relative to its root
        if Path(file).name != FEATURES:
            raise ValueError(f"{file} is a file of an index: give the index's folder")
        return _of_index(Path(file).parent)
    test, checkpoint = (
        value if isinstance(value := provenance.get(name), dict) else {}
        for name in ("test", "checkpoint")
    )
    root = os.path.abspath(str(test["data_root"])) if test.get("data_root") else ""
    files, names = [os.path.abspath(path) for path in rows.paths], test.get("classes")
    below = f"{root}{os.sep}"
    return ExportedVideos(
        source=file,
        paths=[os.path.relpath(f, root) if root and f.startswith(below) else f for f in files],
        files=files,
        labels=_named(rows.labels.tolist(), names if isinstance(names, list) else ()),
        features=rows.features.numpy(),
        checkpoint=str(checkpoint.get("path") or ""),
        root=root,
        failures=rows.failures,
    )


def _named(labels: Sequence[int], names: Sequence[Any]) -> list[str | None]:
    """Names of labels, the number of one without a name, None for -1."""
    return [
        None if label < 0 else str(names[label]) if label < len(names) else str(label)
        for label in labels
    ]
