"""Read an index, whatever it is kept in: a file, a Lance table, a column of a table of videos."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sce_video.datasets.sources import is_table_folder
from sce_video.find.feature_columns import open_feature_column
from sce_video.find.store import FEATURES, TABLE, FileStore, IndexStore, VideoIndex
from sce_video.find.table_store import TableStore
from sce_video.utils.storage import STORES, trusted_stores

#: Records of unfinished runs in the folder of an index.
RECORDS = "records.sqlite"
#: Stores of an index. A table is preferred to a file, which stays next to it if a conversion was
#: interrupted.
INDEX_STORES: dict[str, type[IndexStore]] = {TABLE: TableStore, FEATURES: FileStore}


def find_store(folder: Path) -> IndexStore | None:
    """Return the store of an index; None if there is no index."""
    found = (kind(folder / name) for name, kind in INDEX_STORES.items() if (folder / name).exists())
    return next(found, None)


def index_mismatches(
    stored: dict[str, Any], current: dict[str, Any], prefix: str = ""
) -> list[str]:
    """Return ``num_clips is 4 in the index, now 2`` for every setting that differs."""
    differences = []
    for name in sorted(set(stored) | set(current)):
        old, new = stored.get(name), current.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            differences += index_mismatches(old, new, f"{prefix}{name}.")
        elif old != new:
            differences.append(f"{prefix}{name} is {old} in the index, now {new}")
    return differences


def real_path(root: str | os.PathLike[str]) -> str:
    """Return a folder or table without links; the URI of a table in an object store as it is."""
    name = os.fspath(root)
    return name.rstrip("/") if "://" in name else os.path.realpath(name)


def read_index(
    folder: str | os.PathLike, column: str | None = None, root: str | None = None
) -> VideoIndex:
    """Read an index.

    Args:
        folder: Folder of an index; or a table of videos with a column of features.
        column: Column of a table with several columns of features.
        root: Table in an object store whose index may be opened.

    Raises:
        FileNotFoundError: If there is none, or its first run has not finished.
        ValueError: If ``features.npz`` is not the file of an index, or ``features.lance`` not its
            table; or its videos are in an object store that ``SCE_VIDEO_STORES`` does not name.
        MissingPackageError: If it is kept in a table, and Lance is not installed.
    """
    if is_table_folder(os.fspath(folder)):
        return open_feature_column(os.fspath(folder), column)
    if column is not None:
        raise ValueError(f"{os.fspath(folder)} is not a table of videos. Remove --column")
    folder = Path(folder)
    store = find_store(folder)
    if store is None:
        begun = (folder / RECORDS).exists()
        unfinished = " (an interrupted run: run it again to resume)" if begun else ""
        raise FileNotFoundError(f"there is no index in {folder}: no {FEATURES}{unfinished}")
    index = store.open()
    # An untrusted index must not cause requests.
    if "://" in index.root and index.root not in trusted_stores(root):
        raise ValueError(
            f"the videos of the index {folder} are in an object store, which is opened only on "
            f"request. If you trust it, set {STORES}={index.root}"
        )
    return index
