"""Storage of an index as a Lance table, for more features than fit in memory.

``features.lance`` has a row for every file of the indexed folder, in the order in which the files
were added. A file that cannot be decoded has a row without a feature. The metadata of the column
``feature`` contains the header of the index. An update adds, replaces and removes rows without
rewriting the others.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from sce_video.datasets.tables.table import (
    OpenTable,
    RemoteTable,
    TableError,
    cannot,
    make_table,
    read_table,
)
from sce_video.find.store import (
    READ_ROWS,
    TABLE,
    FileRecord,
    IndexHeader,
    IndexStore,
    Matrix,
    VideoIndex,
)
from sce_video.utils.files import read_json, regular_file, write_json

#: Column with the features in the table of an index.
FEATURE = "feature"
#: Key of the header in the metadata of a feature column.
FACTS = "sce_video.index"
#: Columns with the start and end of a window in seconds; null if the file cannot be decoded.
_SPAN = ("start", "end")
#: Version of the table format.
_VERSION = 1
#: Number of bytes that are written at a time.
_BATCH_BYTES = 128 * 2**20
#: Largest number of paths in one SQL condition (chosen by hand).
_DELETED_AT_ONCE = 1000
#: Largest total size in bytes of features that are kept in memory.
_HELD_BYTES = 256 * 2**20
#: Number of rows from which a vector index is created automatically.
APPROXIMATE_ROWS = 200_000
#: Minimum number of rows for a vector index.
FEWEST_INDEXED = 256
#: Number of cells of the vector index that a search visits (measured in docs/search.md).
_PROBES = 80
#: Number of candidates per result whose features are read (measured in docs/search.md).
_REFINED = 5
#: From this number of results on, the caller compares exact features, so Lance need not do it.
_MANY = 1000
#: Folders that Lance creates in the folder of a table.
_PARTS = {"data", "_versions", "_transactions", "_deletions", "_indices"}
#: The folders among these whose files never change once they have been written.
_SUMMED = ("data", "_deletions", "_indices")
#: File with the checksums of the files in these folders. Lance itself stores none.
CHECKSUMS = "checksums.json"
#: Number of bytes that are read at a time to compute a checksum.
_READ_BYTES = 1 << 20
#: Placeholder for the feature of a row that stays in the table.
_KEPT = np.empty(0, dtype=np.float32)


@dataclass(frozen=True)
class IndexColumns:
    """Names of the columns in which a table stores an index.

    Attributes:
        feature: Column with the features.
        size: Column with the file sizes.
        mtime: Column with the modification times of the files.
        without: SQL condition that selects the rows without a feature.
    """

    feature: str
    size: str
    mtime: str
    without: str

    @property
    def state(self) -> list[str]:
        """Columns of the path and of everything in a :class:`.store.FileRecord` except features."""
        return ["path", self.size, self.mtime, "failure"]


_OWN = IndexColumns(FEATURE, "size", "mtime_ns", "failure != ''")


def path_to_text(path: str) -> str:
    """Return a path as stored in the table: NUL and two hex digits stand for a non-UTF-8 byte."""
    return re.sub(r"[\udc80-\udcff]", lambda found: f"\0{ord(found[0]) - 0xDC00:02x}", path)


def _quoted(path: str) -> str:
    """Return a path as an SQL literal."""
    return "'" + path_to_text(path).replace("'", "''") + "'"


def text_to_path(text: str) -> str:
    """Invert :func:`path_to_text`, which is unambiguous because no path contains NUL."""
    return re.sub(r"\0([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found[1], 16)), text)


def header_facts(header: IndexHeader) -> dict[str, str]:
    """Return the header of an index as the metadata of its feature column."""
    return {FACTS: json.dumps({"version": _VERSION, **header.to_dict()})}


@contextmanager
def explained(doing: str, table: str | Path, *further: type[Exception]) -> Iterator[None]:
    """Turn an error of Lance in the block into a TableError that names the table."""
    kinds: tuple[type[Exception], ...] = (OSError, RuntimeError, *further)
    try:
        yield
    except TableError:
        raise
    except kinds as error:
        raise TableError(cannot(doing, str(table), error)) from error


def _open_table(
    file: str | Path, columns: IndexColumns = _OWN
) -> tuple[OpenTable | RemoteTable, IndexHeader, int]:
    """Open a table, and return the table, the header of the index and the size of a feature.

    Raises:
        ValueError: If the table does not contain an index in these columns.
    """
    import pyarrow as pa

    try:
        opened = read_table(str(file))
    except TableError as error:
        own = Path(file).name == TABLE
        advice = "; build the index from scratch (--rebuild)" if own else ""
        raise ValueError(f"{error}{advice}") from error
    fields = {field.name: field for field in opened.call("schema")}
    try:
        if not fields.keys() >= {columns.feature, *columns.state}:
            raise ValueError(f"its columns are {', '.join(fields)}")
        field = fields[columns.feature]
        if not pa.types.is_fixed_size_list(field.type) or field.type.value_type != pa.float32():
            raise ValueError(f"its features have the type {field.type}")
        entry = json.loads((field.metadata or {})[FACTS.encode()])
        if entry["version"] != _VERSION:
            raise ValueError(f"version {entry['version']} is unknown, only {_VERSION} can be read")
        return opened, IndexHeader.from_dict(entry), field.type.list_size
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{file} is not the table of an index: {error!r:.500}") from error


def _records_of(
    rows: Any, columns: IndexColumns, feature: np.ndarray | None
) -> dict[str, FileRecord]:
    """Return records by path. A file can have both windows and a reason for missing windows."""
    records: dict[str, FileRecord] = {}
    read = [rows[name].to_pylist() for name in columns.state]
    for text, size, mtime, failure in zip(*read, strict=True):
        path, held = text_to_path(text), None if failure else feature
        reason = "" if held is not None else failure or "it has no feature"
        if path in records:
            reason = records[path].reason or reason
            held = feature if records[path].feature is not None else held
        records[path] = FileRecord(size, mtime, held, reason)
    return records


def make_vector_index_of(table: OpenTable | RemoteTable, column: str, rows: int) -> None:
    """Create a vector index with the name of the column.

    The features are clustered into cells, and in each cell they are quantised to one bit per
    dimension by RaBitQ (https://arxiv.org/abs/2405.12497).
    """
    cells = max(1, round(rows**0.5 / 6))
    options = {"index_type": "IVF_RQ", "num_bits": 1, "num_partitions": cells}
    table.call("make_vector_index", column, {**options, "metric": "cosine", "name": column})


# -- for search ----------------------------------------------------------------------------


class TableIndex(VideoIndex):
    """One version of an index in a table, opened for search.

    Rows are numbered in the order of the table, without the rows that have no feature.

    Args:
        folder: Folder of the index, or table of videos.
        file: Path or URI of the table.
        columns: Names of the columns.

    Raises:
        ValueError: If the table does not contain an index in these columns, or is damaged.
    """

    def __init__(self, folder: str | Path, file: str | Path, columns: IndexColumns = _OWN) -> None:
        self._table, self._columns = file, columns
        start, end = _SPAN
        self._names = {
            "paths": "path",
            "sizes": columns.size,
            "mtimes": columns.mtime,
            "starts": start,
            "ends": end,
        }
        self._opened, header, size = _open_table(file, columns)
        self.version = self._opened.version
        failed = self.call("read", [*columns.state, "_rowoffset"], {"filter": columns.without})
        self._bad = np.sort(failed["_rowoffset"].to_numpy().astype(np.int64))
        #: For each row without a feature, the row number of the next feature.
        self._behind = self._bad - np.arange(len(self._bad))
        shape = self.call("count", None) - len(self._bad), size
        super().__init__(folder, header, _records_of(failed, columns, None), shape)
        self.indexed = self.call("vector_index", columns.feature)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the table; raise TableError if it fails."""
        with explained("read", self._table, ValueError):
            return self._opened.call(method, *arguments)

    def offsets(self, rows: np.ndarray) -> list[int]:
        """Convert row numbers of the index to row numbers of the table, which has more rows."""
        return (rows + np.searchsorted(self._behind, rows, side="right")).tolist()

    def _row_numbers(self, offsets: Any) -> np.ndarray:
        """Invert :meth:`offsets`."""
        numbers = np.asarray(offsets, dtype=np.int64)
        return numbers - np.searchsorted(self._bad, numbers)

    def _column(self, name: str) -> np.ndarray:
        stored = self._names[name]
        column = self.call("read", [stored], None)[stored].to_numpy()
        return np.delete(column, self._bad) if len(self._bad) else column

    @cached_property
    def path_array(self) -> np.ndarray:
        return np.array([text_to_path(text) for text in self._column("paths")], dtype=object)

    def rows(self, path: str) -> list[int]:
        where = f"path = {_quoted(path)} AND NOT ({self._columns.without})"
        found = self.call("read", ["_rowoffset"], {"filter": where})["_rowoffset"].to_numpy()
        return np.sort(self._row_numbers(found)).tolist()

    def paths_of(self, rows: np.ndarray) -> list[str]:
        if "path_array" in vars(self):
            return super().paths_of(rows)
        found = self.call("take", self.offsets(rows), ["path"])
        return [text_to_path(text) for text in found["path"].to_pylist()]

    @cached_property
    def features(self) -> Matrix:
        """Features (N, D) float32, which are read into memory if there are few."""
        matrix = TableFeatures(self, self._columns.feature)
        return np.array(matrix[:]) if 4 * math.prod(self.shape) <= _HELD_BYTES else matrix

    def nearest(
        self, query: np.ndarray, k: int, kept: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find about k similar rows. Rows missing from the vector index are compared exactly."""
        refined = {"refine_factor": _REFINED} if k < _MANY else {}
        how = {"metric": "cosine", "nprobes": _PROBES, **refined}
        nearest = {"column": self._columns.feature, "q": query.astype(np.float32), "k": k, **how}
        # Reading features takes longest, so with ``kept``, read them only for the rows that remain.
        feature = [self._columns.feature] if kept is None else []
        found = self.call("read", ["_rowoffset", *feature, "_distance"], {"nearest": nearest})
        rows = self._row_numbers(found["_rowoffset"].to_numpy())
        if kept is None:
            return rows, self.matrix_of([found], len(found))
        rows = rows[kept[rows]]
        return rows, self.features[rows]

    def matrix_of(self, tables: list[Any], count: int) -> np.ndarray:
        """Return the features (count, D) in rows of the table, without those of failed files."""
        import pyarrow as pa

        column = pa.concat_tables(tables)[self._columns.feature].combine_chunks()
        values = column.drop_null() if column.null_count else column
        matrix = values.flatten().to_numpy().reshape(-1, self.shape[1])
        if len(matrix) != count:
            raise ValueError(
                f"{self._table} is damaged: {count - len(matrix)} files have neither a feature nor "
                "a failure. Build the index from scratch (--rebuild, rebuild=True)"
            )
        return matrix


class TableFeatures:
    """Read-only matrix of the features in a table, which reads rows when they are used."""

    def __init__(self, index: TableIndex, column: str) -> None:
        self._index, self._names = index, [column]
        self.shape, self.dtype = index.shape, np.dtype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype=dtype)

    def __getitem__(self, rows: Any, /) -> np.ndarray:
        """Return (D,) of a row, or (n, D) of a slice or an array of rows."""
        if isinstance(rows, slice):
            begin, end, _ = rows.indices(len(self))
            if end <= begin:
                return np.empty((0, self.shape[1]), dtype=np.float32)
            # There may be rows of failed files between these two.
            first, last = self._index.offsets(np.array([begin, end - 1]))
            starts = range(first, last + 1, READ_ROWS)
            blocks = [{"offset": at, "limit": min(READ_ROWS, last + 1 - at)} for at in starts]
            parts = [self._index.call("read", self._names, block) for block in blocks]
            return self._index.matrix_of(parts, end - begin)[:: rows.step or 1]
        numbers = np.asarray(rows, dtype=np.int64)
        # Lance expects each row only once, and in ascending order.
        unique, inverse = np.unique(numbers, return_inverse=True)
        if len(unique) == 0:
            return np.empty((*numbers.shape, self.shape[1]), dtype=np.float32)
        found = self._index.call("take", self._index.offsets(unique), self._names)
        return self._index.matrix_of([found], len(unique))[inverse.reshape(numbers.shape)]


# -- for an update -------------------------------------------------------------------------


class TableStore(IndexStore):
    """Index stored as a Lance table."""

    listed = False

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._known: dict[str, FileRecord] = {}

    def open(self) -> TableIndex:
        index = TableIndex(self.file.parent, self.file)
        index.stamp = index.version, os.stat(self.file / "_versions").st_mtime_ns
        return index

    def read(self) -> tuple[IndexHeader, dict[str, FileRecord]]:
        """Read the header and the records, whose features stay in the table."""
        opened, header, _ = _open_table(self.file)
        with explained("read", self.file, ValueError):
            rows = opened.call("read", _OWN.state)
        self._known = dict(sorted(_records_of(rows, _OWN, _KEPT).items()))
        return header, dict(self._known)

    def write(self, header: IndexHeader, records: Mapping[str, FileRecord]) -> None:
        """Make the table contain these records.

        Records that :meth:`read` has returned are not written again. A new table appears only when
        it is complete. After an interrupted update, some rows have changed, and the next update
        changes the others.

        Raises:
            ValueError: If a feature contains NaN or infinity. Nothing is written in this case.
            TableError: If the table cannot be written.
        """
        changed = {p: r for p, r in records.items() if r is not self._known.get(p)}
        size = None
        for path, record in changed.items():
            if record.feature is not None:
                feature = record.read()
                if not np.isfinite(feature).all():
                    raise ValueError(
                        f"the feature of {path} contains NaN or infinity, because the network "
                        "that computed it has diverged"
                    )
                size = feature.shape[-1]
        held = any(r.feature is not None for r in self._known.values())
        with explained("write to", self.file):
            # A table without features has an arbitrary feature size, so create it again.
            if self.file.exists() and (size is None or (held and size == self.open().shape[1])):
                self._update(header, records, changed)
            else:
                self._make(header, records, size or 1)
        self._known = dict(records)
        self._note_checksums()

    def check(self) -> list[str]:
        noted, found = self._noted(), set(self._summed_files())
        damaged = [f"{self.file / name} is missing" for name in sorted({*noted} - found)]
        for name in sorted(found):
            if name not in noted:
                damaged.append(f"{self.file / name} has no checksum. Update the index")
            elif _checksum(self.file / name) != noted[name]:
                damaged.append(f"{self.file / name} is damaged, because its checksum differs")
        return damaged

    def _noted(self) -> dict[str, int]:
        """Return the recorded checksum of each file by its name."""
        file = self.file.with_name(CHECKSUMS)
        stored = read_json(file) if file.is_file() else {}
        if not isinstance(stored, dict):
            raise ValueError(f"{file} is not a JSON object. Remove it, and update the index")
        return stored

    def _summed_files(self) -> list[str]:
        """Return the paths, relative to the table, of the files that are never modified."""
        folders = [self.file / name for name in _SUMMED]
        files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
        return [file.relative_to(self.file).as_posix() for file in files]

    def _note_checksums(self) -> None:
        """Record the checksums of new files, and drop those of removed files."""
        noted = self._noted()
        sums = {
            name: noted[name] if name in noted else _checksum(self.file / name)
            for name in sorted(self._summed_files())
        }
        write_json(self.file.with_name(CHECKSUMS), sums)

    def _make(self, header: IndexHeader, records: Mapping[str, FileRecord], size: int) -> None:
        unfinished = self.file.with_name(f"{self.file.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        table = make_table(str(unfinished), _schema(header, size))
        for rows in _batches(header, records, size):
            table.call("append", rows)
        del table  # This ends the table's process before the folder is renamed.
        if self.file.exists():
            shutil.rmtree(self.file)
        os.replace(unfinished, self.file)

    def _update(
        self,
        header: IndexHeader,
        records: Mapping[str, FileRecord],
        changed: Mapping[str, FileRecord],
    ) -> None:
        table, stored, size = _open_table(self.file)
        if stored != header:
            table.call("describe", FEATURE, header_facts(header))
        gone = [path for path in self._known if path not in records]
        windows = header.windows is not None
        if windows:  # A path has many rows, so delete the old rows and append the new ones.
            gone += [path for path in changed if path in self._known]
        else:
            for rows in _batches(header, changed, size):
                table.call("replace", "path", rows)
        for begin in range(0, len(gone), _DELETED_AT_ONCE):
            names = ", ".join(map(_quoted, gone[begin : begin + _DELETED_AT_ONCE]))
            table.call("delete", f"path IN ({names})")
        for rows in _batches(header, changed, size) if windows else ():
            table.call("append", rows)
        table.call("tidy")

    def make_vector_index(self, wanted: bool) -> None:
        """Create the vector index if it is wanted or the table is large; extend an existing one."""
        table = _open_table(self.file)[0]
        with explained("index", self.file, ValueError):
            held, rows = table.call("vector_index", FEATURE), table.call("count", None)
            if held is None and rows >= (FEWEST_INDEXED if wanted else APPROXIMATE_ROWS):
                make_vector_index_of(table, FEATURE, rows)
            elif held is not None and held < rows:
                table.call("extend_vector_index")
        self._note_checksums()

    def remove(self) -> None:
        try:
            _open_table(self.file)
        except ValueError as error:
            # A table that was only written in part cannot be opened. Remove it if it contains
            # nothing but Lance's folders.
            damaged = isinstance(error.__cause__, TableError)
            if not damaged or not set(os.listdir(self.file)) <= _PARTS:
                raise
        shutil.rmtree(self.file)
        self.file.with_name(CHECKSUMS).unlink(missing_ok=True)


def _checksum(file: Path) -> int:
    """Return the CRC-32 of a file."""
    total = 0
    with open(file, "rb", opener=regular_file) as opened:
        while data := opened.read(_READ_BYTES):
            total = crc32(data, total)
    return total


def _schema(header: IndexHeader, size: int) -> Any:
    """Return the ``pyarrow.Schema`` of an index whose features have ``size`` numbers."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("path", pa.string()),
            pa.field(FEATURE, pa.list_(pa.float32(), size), metadata=header_facts(header)),
            pa.field("size", pa.int64()),
            pa.field("mtime_ns", pa.int64()),
            pa.field("failure", pa.string()),
            *(pa.field(name, pa.float64()) for name in _SPAN if header.windows is not None),
        ]
    )


