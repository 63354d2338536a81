"""Reading of indexes and feature files, whatever their format.

An index is a folder with a file or a Lance table, or a feature column in a table of videos.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sce_video.datasets.sources import is_table_folder
from sce_video.datasets.video_list import read_annotation_list
from sce_video.find.feature_columns import open_feature_column
from sce_video.find.store import FEATURES, TABLE, FileStore, IndexStore, VideoIndex
from sce_video.find.table_store import TableStore
from sce_video.inference.features import Features, read_features
from sce_video.utils.records import at
from sce_video.utils.storage import STORES, trusted_stores

#: File with the records of an unfinished run, in the folder of an index.
RECORDS = "records.sqlite"
#: Stores of an index by file name. The table comes first, because an interrupted conversion leaves
#: the file next to it.
INDEX_STORES: dict[str, type[IndexStore]] = {TABLE: TableStore, FEATURES: FileStore}
#: Largest number of paths in an error message.
_SHOWN = 3


def find_store(folder: Path) -> IndexStore | None:
    """Return the store of an index; None if there is no index."""
    found = (kind(folder / name) for name, kind in INDEX_STORES.items() if (folder / name).exists())
    return next(found, None)


def index_mismatches(
    stored: Mapping[str, object], current: Mapping[str, object], prefix: str = ""
) -> list[str]:
    """Return a phrase such as ``num_clips is 4 in the index, now 2`` for each different setting."""
    differences = []
    for name in sorted(set(stored) | set(current)):
        old, new = stored.get(name), current.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            differences += index_mismatches(old, new, f"{prefix}{name}.")
        elif old != new:
            differences.append(f"{prefix}{name} is {old} in the index, now {new}")
    return differences


def real_path(root: str | os.PathLike[str]) -> str:
    """Resolve the links in the path of a folder or table; leave the URI of a table unchanged."""
    name = os.fspath(root)
    return name.rstrip("/") if "://" in name else os.path.realpath(name)


def read_index(
    folder: str | os.PathLike, column: str | None = None, root: str | None = None
) -> VideoIndex:
    """Open an index for search.

    Args:
        folder: Folder of an index, or a table of videos with a feature column.
        column: Feature column to use if the table has several.
        root: Table in an object store that the index may refer to.

    Raises:
        FileNotFoundError: If there is no index, or the run that builds it has not finished.
        ValueError: If ``features.npz`` or ``features.lance`` does not contain an index, or the
            videos are in an object store that ``SCE_VIDEO_STORES`` does not list.
        MissingPackageError: If the index is a table and Lance is not installed.
    """
    if is_table_folder(os.fspath(folder)):
        return open_feature_column(os.fspath(folder), column)
    if column is not None:
        raise ValueError(f"{os.fspath(folder)} is not a table of videos. Remove --column")
    folder = Path(folder)
    store = find_store(folder)
    if store is None:
        begun = (folder / RECORDS).exists()
        resume = ". A run was interrupted. Run the same command again to resume it" if begun else ""
        raise FileNotFoundError(
            f"there is no index in {folder}, because it contains no {FEATURES}{resume}"
        )
    index = store.open()
    # An untrusted index must not cause requests.
    if "://" in index.root and index.root not in trusted_stores(root):
        raise ValueError(
            f"the videos of the index {folder} are in an object store, which is opened only on "
            f"request. If you trust it, set {STORES}={index.root}"
        )
    return index


def read_videos(
    source: str | os.PathLike,
    labels: str | os.PathLike | None = None,
    class_file: str | os.PathLike | None = None,
    column: str | None = None,
) -> Features:
    """Read all features of an index or a feature file, with paths and labels.

    If a list of labels is given, the labels come from the list. Otherwise they come from the
    feature file or, for an index, from the first-level sub-folders.

    Args:
        source: Folder of an index, table of videos, or ``.npz`` file of ``sce-video embed``.
        labels: List with ``path label`` on every line. A path is absolute or written as in the
            source.
        class_file: File with the names of the labels in the list, one per line.
        column: Feature column to use if the source is a table of videos with several.

    Raises:
        FileNotFoundError: If the source does not exist.
        ValueError: If the source is neither an index nor a feature file, contains no videos or no
            paths, or the list contains none of the videos.
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
            raise ValueError("class names need a list of labels. Give the list as well (--labels)")
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
    """Read an index, and label its videos by their first-level sub-folders."""
    index = read_index(folder, column)
    folders = [path.split(os.sep)[0] if os.sep in path else "" for path in index.paths]
    classes = sorted({*folders} - {""})
    label = {"": -1} | {name: number for number, name in enumerate(classes)}
    return Features(
        values=np.asarray(index.features),
        paths=index.paths,
        labels=np.array([label[name] for name in folders], dtype=np.int64),
        failures=index.failures,
        provenance={
            "checkpoint": index.header.to_dict()["checkpoint"],
            "root": index.root,
            "classes": classes,
        },
        source=os.fspath(folder),
    )


def _of_features(file: str) -> Features:
    """Read a feature file, and name its videos relative to the root of the dataset."""
    if Path(file).suffix != ".npz":
        kind = "is not the folder of an index" if os.path.exists(file) else "does not exist"
        raise ValueError(
            f"{file} {kind}. Give the folder that sce-video index wrote, or the .npz file that "
            "sce-video embed wrote"
        )
    found = read_features(file)
    if not all(found.paths):
        raise ValueError(f"{file} contains features without a path, so nothing can be shown")
    if at(found.provenance, "index", dict):  # The paths are relative to the root of the index.
        if Path(file).name != FEATURES:
            raise ValueError(f"{file} belongs to an index. Give the folder of the index instead")
        return _of_index(Path(file).parent)
    root = at(found.provenance, "test.data_root", str) or ""
    root = os.path.abspath(root) if root else ""
    below = f"{root}{os.sep}"
    files = [os.path.abspath(path) for path in found.paths]
    paths = [os.path.relpath(f, root) if root and f.startswith(below) else f for f in files]
    classes = at(found.provenance, "test.classes", list) or []
    named = {"root": root, "classes": classes}
    return replace(found, paths=paths, provenance={**found.provenance, **named})
