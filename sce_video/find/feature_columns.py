"""Features as a column of a table of videos, with their provenance, and search over it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sce_video.datasets.tables.rows import check_format, table_path
from sce_video.datasets.tables.table import OpenTable, RemoteTable, TableError, cannot, read_table
from sce_video.find.table_store import (
    APPROXIMATE_ROWS,
    FACTS,
    Columns,
    TableRecords,
    header_text,
    vector_index_options,
)

PREFIX = "feature_"
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


def write_features(
    table: str,
    name: str,
    paths: Sequence[str],
    features: np.ndarray,
    header: Mapping[str, Any],
    *,
    approximate: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> int:
    """Write features into the column ``feature_NAME`` of a table of videos; returns its features.

    A new column is one commit: it is there with all features or not at all, and the packets of the
    videos are not written again. An existing column of the same checkpoint and settings keeps its
    features and gets those that are given; in between it is there in its old state. Rows without a
    feature hold null. All features of the table are in memory once.

    Args:
        table: Path or URI of a table of :func:`~sce_video.data_tools.tables.import_videos`.
        name: Letters, digits and ``_``.
        paths: N paths, as the table has them.
        features: (N, D) float.
        header: ``root`` (folder of the original files, may be empty), ``checkpoint`` (``path`` and
            ``sha256``) and ``settings`` (``model``, ``num_clips``, ``num_crops``), as of
            :attr:`~sce_video.find.index.VideoIndex.stored`. Stored as metadata of the column.
        approximate: Make a vector index of the column, whatever its number of rows is.
        storage_options: Of the object store.

    Raises:
        ValueError: A path that is no row, or given twice; features that are not finite; the column
            has features of another checkpoint or of other settings.
        TableError: The table cannot be read or written, or is no table of videos.
    """
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"name a column by letters, digits and _, got {name!r:.80}")
    column = PREFIX + name
    opened = read_table(table, storage_options)
    check_format(table, opened.metadata)
    try:
        _finish(opened, column)
        given = _checked(table, opened, paths, np.asarray(features, dtype=np.float32))
        if column in _names(opened):
            given = {**_stored(table, column, header), **given}
        _write(opened, column, given, header)
        if given and (approximate or len(given) >= APPROXIMATE_ROWS):
            opened.call("make_vector_index", column, vector_index_options(len(given), column))
    except (OSError, RuntimeError) as error:
        if isinstance(error, TableError):
            raise
        raise TableError(cannot("write to", table, error)) from error
    return len(given)


def feature_columns(table: str) -> list[str]:
    """Names of the columns of features of a table."""
    schema = read_table(table).call("schema")
    return [field.name for field in schema if FACTS in (field.metadata or {})]


def open_features(table: str, column: str | None = None) -> TableRecords:
    """A column of features of a table of videos, for search.

    Args:
        table: Path or URI.
        column: Name with or without ``feature_``; None for the only one.

    Raises:
        ValueError: There is no such column, or several and none was named.
    """
    known = feature_columns(table)
    if column is not None and column not in known:
        column = PREFIX + column
    if column is None and len(known) == 1:
        column = known[0]
    if column not in known:
        has = ", ".join(known) or "none"
        what = "name its column of features" if column is None else f"it has no column {column}"
        raise ValueError(f"{table}: {what}; its columns of features: {has}")
    return TableRecords(table, Columns.of_videos(column))


def _names(opened: OpenTable | RemoteTable) -> list[str]:
    return opened.call("schema").names


def _checked(
    table: str, opened: OpenTable | RemoteTable, paths: Sequence[str], features: np.ndarray
) -> dict[str, np.ndarray]:
    """Features by path."""
    if features.ndim != 2 or len(features) != len(paths) or 0 in features.shape:
        raise ValueError(f"{len(paths)} paths do not match features of shape {features.shape}")
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{len(bad)} features hold NaN or infinity, the first is that of {paths[bad[0]]}: the "
            "network that made them has diverged"
        )
    given = {table_path(path): row for path, row in zip(paths, features, strict=True)}
    if len(given) < len(paths):
        raise ValueError(f"{len(paths) - len(given)} of {len(paths)} paths are given twice")
    known = set(opened.call("read", ["path"])["path"].to_pylist())
    strangers = [path for path in given if path not in known]
    if strangers:
        raise ValueError(
            f"{len(strangers)} of {len(paths)} paths are no rows of {table}, the first is "
            f"{strangers[0]}"
        )
    return given


def _stored(table: str, column: str, header: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The features that a column has, by path."""
    records = TableRecords(table, Columns.of_videos(column))
    old, new = records.header, dict(header)
    if old["checkpoint"]["sha256"] != new["checkpoint"]["sha256"] or (
        old["settings"] != new["settings"]
    ):
        raise ValueError(
            f"the column {column} of {table} has features of another checkpoint "
            f"({old['checkpoint']['path']}, sha256 {old['checkpoint']['sha256'][:12]}) or of other "
            "settings: choose another name"
        )
    return dict(zip(records.paths.tolist(), np.asarray(records.features), strict=True))


def _write(
    opened: OpenTable | RemoteTable,
    column: str,
    given: Mapping[str, np.ndarray],
    header: Mapping[str, Any],
) -> None:
    """Write a column beside the old one, then let it take its place."""
    import pyarrow as pa

    matrix = np.stack(list(given.values()))
    kind = pa.list_(pa.float32(), matrix.shape[1])
    values = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), matrix.shape[1])
    exists = column in _names(opened)
    field = pa.field(
        _new(column) if exists else column, kind, metadata={FACTS: header_text(header)}
    )
    schema = pa.schema([pa.field("path", pa.string()), field])
    opened.call("add_columns", "path", pa.table([pa.array(list(given)), values], schema=schema))
    if exists:
        opened.call("drop_column", column)
        opened.call("rename_column", _new(column), column)


def _new(column: str) -> str:
    return f"{column}__new"


def _finish(opened: OpenTable | RemoteTable, column: str) -> None:
    """Finish or undo what an interrupted call has left."""
    names = _names(opened)
    if _new(column) in names:
        if column in names:
            opened.call("drop_column", _new(column))
        else:
            opened.call("rename_column", _new(column), column)