def _batches(header: IndexHeader, records: Mapping[str, FileRecord], size: int) -> Iterator[Any]:
    """Yield the rows of records in batches. All rows of a file are in the same batch.

    A row is a file, a window, or the reason why a file or some of its windows are missing.
    """
    import pyarrow as pa

    schema, none = _schema(header, size), np.zeros(size, dtype=np.float32)
    names = ("path", "size", "mtime_ns", "failure", FEATURE, *_SPAN)

    def table(rows: list[tuple]) -> Any:
        columns: dict[str, Any] = dict(zip(names, zip(*rows, strict=True), strict=True))
        features = columns[FEATURE]
        matrix = np.array([none if f is None else f for f in features], dtype=np.float32)
        columns[FEATURE] = feature_array(matrix, pa.array([f is None for f in features]))
        return pa.table({name: columns[name] for name in schema.names}, schema=schema)

    step = max(1, _BATCH_BYTES // (4 * size))
    some: list[tuple] = []
    for path, record in records.items():
        state = path_to_text(path), record.size, record.mtime_ns
        own: list[tuple] = []
        if record.feature is not None:
            spans = [(None, None)] if record.spans is None else record.spans.tolist()
            own = [(*state, "", f, *span) for f, span in zip(record.read(), spans, strict=True)]
        # Without windows, a path has only one row, so no reason is stored for a row with a feature.
        if record.feature is None or (record.reason and record.spans is not None):
            own.append((*state, record.reason or "unknown", None, None, None))
        if some and len(some) + len(own) > step:
            yield table(some)
            some = []
        some += own
    if some:
        yield table(some)


def feature_array(matrix: np.ndarray, missing: Any = None) -> Any:
    """Return features (N, D) as a ``pyarrow`` array, with null for missing features."""
    import pyarrow as pa

    values = pa.array(matrix.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, matrix.shape[1], mask=missing)
