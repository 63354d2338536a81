"""An index in a Lance table, for more features than memory should hold; and features as a column of
a table of videos.

``features.lance`` has a row for each file of the indexed folder, in the order in which they were
added; the header of the index is in the metadata of its column ``feature``. An update adds and
removes rows and leaves the others where they are. A table of videos may have several columns
``feature_NAME`` with such metadata.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sce_video.datasets.tables.rows import check_format, table_path
from sce_video.datasets.tables.table import (
    OpenTable,
    RemoteTable,
    TableError,
    cannot,
    make_table,
    read_table,
)
from sce_video.find.store import Feature, FileRecord, IndexStore, Matrix, StoredRows, checked_header

FEATURE, FACTS, PREFIX = "feature", b"sce_video.index", "feature_"
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
#: Columns of an index of windows, seconds; null in the row of a file that cannot be decoded.
_SPAN = ("start", "end")
_VERSION = 1
_BLOCK_ROWS = 16384  # read at a time
_BATCH_BYTES = 128 * 2**20  # of rows written at a time
_DELETED_AT_ONCE = 1000
#: Features of this size together are held in memory once they have been read.
_HELD_BYTES = 256 * 2**20
#: A vector index is made from this many rows on without being asked for; and if it was.
APPROXIMATE_ROWS, FEWEST_INDEXED = 200_000, 256
#: Of a search: cells of the clustering, and candidates per result of which the features are read.
#: Measured in docs/search.md.
_PROBES, _REFINED = 40, 5
#: What Lance writes into the folder of a table.
_PARTS = {"data", "_versions", "_transactions", "_deletions", "_indices"}
#: In place of the feature of a row that stays in the table.
_KEPT = np.empty(0, dtype=np.float32)


def _vector_index_options(rows: int, name: str = FEATURE) -> dict[str, Any]:
    """How the vector index ``name`` of a column of ``rows`` features is made.

    Features are clustered into cells, and quantised to one bit per dimension in each (RaBitQ,
    https://arxiv.org/abs/2405.12497).
    """
    return {
        "index_type": "IVF_RQ",
        "num_bits": 1,
        "num_partitions": max(1, round(rows**0.5 / 6)),
        "metric": "cosine",
        "name": name,
    }


@dataclass(frozen=True)
class Columns:
    """Where a table has what an index needs.

    Attributes:
        feature: Column of the features.
        size: Column of the files' sizes.
        mtime: Column of their modification times.
        without: SQL condition of the rows without a feature.
    """

    feature: str = FEATURE
    size: str = "size"
    mtime: str = "mtime_ns"
    without: str = "failure != ''"

    @property
    def state(self) -> list[str]:
        """The columns of a :class:`FileRecord` without its feature, and the path."""
        return ["path", self.size, self.mtime, "failure"]

    @classmethod
    def of_videos(cls, feature: str) -> Columns:
        """Those of a column of features in a table of videos."""
        return cls(feature, "source_size", "source_mtime_ns", f"{feature} IS NULL")


def path_to_text(path: str) -> str:
    """A path as the table stores it: bytes that are no UTF-8 are written as NUL and two digits."""
    return re.sub(r"[\udc80-\udcff]", lambda found: f"\0{ord(found[0]) - 0xDC00:02x}", path)


def text_to_path(text: str) -> str:
    """The inverse of :func:`path_to_text`; a path holds no NUL itself."""
    return re.sub(r"\0([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found[1], 16)), text)


# -- for search ----------------------------------------------------------------------------


class TableFeatures:
    """The features of a table as a read-only matrix, of which rows are read when they are used."""

    def __init__(self, rows: LanceRows) -> None:
        self._rows = rows
        self.shape = rows.shape
        self.dtype = np.dtype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any, /) -> np.ndarray:
        """(D,) of a row, or (n, D) of a slice or of an array of rows."""
        if isinstance(rows, slice):
            return self._rows.block(*rows.indices(len(self))[:2])[:: rows.step or 1]
        numbers = np.asarray(rows)
        found = self._rows.take(numbers.reshape(-1))
        return found.reshape(*numbers.shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype=dtype)


class LanceRows(StoredRows):
    """One version of the table of an index, opened for search.

    Rows are numbered in the order of the table, those without a feature are left out.

    Args:
        file: The table; a path, or a URI.
        columns: Those that it has.

    Raises:
        ValueError: It is no table of an index, or is damaged.
        MissingPackageError: Lance is not installed.
    """

    def __init__(self, file: str | Path, columns: Columns | None = None) -> None:
        self.file = file
        self._columns = columns = columns or Columns()
        self._names = "path", columns.size, columns.mtime, *_SPAN
        self._opened = _open_table(file)
        header, size = _read_header(file, self._opened, columns)
        failed = self._read([*columns.state, "_rowoffset"], {"filter": columns.without})
        bad = np.sort(failed["_rowoffset"].to_numpy().astype(np.int64))
        self._bad = bad
        #: Row of the first feature behind each row without one.
        self._behind = bad - np.arange(len(bad))
        shape = self._call("count", None) - len(bad), size
        super().__init__(header, _records_of(failed, columns, None), shape)
        self.indexed = self._call("vector_index", columns.feature)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return self._opened.call(method, *arguments)
        except (OSError, RuntimeError, ValueError) as error:
            raise TableError(cannot("read", str(self.file), error)) from error

    def _read(self, columns: list[str], selection: dict[str, Any] | None = None) -> Any:
        return self._call("read", columns, selection)

    def _offsets(self, rows: np.ndarray) -> list[int]:
        """Numbers of rows in the table, in which failed files are rows too."""
        return (rows + np.searchsorted(self._behind, rows, side="right")).tolist()

    def _row_numbers(self, offsets: Any) -> np.ndarray:
        """The inverse of :meth:`_offsets`."""
        numbers = np.asarray(offsets, dtype=np.int64)
        return numbers - np.searchsorted(self._bad, numbers)

    def _column(self, name: str) -> np.ndarray:
        column = self._read([name])[name].to_numpy()
        return np.delete(column, self._bad) if len(self._bad) else column

    @cached_property
    def paths(self) -> np.ndarray:
        return np.array([text_to_path(text) for text in self._column("path")], dtype=object)

    def rows(self, path: str) -> list[int]:
        quoted = path_to_text(path).replace("'", "''")
        where = f"path = '{quoted}' AND NOT ({self._columns.without})"
        found = self._read(["_rowoffset"], {"filter": where})["_rowoffset"].to_numpy()
        return np.sort(self._row_numbers(found)).tolist()

    def paths_of(self, rows: np.ndarray) -> list[str]:
        if "paths" in vars(self):
            return super().paths_of(rows)
        found = self._call("take", self._offsets(rows), ["path"])
        return [text_to_path(text) for text in found["path"].to_pylist()]

    @cached_property
    def features(self) -> Matrix:
        """(N, D) float32; held in memory if they are few, else read when they are used."""
        if len(self) * self.shape[1] * 4 <= _HELD_BYTES:
            return np.array(self.block(0, len(self)))
        return TableFeatures(self)

    @cached_property
    def mean(self) -> np.ndarray:
        total = np.zeros(self.shape[1])
        for _, block in self.blocks(_BLOCK_ROWS):
            total += block.sum(axis=0, dtype=np.float64)
        return total / max(1, len(self))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """(n, D) features of some rows, in any order."""
        unique, inverse = np.unique(rows, return_inverse=True)
        if len(unique) == 0:
            return np.empty((0, self.shape[1]), dtype=np.float32)
        found = self._call("take", self._offsets(unique), [self._columns.feature])
        return self._matrix([found], len(unique))[inverse.reshape(-1)]

    def block(self, begin: int, end: int) -> np.ndarray:
        """(end - begin, D) features of consecutive rows."""
        end = min(end, len(self))
        if end <= begin:
            return np.empty((0, self.shape[1]), dtype=np.float32)
        first, last = self._offsets(np.array([begin, end - 1]))
        parts = []
        for offset in range(first, last + 1, _BLOCK_ROWS):
            limit = min(_BLOCK_ROWS, last + 1 - offset)
            parts.append(self._read([self._columns.feature], {"offset": offset, "limit": limit}))
        return self._matrix(parts, end - begin)

    def _matrix(self, tables: list[Any], count: int) -> np.ndarray:
        import pyarrow as pa

        column = pa.concat_tables(tables)[self._columns.feature].combine_chunks()
        values = column.drop_null() if column.null_count else column
        matrix = values.flatten().to_numpy().reshape(-1, self.shape[1])
        if len(matrix) != count:
            raise ValueError(
                f"{self.file} is damaged: {count - len(matrix)} files without a failure have no "
                "feature; build the index from scratch (--rebuild, rebuild=True)"
            )
        return matrix

    def nearest(self, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """See :meth:`StoredRows.nearest`; rows that the vector index does not hold yet are compared
        one by one."""
        nearest = {
            "column": self._columns.feature,
            "q": query.astype(np.float32),
            "k": k,
            "metric": "cosine",
            "nprobes": _PROBES,
            "refine_factor": _REFINED,
        }
        wanted = ["_rowoffset", "path", self._columns.feature, "_distance"]
        found = self._read(wanted, {"nearest": nearest})  # one request: each waits for a process
        paths = [text_to_path(text) for text in found["path"].to_pylist()]
        rows = self._row_numbers(found["_rowoffset"].to_numpy())
        return rows, self._matrix([found], len(found)), paths


def _open_table(file: str | Path) -> OpenTable | RemoteTable:
    try:
        return read_table(str(file))
    except TableError as error:
        own = Path(file).name == "features.lance"
        advice = "; build the index from scratch (--rebuild)" if own else ""
        raise ValueError(f"{error}{advice}") from error


def _read_header(
    file: str | Path, opened: OpenTable | RemoteTable, columns: Columns | None = None
) -> tuple[dict[str, Any], int]:
    """Header of an index, and the size of its features; ValueError for another table."""
    import pyarrow as pa

    columns = columns or Columns()
    schema = opened.call("schema")
    kinds: dict[str, Any] = {field.name: field.type for field in schema}
    kind = kinds.get(columns.feature, pa.null())
    facts = dict(schema.field(columns.feature).metadata or {}) if columns.feature in kinds else {}
    try:
        if not set(kinds) >= {columns.feature, *columns.state} or FACTS not in facts:
            raise ValueError(f"it has the columns {', '.join(kinds)}")
        if not pa.types.is_fixed_size_list(kind) or kind.value_type != pa.float32():
            raise ValueError(f"its features are {kind}")
        entry = json.loads(facts[FACTS])
        if entry["version"] != _VERSION:
            raise ValueError(f"version {entry['version']} is unknown, only {_VERSION} can be read")
        return checked_header(entry), kind.list_size
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{file} is not the table of an index: {error!r:.500}") from error


def _records_of(rows: Any, columns: Columns, feature: np.ndarray | None) -> dict[str, FileRecord]:
    """Records by path; a file with windows and a failure lacks some of its windows."""
    read = [rows[name].to_pylist() for name in columns.state]
    records: dict[str, FileRecord] = {}
    for text, size, mtime, failure in zip(*read, strict=True):
        path = text_to_path(text)
        held: Feature | None = None if failure else feature
        reason = "" if held is not None else failure or "it has no feature"
        if path in records:
            held = records[path].feature if held is None else held
            reason = records[path].reason or reason
        records[path] = FileRecord(size, mtime, held, reason)
    return records


def header_text(header: Mapping[str, Any]) -> str:
    """The header as a table stores it."""
    return json.dumps({"version": _VERSION, **header})


# -- for an update -------------------------------------------------------------------------


class TableStore(IndexStore):
    """The table of an index."""

    listed = False

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._known: dict[str, FileRecord] = {}

    def exists(self) -> bool:
        return self.file.is_dir()

    def open(self) -> LanceRows:
        return LanceRows(self.file)

    def read(self) -> tuple[dict[str, Any], dict[str, FileRecord]]:
        """See :meth:`IndexStore.read`; features stay in the table."""
        opened = _open_table(self.file)
        header, _ = _read_header(self.file, opened)
        try:
            rows = opened.call("read", Columns().state)
            self._known = dict(sorted(_records_of(rows, Columns(), _KEPT).items()))
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(cannot("read", str(self.file), error)) from error
        return header, dict(self._known)

    def write(self, header: Mapping[str, Any], records: Mapping[str, FileRecord]) -> None:
        """See :meth:`IndexStore.write`.

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
        return _read_header(self.file, _open_table(self.file))[1] if held else None

    def _make(
        self, header: Mapping[str, Any], records: Mapping[str, FileRecord], size: int
    ) -> None:
        unfinished = self.file.with_name(f"{self.file.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        schema = _schema(header, size)
        table = make_table(str(unfinished), schema)
        for rows in _batches(records, size, schema):
            table.call("append", rows)
        del table  # ends its process, before the folder is renamed
        if self.exists():
            shutil.rmtree(self.file)
        os.replace(unfinished, self.file)

    def _update(
        self,
        header: Mapping[str, Any],
        records: Mapping[str, FileRecord],
        changed: Mapping[str, FileRecord],
    ) -> None:
        table = _open_table(self.file)
        stored, size = _read_header(self.file, table)
        if stored != header:
            table.call("describe", FEATURE, {FACTS.decode(): header_text(header)})
        schema = _schema(header, size)
        gone = [path for path in self._known if path not in records]
        windows = _SPAN[0] in schema.names
        if windows:  # a path has many rows: the old ones go first
            _delete(table, [*gone, *(path for path in changed if path in self._known)])
        for rows in _batches(changed, size, schema):
            if windows:
                table.call("append", rows)
            else:
                table.call("replace", "path", rows)
        if not windows:
            _delete(table, gone)
        table.call("tidy")

    def make_vector_index(self, wanted: bool) -> None:
        """Make or extend the vector index where one is wanted, there, or worth its time."""
        table = _open_table(self.file)
        try:
            held, rows = table.call("vector_index", FEATURE), table.call("count", None)
            if held is None and rows >= (FEWEST_INDEXED if wanted else APPROXIMATE_ROWS):
                table.call("make_vector_index", FEATURE, _vector_index_options(rows))
            elif held is not None and held < rows:
                table.call("extend_vector_index")
        except (OSError, RuntimeError, ValueError) as error:
            raise TableError(cannot("index", str(self.file), error)) from error

    def remove(self) -> None:
        if not self.exists():
            return
        whole = True
        try:
            read_table(str(self.file))
        except TableError:  # half written or half copied
            whole = False
        if whole or not set(os.listdir(self.file)) <= _PARTS:
            _read_header(self.file, _open_table(self.file))
        shutil.rmtree(self.file)


def _delete(table: OpenTable | RemoteTable, paths: Sequence[str]) -> None:
    """Delete the rows of some paths."""
    for begin in range(0, len(paths), _DELETED_AT_ONCE):
        some = (path_to_text(path) for path in paths[begin : begin + _DELETED_AT_ONCE])
        names = ", ".join("'" + text.replace("'", "''") + "'" for text in some)
        table.call("delete", f"path IN ({names})")


def _schema(header: Mapping[str, Any], size: int) -> Any:
    """The ``pyarrow.Schema`` of the table of an index, with features of ``size`` numbers."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("path", pa.string()),
            pa.field(FEATURE, pa.list_(pa.float32(), size), metadata={FACTS: header_text(header)}),
            pa.field("size", pa.int64()),
            pa.field("mtime_ns", pa.int64()),
            pa.field("failure", pa.string()),
            *(pa.field(name, pa.float64()) for name in _SPAN if header["settings"].get("windows")),
        ]
    )


def _feature_size(records: Mapping[str, FileRecord]) -> int | None:
    """Size of the features of records, None without one; ValueError if one is not finite."""
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


class _Row(NamedTuple):
    """A row of the table: of a file, of a window, or why some of a file is missing."""

    path: str
    feature: np.ndarray | None
    size: int
    mtime_ns: int
    failure: str = ""
    start: float | None = None
    end: float | None = None


def _rows_of(path: str, record: FileRecord) -> list[_Row]:
    state = record.size, record.mtime_ns
    if record.feature is None:
        return [_Row(path, None, *state, record.reason or "unknown")]
    if record.spans is None:
        return [_Row(path, record.read(), *state)]
    spans = zip(record.read(), record.spans.tolist(), strict=True)
    rows = [_Row(path, feature, *state, "", *span) for feature, span in spans]
    return rows + ([_Row(path, None, *state, record.reason)] if record.reason else [])


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


def _table_of(rows: list[_Row], size: int, schema: Any) -> Any:
    import pyarrow as pa

    none = np.zeros(size, dtype=np.float32)
    columns: dict[str, Any] = dict(zip(_Row._fields, zip(*rows, strict=True), strict=True))
    matrix = np.array([none if f is None else f for f in columns[FEATURE]], dtype=np.float32)
    bad = pa.array([f is None for f in columns[FEATURE]])
    columns[FEATURE] = pa.FixedSizeListArray.from_arrays(
        pa.array(matrix.reshape(-1)), size, mask=bad
    )
    columns["path"] = [path_to_text(path) for path in columns["path"]]
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


# -- features as a column of a table of videos ---------------------------------------------


def write_feature_column(
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
    column, unfinished = PREFIX + name, f"{PREFIX}{name}__new"
    opened = read_table(table, storage_options)
    check_format(table, opened.metadata)
    try:
        names = opened.call("schema").names
        if unfinished in names:  # of an interrupted call
            if column in names:
                opened.call("drop_column", unfinished)
            else:
                opened.call("rename_column", unfinished, column)
        exists = column in opened.call("schema").names
        given = _checked_features(table, opened, paths, np.asarray(features, dtype=np.float32))
        if exists:
            given = {**_stored_features(table, column, header), **given}
        # Beside the old column, then in its place.
        _add_column(opened, unfinished if exists else column, given, header)
        if exists:
            opened.call("drop_column", column)
            opened.call("rename_column", unfinished, column)
        if given and (approximate or len(given) >= APPROXIMATE_ROWS):
            opened.call("make_vector_index", column, _vector_index_options(len(given), column))
    except (OSError, RuntimeError) as error:
        if isinstance(error, TableError):
            raise
        raise TableError(cannot("write to", table, error)) from error
    return len(given)


def feature_columns(table: str) -> list[str]:
    """Names of the columns of features of a table."""
    schema = read_table(table).call("schema")
    return [field.name for field in schema if FACTS in (field.metadata or {})]


def open_feature_column(table: str, column: str | None = None) -> LanceRows:
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
    return LanceRows(table, Columns.of_videos(column))


def _checked_features(
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
    unknown = [path for path in given if path not in known]
    if unknown:
        raise ValueError(
            f"{len(unknown)} of {len(paths)} paths are no rows of {table}, the first is "
            f"{unknown[0]}"
        )
    return given


def _stored_features(table: str, column: str, header: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The features that a column has, by path."""
    rows = LanceRows(table, Columns.of_videos(column))
    old = rows.header["checkpoint"]
    if old["sha256"] != header["checkpoint"]["sha256"] or (
        rows.header["settings"] != header["settings"]
    ):
        raise ValueError(
            f"the column {column} of {table} has features of another checkpoint ({old['path']}, "
            f"sha256 {old['sha256'][:12]}) or of other settings: choose another name"
        )
    return dict(zip(rows.paths.tolist(), np.asarray(rows.features), strict=True))


def _add_column(
    opened: OpenTable | RemoteTable,
    name: str,
    given: Mapping[str, np.ndarray],
    header: Mapping[str, Any],
) -> None:
    import pyarrow as pa

    matrix = np.stack(list(given.values()))
    kind = pa.list_(pa.float32(), matrix.shape[1])
    values = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), matrix.shape[1])
    field = pa.field(name, kind, metadata={FACTS: header_text(header)})
    schema = pa.schema([pa.field("path", pa.string()), field])
    opened.call("add_columns", "path", pa.table([pa.array(list(given)), values], schema=schema))
