"""Feature columns in a table of videos: written next to the videos, and opened for search.

A table may have several columns ``feature_NAME``. The metadata of each contain an index header.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np

from sce_video.datasets.tables.row_columns import check_format, table_path
from sce_video.datasets.tables.table import OpenTable, RemoteTable, read_table
from sce_video.find.store import READ_ROWS, IndexHeader, Matrix
from sce_video.find.table_store import (
    APPROXIMATE_ROWS,
    FACTS,
    IndexColumns,
    TableIndex,
    explained,
    feature_array,
    header_facts,
    make_vector_index_of,
)

#: Prefix of the names of feature columns
PREFIX = "feature_"
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


def write_feature_column(
    table: str,
    name: str,
    paths: Sequence[str],
    features: Matrix,
    header: IndexHeader,
) -> int:
    """Write features into the column ``feature_NAME`` of a table, and return their number.

    The column is added in a single commit, so readers never see a part of it, and the packets of
    the videos are not rewritten. If the column exists, with the same checkpoint and settings, the
    new features are added to it. Table rows without a feature contain null. Features are read in
    blocks and collected in a file in the temporary folder.

    Args:
        table: Path or URI of a table of :func:`~sce_video.data_tools.table_fill.import_videos`.
        name: Name of the column without its prefix: letters, digits and ``_``.
        paths: N paths, written as in the table.
        features: (N, D) float features.
        header: Header for the metadata of the column. Its root is the folder of the original
            files, and may be empty.

    Raises:
        ValueError: If a path is not in the table or is given twice, a feature is not finite, or the
            column contains features of another checkpoint or of other settings.
        TableError: If the table cannot be read or written, or is not a table of videos.
    """
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"the name of a column may contain only letters, digits and _, got {name!r:.80}"
        )
    column, unfinished = PREFIX + name, f"{PREFIX}{name}__new"
    opened = read_table(table)
    check_format(table, opened.metadata)
    with explained("write to", table):
        names = opened.call("schema").names
        exists = column in names
        # An interrupted call may have left the new column behind, with or without the old one.
        if unfinished in names and exists:
            opened.call("drop_column", unfinished)
        elif unfinished in names:
            opened.call("rename_column", unfinished, column)
            exists = True
        rows = _rows_of_features(table, opened, paths, features)
        if exists:
            old = open_feature_column(table, column)
            made = old.header
            if (made.sha256, made.settings) != (header.sha256, header.settings):
                raise ValueError(
                    f"the column {column} of {table} contains features of another checkpoint "
                    f"({made.checkpoint}, sha256 {made.sha256[:12]}) or other settings. Choose "
                    "another name"
                )
        new = unfinished if exists else column
        count = _add_column(opened, new, column if exists else None, rows, features, header)
        if exists:  # the new column replaces the old one
            opened.call("drop_column", column)
            opened.call("rename_column", unfinished, column)
        if count >= APPROXIMATE_ROWS:
            make_vector_index_of(opened, column, count)
    return count


def _add_column(
    opened: OpenTable | RemoteTable,
    new: str,
    old: str | None,
    rows: np.ndarray,
    features: Matrix,
    header: IndexHeader,
) -> int:
    """Add a feature column to a table, and return the number of features in it.

    Args:
        opened: Table to which the column is added.
        new: Name of the new column.
        old: Column whose features are copied to rows without a new feature; None for no column.
        rows: (N,) index of the feature for each table row; -1 for none.
        features: (M, D) features.
        header: Header with the checkpoint and settings of the features.
    """
    import pyarrow as pa

    kind = pa.list_(pa.float32(), features.shape[1])
    schema = pa.schema([pa.field(new, kind, metadata=header_facts(header))])
    count = 0
    with tempfile.NamedTemporaryFile(prefix="sce_video_", suffix=".arrow") as file:
        with pa.ipc.new_stream(file, schema) as writer:
            for begin in range(0, len(rows), READ_ROWS):
                some = rows[begin : begin + READ_ROWS]
                there = np.zeros(len(some), dtype=bool)
                values = np.zeros((len(some), features.shape[1]), dtype=np.float32)
                if old is not None:
                    part = {"offset": begin, "limit": len(some)}
                    kept = opened.call("read", [old], part)[old].combine_chunks()
                    there = kept.is_valid().to_numpy(zero_copy_only=False)
                    values[there] = kept.flatten().to_numpy().reshape(-1, values.shape[1])
                values[some >= 0] = features[some[some >= 0]]
                there |= some >= 0
                count += int(there.sum())
                array = feature_array(values, pa.array(~there))
                writer.write_batch(pa.record_batch([array], schema=schema))
        file.flush()
        opened.call("add_columns", file.name)
    return count


def feature_columns(table: str) -> list[str]:
    """Return the names of the feature columns in a table."""
    schema = read_table(table).call("schema")
    return [field.name for field in schema if FACTS.encode() in (field.metadata or {})]


def open_feature_column(table: str, column: str | None = None) -> TableIndex:
    """Open a feature column of a table of videos for search.

    Args:
        table: Path or URI of the table.
        column: Name with or without ``feature_``; None for the only feature column.

    Raises:
        ValueError: If the column does not exist, or there are several and none is given.
    """
    known = feature_columns(table)
    if column is None:
        found, what = known if len(known) == 1 else [], "choose a feature column"
    else:
        found = [name for name in (column, PREFIX + column) if name in known]
        what = f"there is no column {PREFIX}{column}"
    if not found:
        raise ValueError(f"{table}: {what}. Its feature columns are: {', '.join(known) or 'none'}")
    name = found[0]
    columns = IndexColumns(name, "source_size", "source_mtime_ns", f"{name} IS NULL")
    index = TableIndex(Path(table), table, columns)
    index.stamp = index.version, crc32(name.encode())
    return index


def _rows_of_features(
    table: str, opened: OpenTable | RemoteTable, paths: Sequence[str], features: Matrix
) -> np.ndarray:
    """Return the index (N,) of the feature for each table row; -1 for none."""
    if len(features.shape) != 2 or len(features) != len(paths) or 0 in features.shape:
        raise ValueError(f"{len(paths)} paths do not match features of shape {features.shape}")
    blocks = (features[begin : begin + READ_ROWS] for begin in range(0, len(paths), READ_ROWS))
    bad = np.flatnonzero(np.concatenate([~np.isfinite(x).all(axis=1) for x in blocks]))
    if len(bad):
        raise ValueError(
            f"{len(bad)} features contain NaN or infinity, the first for {paths[bad[0]]}. The "
            "network that computed them has diverged"
        )
    given = {table_path(path): number for number, path in enumerate(paths)}
    if len(given) < len(paths):
        raise ValueError(f"{len(paths) - len(given)} of {len(paths)} paths are given twice")
    known = opened.call("read", ["path"])["path"].to_pylist()
    unknown = sorted(given.keys() - known, key=given.__getitem__)
    if unknown:
        raise ValueError(
            f"{len(unknown)} of {len(paths)} paths are not in {table}, for example {unknown[0]}"
        )
    return np.array([given.get(path, -1) for path in known])
