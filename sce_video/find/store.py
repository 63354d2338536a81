"""Where the features of an index are kept: in a file, or in a Lance table.

A store has ``exists``, ``open`` (for search), ``read`` (header and records, for an update),
``write``, ``make_vector_index`` and ``remove``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets.tables.table import TableError, cannot, make_table, read_table
from sce_video.find.index_files import (
    FEATURES,
    FileRecord,
    StoredRecords,
    read_records,
    read_stored,
    remove_index,
    write_records,
)
from sce_video.find.table_store import (
    APPROXIMATE_ROWS,
    FACTS,
    FEATURE,
    FEWEST_INDEXED,
    KEPT,
    SPAN,
    TABLE,
    Columns,
    TableRecords,
    header_text,
    open_table,
    path_to_text,
    read_header,
    records_of,
    vector_index_options,
)

#: What Lance writes into the folder of a table.
_PARTS = {"data", "_versions", "_transactions", "_deletions", "_indices"}
_BATCH_BYTES = 128 * 2**20  # of rows written at a time
_DELETED_AT_ONCE = 1000


class NpzStore:
    """``features.npz`` of an index.

    Args:
        folder: Of the index.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / FEATURES

    def exists(self) -> bool:
        """Whether there is such a file."""
        return self.file.is_file()

    def open(self) -> StoredRecords:
        """The file for search."""
        return read_stored(self.file)

    def read(self) -> tuple[dict[str, Any], dict[str, FileRecord]]:
        """See :func:`~sce_video.find.index_files.read_records`."""
        return read_records(self.file)

    def write(self, header: dict[str, Any], records: dict[str, FileRecord]) -> None:
        """See :func:`~sce_video.find.index_files.write_records`."""
        write_records(self.file, header, records)

    def make_vector_index(self, wanted: bool) -> None:
        """Does nothing: a file is searched exactly."""

    def remove(self) -> None:
        """See :func:`~sce_video.find.index_files.remove_index`."""
        remove_index(self.file.parent)


class TableStore:
    """The table of an index as :func:`~sce_video.find.index.build_index` uses it.

    Args:
        folder: Of the index.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / TABLE
        self._known: dict[str, FileRecord] = {}

    def exists(self) -> bool:
        """Whether there is a table."""
        return self.file.is_dir()

    def open(self) -> TableRecords:
        """The table for search."""
        return TableRecords(self.file)

    def read(self) -> tuple[dict[str, Any], dict[str, FileRecord]]:
        """Header and records; features stay in the table, their place is taken by :data:`KEPT`.

        Raises:
            ValueError: It is no table of an index.
        """
        opened = open_table(self.file)
        header, _ = read_header(self.file, opened)
        try:
            self._known = dict(
                sorted(records_of(opened.call("read", Columns().state), Columns(), KEPT).items())
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(cannot("read", str(self.file), error)) from error
        return header, dict(self._known)

    def write(self, header: Mapping[str, Any], records: Mapping[str, FileRecord]) -> None:
        """Make the table, or bring it to these records.

        Rows of records that :meth:`read` has returned are not written again. A new table is there
        only when it is complete; an update that is interrupted leaves some of its rows changed,
        and the next one changes the rest.

        Raises:
            ValueError: A feature holds NaN or infinity; nothing is written.
            TableError: The table cannot be written.
        """
        changed = {p: r for p, r in records.items() if r is not self._known.get(p)}
        size = _feature_size(changed)
        try:
            if self.exists() and size in (None, self._size_of_features()):
                self._update(header, records, changed)
            else:
                self._make(header, records, size or 1)
        except (OSError, RuntimeError) as error:
            if isinstance(error, TableError):
                raise
            raise TableError(cannot("write to", str(self.file), error)) from error
        self._known = dict(records)

    def _size_of_features(self) -> int | None:
        """Size of the features in the table; None if it has none, and so is to be made again."""
        held = any(r.feature is not None for r in self._known.values())
        return read_header(self.file, open_table(self.file))[1] if held else None

    def _make(
        self, header: Mapping[str, Any], records: Mapping[str, FileRecord], size: int
    ) -> None:
        unfinished = self.file.with_name(f"{TABLE}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        schema = table_schema(header, size)
        table = make_table(str(unfinished), schema)
        for rows in _batches(records, size, schema):
            table.call("append", rows)
        del table
        if self.exists():
            shutil.rmtree(self.file)
        os.replace(unfinished, self.file)

    def _update(
        self,
        header: Mapping[str, Any],
        records: Mapping[str, FileRecord],
        changed: Mapping[str, FileRecord],
    ) -> None:
        table = open_table(self.file)
        stored, size = read_header(self.file, table)
        if stored != header:
            table.call("describe", FEATURE, {FACTS.decode(): header_text(header)})
        schema = table_schema(header, size)
        gone = [path for path in self._known if path not in records]
        windows = SPAN[0] in schema.names
        if windows:  # a path has many rows: the old ones go first
            gone += [path for path in changed if path in self._known]
            self._delete(table, gone)
        for rows in _batches(changed, size, schema):
            if windows:
                table.call("append", rows)
            else:
                table.call("replace", "path", rows)
        if not windows:
            self._delete(table, gone)
        table.call("tidy")

    @staticmethod
    def _delete(table: Any, paths: list[str]) -> None:
        gone = [path_to_text(path) for path in paths]
        for begin in range(0, len(gone), _DELETED_AT_ONCE):
            some = gone[begin : begin + _DELETED_AT_ONCE]
            names = ", ".join("'" + text.replace("'", "''") + "'" for text in some)
            table.call("delete", f"path IN ({names})")

    def make_vector_index(self, wanted: bool) -> None:
        """Make or extend the vector index where one is wanted, there, or worth its time."""
        table = open_table(self.file)
        try:
            held, rows = table.call("vector_index", FEATURE), table.call("count", None)
            if held is None and rows >= (FEWEST_INDEXED if wanted else APPROXIMATE_ROWS):
                table.call("make_vector_index", FEATURE, vector_index_options(rows))
            elif held is not None and held < rows:
                table.call("extend_vector_index")
        except (OSError, RuntimeError, ValueError) as error:
            raise TableError(cannot("index", str(self.file), error)) from error

    def remove(self) -> None:
        """Remove the table.

        Raises:
            ValueError: It is no table of an index.
        """
        if not self.exists():
            return
        if not set(os.listdir(self.file)) <= _PARTS or _opens(self.file):
            read_header(self.file, open_table(self.file))
        shutil.rmtree(self.file)


def _opens(file: Path) -> bool:
    """Whether a table can be opened: one that was half written or half copied cannot."""
    try:
        read_table(str(file))
    except TableError:
        return False
    return True


def table_schema(header: Mapping[str, Any], size: int) -> Any:
    """The ``pyarrow.Schema`` of the table of an index, with features of ``size`` numbers."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("path", pa.string()),
            pa.field(FEATURE, pa.list_(pa.float32(), size), metadata={FACTS: header_text(header)}),
            pa.field("size", pa.int64()),
            pa.field("mtime_ns", pa.int64()),
            pa.field("failure", pa.string()),
            *(pa.field(name, pa.float64()) for name in SPAN if header["settings"].get("windows")),
        ]
    )


