"""An index in a Lance table, for more features than memory should hold.

``features.lance`` has a row for each file of the indexed folder, in the order in which they were
added. The header of the index is in the metadata of its column ``feature``. An update adds and
removes rows and leaves the others where they are.
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

#: Column with the features of an index of its own.
FEATURE = "feature"
#: Key of the description of an index, in the metadata of its column of features.
FACTS = "sce_video.index"
#: Columns of an index of windows, in seconds; null in the row of a file that cannot be decoded.
_SPAN = ("start", "end")
#: Version of the format of an index in a table.
_VERSION = 1
#: Number of bytes of rows that are written at a time.
_BATCH_BYTES = 128 * 2**20
#: Largest number of paths in one SQL condition, chosen by hand.
_DELETED_AT_ONCE = 1000
#: Largest total size of features that stay in memory once they have been read.
_HELD_BYTES = 256 * 2**20
#: Number of rows from which on a vector index is made automatically.
APPROXIMATE_ROWS = 200_000
#: Number of rows from which on a vector index can be made.
FEWEST_INDEXED = 256
#: Number of cells of the clustering that a search compares (measured in docs/search.md).
_PROBES = 80
#: Number of candidates per result whose features are read (measured in docs/search.md).
_REFINED = 5
#: From this number of results on, the features of candidates are not read here, because the caller
#: compares them again.
_MANY = 1000
#: Folders that Lance writes into the folder of a table.
_PARTS = {"data", "_versions", "_transactions", "_deletions", "_indices"}
#: Folders of a table whose files never change.
_SUMMED = ("data", "_deletions", "_indices")
#: File with the checksums of the files in these folders.
CHECKSUMS = "checksums.json"
#: Bytes of a file that are read at a time to compute its checksum.
_READ_BYTES = 1 << 20
#: Stands for the feature of a row that stays in the table.
_KEPT = np.empty(0, dtype=np.float32)


@dataclass(frozen=True)
class IndexColumns:
    """Names of the columns of an index in a table.

    Attributes:
        feature: Column of the features.
        size: Column of the size of a file.
        mtime: Column of its modification time.
        without: SQL condition of rows without a feature.
    """

    feature: str
    size: str
    mtime: str
    without: str

    @property
    def state(self) -> list[str]:
        """The columns of a :class:`.store.FileRecord` without its feature, and the path."""
        return ["path", self.size, self.mtime, "failure"]


_OWN = IndexColumns(FEATURE, "size", "mtime_ns", "failure != ''")


def path_to_text(path: str) -> str:
    """Return a path as the table stores it: a byte that is not UTF-8 is NUL and two digits."""
    return re.sub(r"[\udc80-\udcff]", lambda found: f"\0{ord(found[0]) - 0xDC00:02x}", path)


def _quoted(path: str) -> str:
    """Return a path as an SQL literal."""
    return "'" + path_to_text(path).replace("'", "''") + "'"


def text_to_path(text: str) -> str:
    """Invert :func:`path_to_text`. A path contains no NUL."""
    return re.sub(r"\0([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found[1], 16)), text)


def header_facts(header: IndexHeader) -> dict[str, str]:
    """Return the header as metadata of the column of features."""
    return {FACTS: json.dumps({"version": _VERSION, **header.to_dict()})}


@contextmanager
def explained(doing: str, table: str | Path, *further: type[Exception]) -> Iterator[None]:
    """Raise errors of Lance as a TableError that names the table."""
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
    """Open a table; return it, the header of the index, and the size of the features.

    Raises:
        ValueError: If it is not the table of an index.
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
            raise ValueError(f"it has the columns {', '.join(fields)}")
        field = fields[columns.feature]
        if not pa.types.is_fixed_size_list(field.type) or field.type.value_type != pa.float32():
            raise ValueError(f"its features are {field.type}")
        entry = json.loads((field.metadata or {})[FACTS.encode()])
        if entry["version"] != _VERSION:
            raise ValueError(f"version {entry['version']} is unknown, only {_VERSION} can be read")
        return opened, IndexHeader.from_dict(entry), field.type.list_size
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{file} is not the table of an index: {error!r:.500}") from error


def _records_of(
    rows: Any, columns: IndexColumns, feature: np.ndarray | None
) -> dict[str, FileRecord]:
    """Return records by path. A file with windows and a failure lacks some of its windows."""
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
    """Cluster the features into cells, and quantise them to one bit per dimension in each.

    The method is RaBitQ (https://arxiv.org/abs/2405.12497). The index has the name of the column.
    """
    cells = max(1, round(rows**0.5 / 6))
    options = {"index_type": "IVF_RQ", "num_bits": 1, "num_partitions": cells}
    table.call("make_vector_index", column, {**options, "metric": "cosine", "name": column})


# -- for search ----------------------------------------------------------------------------


