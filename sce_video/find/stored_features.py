"""Features with their videos, labels and network, from a search index or a feature file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from sce_video.datasets.video_list import read_annotation_list
from sce_video.find.index import read_index
from sce_video.find.store import FEATURES
from sce_video.inference.features import Features, read_features

#: Largest number of paths in an error message
_SHOWN = 3


def read_videos(
    source: str | os.PathLike,
    labels: str | os.PathLike | None = None,
    class_file: str | os.PathLike | None = None,
    column: str | None = None,
) -> Features:
    """Read the videos of a search index or a feature file.

    Labels come from the list, if one is given. Otherwise they come from the feature file or, for an
    index, from the first-level sub-folders.

    Args:
        source: Folder of :func:`~sce_video.find.index.build_index`, or an .npz file of
            ``sce-video embed``.
        labels: List with ``path label`` on every line. Paths are written as in the source, or
            absolute.
        class_file: Names of the list's labels, one per line.
        column: Feature column to use if the source is a table of videos with several.

    Raises:
        FileNotFoundError: If the source does not exist.
        ValueError: If the source is neither an index nor a feature file, contains no videos or no
            paths, or the list contains none of its videos.
    """
    name = os.fspath(source)
    if os.path.isdir(source):
        found = _of_index(source, column)
    elif column is not None:
        raise ValueError(f"{name} is not a table of videos, because it has no column {column!r}")
    else:
        found = _of_features(name)
    if len(found) == 0:
        raise ValueError(
            f"{name} contains no video that could be decoded, so there is nothing to export"
        )
    if labels is None:
        if class_file is not None:
            raise ValueError(
                "class names belong to a list of labels. Give the list, too (--labels)"
            )
        return found
    listed = read_annotation_list(
        os.fspath(labels), class_file=None if class_file is None else os.fspath(class_file)
    )
    of_path = {listed.path(i): int(label) for i, label in enumerate(listed.labels)}
    both = zip(found.paths, found.files, strict=True)
    given = np.array([of_path.get(path, of_path.get(file, -1)) for path, file in both])
    if (given < 0).all():
        some = ", ".join(list(of_path)[:_SHOWN])
        raise ValueError(
            f"{os.fspath(labels)} gives no label to any of the {len(found)} videos of {name}. The "
            f"list names {some}, but the videos are {', '.join(found.paths[:_SHOWN])}"
        )
    return replace(
        found, labels=given, provenance={**found.provenance, "classes": [*listed.classes]}
    )


def _of_index(folder: str | os.PathLike, column: str | None = None) -> Features:
    index = read_index(folder, column)
    names = [path.split(os.sep)[0] if os.sep in path else None for path in index.paths]
    classes = sorted({name for name in names if name is not None})
    numbers = {name: number for number, name in enumerate(classes)}
    return Features(
        values=np.asarray(index.features),
        paths=index.paths,
        labels=np.array([numbers.get(str(name), -1) for name in names], dtype=np.int64),
        failures=index.failures,
        provenance={
            "checkpoint": index.header.to_dict()["checkpoint"],
            "root": index.root,
            "classes": classes,
        },
        source=os.fspath(folder),
    )


def _of_features(file: str) -> Features:
    if Path(file).suffix != ".npz":
        kind = "is not the folder of an index" if os.path.exists(file) else "does not exist"
        raise ValueError(
            f"{file} {kind}. Give the folder that sce-video index wrote, or the .npz file that "
            "sce-video embed wrote"
        )
    found = read_features(file)
    if not all(found.paths):
        raise ValueError(f"{file} contains features without a path, so nothing can be shown")
    if isinstance(found.provenance.get("index"), dict):  # its paths are relative to its root
        if Path(file).name != FEATURES:
            raise ValueError(f"{file} is a file of an index. Give the index's folder")
        return _of_index(Path(file).parent)
    test = found.provenance.get("test")
    test = test if isinstance(test, dict) else {}
    root = os.path.abspath(str(test["data_root"])) if test.get("data_root") else ""
    files, classes = [os.path.abspath(path) for path in found.paths], test.get("classes")
    below = f"{root}{os.sep}"
    paths = [os.path.relpath(f, root) if root and f.startswith(below) else f for f in files]
    named = {"root": root, "classes": classes if isinstance(classes, list) else []}
    return replace(found, paths=paths, provenance={**found.provenance, **named})