def _feature_size(records: Mapping[str, FileRecord]) -> int | None:
    """Size of the features of records; None without one.

    Raises:
        ValueError: One holds NaN or infinity.
    """
    size = None
    for path, record in records.items():
        if record.feature is not None:
            feature = record.read()
            if not np.isfinite(feature).all():
                raise ValueError(
                    f"the feature of {path} holds NaN or infinity: the network that made it has "
                    "diverged"
                )
            size = feature.shape[-1]
    return size


def _batches(records: Mapping[str, FileRecord], size: int, schema: Any) -> Iterator[Any]:
    """Tables of rows, some at a time; all rows of a file are in one of them."""
    step = max(1, _BATCH_BYTES // (4 * size))
    some: list[_Row] = []
    for path, record in records.items():
        own = _rows_of(path, record)
        if some and len(some) + len(own) > step:
            yield _table_of(some, size, schema)
            some = []
        some += own
    if some:
        yield _table_of(some, size, schema)


@dataclass(frozen=True)
class _Row:
    """A row of the table: of a file, of a window, or why some of a file is missing."""

    path: str
    record: FileRecord
    feature: np.ndarray | None
    failure: str = ""
    start: float | None = None
    end: float | None = None


def _rows_of(path: str, record: FileRecord) -> list[_Row]:
    if record.feature is None:
        return [_Row(path, record, None, record.reason or "unknown")]
    if record.spans is None:
        return [_Row(path, record, record.read())]
    spans = zip(record.read(), record.spans.tolist(), strict=True)
    rows = [_Row(path, record, feature, "", *span) for feature, span in spans]
    return rows + ([_Row(path, record, None, record.reason)] if record.reason else [])


def _table_of(rows: list[_Row], size: int, schema: Any) -> Any:
    import pyarrow as pa

    matrix = np.zeros((len(rows), size), dtype=np.float32)
    for i, row in enumerate(rows):
        if row.feature is not None:
            matrix[i] = row.feature
    bad = pa.array([row.feature is None for row in rows])
    columns = {
        "path": [path_to_text(row.path) for row in rows],
        FEATURE: pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), size, mask=bad),
        "size": pa.array([row.record.size for row in rows], pa.int64()),
        "mtime_ns": pa.array([row.record.mtime_ns for row in rows], pa.int64()),
        "failure": [row.failure for row in rows],
    }
    if SPAN[0] in schema.names:
        columns["start"] = pa.array([row.start for row in rows], pa.float64())
        columns["end"] = pa.array([row.end for row in rows], pa.float64())
    return pa.table(columns)


IndexStore = NpzStore | TableStore


def find_store(folder: Path) -> IndexStore | None:
    """What an index is kept in; None if there is no index.

    A table counts more than a file, which remains beside it where a conversion was interrupted.
    """
    stores: list[IndexStore] = [TableStore(folder), NpzStore(folder)]
    return next((store for store in stores if store.exists()), None)


def choose_store(folder: Path, table: bool) -> IndexStore:
    """What an index is to be kept in: a table, if it was asked for now or before."""
    wanted = TableStore(folder)
    return wanted if table or wanted.exists() else NpzStore(folder)


def remove_stores(folder: Path, kept: IndexStore | None = None) -> None:
    """Remove what an index is kept in, but for the store of the kind of ``kept``.

    Raises:
        ValueError: It is not that of an index; the file is left alone.
    """
    for store in (NpzStore(folder), TableStore(folder)):
        if type(store) is not type(kept):
            store.remove()