class TableIndex(VideoIndex):
    """One version of the table ``file`` (a path or URI) of an index, opened for search.

    Rows are numbered in the order of the table, without rows that have no feature. ValueError is
    raised if it is not the table of an index, or is damaged.
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
        #: For each row without a feature, the row of the first feature behind it.
        self._behind = self._bad - np.arange(len(self._bad))
        shape = self.call("count", None) - len(self._bad), size
        super().__init__(folder, header, _records_of(failed, columns, None), shape)
        self.indexed = self.call("vector_index", columns.feature)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the table; TableError if it fails."""
        with explained("read", self._table, ValueError):
            return self._opened.call(method, *arguments)

    def offsets(self, rows: np.ndarray) -> list[int]:
        """Return the numbers of rows in the table, in which failed files are rows, too."""
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
        """Features (N, D) float32, in memory if they are few, otherwise read when they are used."""
        matrix = TableFeatures(self, self._columns.feature)
        return np.array(matrix[:]) if 4 * math.prod(self.shape) <= _HELD_BYTES else matrix

    def nearest(
        self, query: np.ndarray, k: int, kept: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find about the k most similar rows. Rows without an entry are compared one by one."""
        refined = {"refine_factor": _REFINED} if k < _MANY else {}
        how = {"metric": "cosine", "nprobes": _PROBES, **refined}
        nearest = {"column": self._columns.feature, "q": query.astype(np.float32), "k": k, **how}
        # Reading features takes longest, so read only the kept rows if they are few.
        feature = [self._columns.feature] if kept is None else []
        found = self.call("read", ["_rowoffset", *feature, "_distance"], {"nearest": nearest})
        rows = self._row_numbers(found["_rowoffset"].to_numpy())
        if kept is None:
            return rows, self.matrix_of([found], len(found))
        rows = rows[kept[rows]]
        return rows, self.features[rows]

    def matrix_of(self, tables: list[Any], count: int) -> np.ndarray:
        """Return the features (count, D) of rows that were read, except failed files."""
        import pyarrow as pa

        column = pa.concat_tables(tables)[self._columns.feature].combine_chunks()
        values = column.drop_null() if column.null_count else column
        matrix = values.flatten().to_numpy().reshape(-1, self.shape[1])
        if len(matrix) != count:
            raise ValueError(
                f"{self._table} is damaged: {count - len(matrix)} files without a failure "
                "have no feature; build the index from scratch (--rebuild, rebuild=True)"
            )
        return matrix


class TableFeatures:
    """Features of a table as a read-only matrix, whose rows are read when they are used."""

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
            # Rows of failed files lie in between.
            first, last = self._index.offsets(np.array([begin, end - 1]))
            starts = range(first, last + 1, READ_ROWS)
            blocks = [{"offset": at, "limit": min(READ_ROWS, last + 1 - at)} for at in starts]
            parts = [self._index.call("read", self._names, block) for block in blocks]
            return self._index.matrix_of(parts, end - begin)[:: rows.step or 1]
        numbers = np.asarray(rows, dtype=np.int64)
        # Lance wants each row once, in their order.
        unique, inverse = np.unique(numbers, return_inverse=True)
        if len(unique) == 0:
            return np.empty((*numbers.shape, self.shape[1]), dtype=np.float32)
        found = self._index.call("take", self._index.offsets(unique), self._names)
        return self._index.matrix_of([found], len(unique))[inverse.reshape(numbers.shape)]


# -- for an update -------------------------------------------------------------------------


class TableStore(IndexStore):
    """The table of an index."""

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
        """Update the table to these records. Rows that :meth:`read` has returned are left as is.

        A new table exists only when it is complete. An interrupted update leaves some of its rows
        changed, and the next one changes the rest.

        Raises:
            ValueError: If a feature contains NaN or infinity. Nothing is written.
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
            # A table without features does not define their size, so it is made again.
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
                damaged.append(f"{self.file / name} has no checksum: update the index")
            elif _checksum(self.file / name) != noted[name]:
                damaged.append(f"{self.file / name} is damaged: its checksum differs")
        return damaged

    def _noted(self) -> dict[str, int]:
        """Return the checksums that were taken after Lance had written the files, by name."""
        file = self.file.with_name(CHECKSUMS)
        stored = read_json(file) if file.is_file() else {}
        if not isinstance(stored, dict):
            raise ValueError(f"{file} is not a JSON object: remove it, and update the index")
        return stored

    def _summed_files(self) -> list[str]:
        """Return the files of the table that never change, relative to it."""
        folders = [self.file / name for name in _SUMMED]
        files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
        return [file.relative_to(self.file).as_posix() for file in files]

    def _note_checksums(self) -> None:
        """Record checksums of new files, and drop removed files. Lance itself has none."""
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
        del table  # ends its process, before the folder is renamed
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
        if windows:  # a path has many rows, so delete the old rows before writing the new ones
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
        """Make or extend the vector index if it is requested, exists, or is worth its time."""
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
            # A half-written table cannot be opened. Remove it if it contains only Lance's files.
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
    """Return the ``pyarrow.Schema`` of an index with features of ``size`` numbers."""
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
    """Yield tables of some rows each; all rows of a file are in one table.

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
        # Without windows a path has one row, so only the report contains the reason.
        if record.feature is None or (record.reason and record.spans is not None):
            own.append((*state, record.reason or "unknown", None, None, None))
        if some and len(some) + len(own) > step:
            yield table(some)
            some = []
        some += own
    if some:
        yield table(some)


def feature_array(matrix: np.ndarray, missing: Any = None) -> Any:
    """Return features (N, D) as a ``pyarrow`` array, null for missing features."""
    import pyarrow as pa

    values = pa.array(matrix.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, matrix.shape[1], mask=missing)
