"""An index in a Lance table, for more features than memory should hold.

``features.lance`` has a row for each file of the indexed folder, in the order in which they were
added; the header of the index is in the metadata of its column ``feature``. An update adds and
removes rows and leaves the others where they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets.tables.table import OpenTable, RemoteTable, TableError, cannot, read_table
from sce_video.find.index_files import FileRecord, Stored, checked_header

TABLE = "features.lance"
FEATURE, FACTS = "feature", b"sce_video.index"
#: Columns of an index of windows, seconds; null in the row of a file that cannot be decoded.
SPAN = ("start", "end")
_VERSION = 1
_BLOCK_ROWS = 16384  # read at a time
#: Features of this size together are held in memory once they have been read.
_HELD_BYTES = 256 * 2**20
#: A vector index is made from this many rows on without being asked for; and if it was.
APPROXIMATE_ROWS, FEWEST_INDEXED = 200_000, 256
#: Of a search: cells of the clustering, and candidates per result of which the features are read.
#: Measured in docs/search.md.
PROBES, REFINED = 40, 5


def vector_index_options(rows: int, name: str = FEATURE) -> dict[str, Any]:
    """How the vector index of a column is made.

    Features are clustered into cells, and quantised to one bit per dimension in each (RaBitQ,
    https://arxiv.org/abs/2405.12497).

    Args:
        rows: N.
        name: Of the index.
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


#: In place of the feature of a row that stays in the table.
KEPT = np.empty(0, dtype=np.float32)


def path_to_text(path: str) -> str:
    """A path as the table stores it: bytes that are no UTF-8 are written as NUL and two digits."""
    return re.sub(r"[\udc80-\udcff]", lambda found: f"\0{ord(found[0]) - 0xDC00:02x}", path)


def text_to_path(text: str) -> str:
    """The inverse of :func:`path_to_text`; a path holds no NUL itself."""
    return re.sub(r"\0([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found[1], 16)), text)


class TableFeatures:
    """The features of a table as a read-only matrix, of which rows are read when they are used."""

    def __init__(self, records: TableRecords, size: int) -> None:
        self._records = records
        self.shape = len(records), size
        self.dtype = np.dtype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """(D,) of a row, or (n, D) of a slice or of an array of rows."""
        if isinstance(rows, slice):
            return self._records.block(*rows.indices(len(self))[:2])[:: rows.step or 1]
        numbers = np.asarray(rows)
        found = self._records.take(numbers.reshape(-1))
        return found.reshape(*numbers.shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype=dtype)


class TableRecords:
    """One version of the table of an index, opened for search.

    It has the attributes of :class:`~sce_video.find.index_files.StoredRecords`; those with an entry
    for each row are read when they are used. Rows are numbered in the order of the table, those
    without a feature are left out.

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
        self._opened = open_table(file)
        self.header, self._size = read_header(file, self._opened, columns)
        failed = self._read([*columns.state, "_rowoffset"], {"filter": columns.without})
        self.failed = records_of(failed, columns, None)
        bad = np.sort(failed["_rowoffset"].to_numpy().astype(np.int64))
        self._bad = bad
        #: Row of the first feature behind each row without one.
        self._behind = bad - np.arange(len(bad))
        self._count = self._call("count", None) - len(bad)
        self._windowed = self.header["settings"].get("windows") is not None
        self.indexed: int | None = self._call("vector_index", columns.feature)

    def __len__(self) -> int:
        return self._count

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return self._opened.call(method, *arguments)
        except (OSError, RuntimeError, ValueError) as error:
            raise TableError(cannot("read", str(self.file), error)) from error

    def _read(self, columns: list[str], selection: dict[str, Any] | None = None) -> Any:
        return self._call("read", columns, selection)

    # -- rows --------------------------------------------------------------------------------

    def _offsets(self, rows: np.ndarray) -> np.ndarray:
        """Numbers of rows in the table, in which failed files are rows too."""
        return rows + np.searchsorted(self._behind, rows, side="right")

    def _rows(self, offsets: Any) -> np.ndarray:
        numbers = np.asarray(offsets, dtype=np.int64)
        return numbers - np.searchsorted(self._bad, numbers)

    def _column(self, name: str) -> np.ndarray:
        column = self._read([name])[name].to_numpy()
        return np.delete(column, self._bad) if len(self._bad) else column

    @cached_property
    def paths(self) -> np.ndarray:
        """(N,) text, relative to ``root``, of the files with a feature."""
        return np.array([text_to_path(text) for text in self._column("path")], dtype=object)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(N,) int64, bytes of the files."""
        return self._column(self._columns.size)

    @cached_property
    def mtimes(self) -> np.ndarray:
        """(N,) int64, modification times in nanoseconds."""
        return self._column(self._columns.mtime)

    @cached_property
    def spans(self) -> np.ndarray | None:
        """(N, 2) float64, start and end of the windows in seconds; None without windows."""
        if not self._windowed:
            return None
        return np.stack([self._column(name) for name in SPAN], axis=1)

    def spans_of(self, rows: np.ndarray) -> np.ndarray | None:
        """(n, 2) of some rows; None without windows."""
        return None if self.spans is None else self.spans[rows]

    def rows(self, path: str) -> list[int]:
        """All rows of a path: its windows."""
        quoted = path_to_text(path).replace("'", "''")
        where = f"path = '{quoted}' AND NOT ({self._columns.without})"
        found = self._read(["_rowoffset"], {"filter": where})["_rowoffset"].to_numpy()
        return np.sort(self._rows(found)).tolist()

    @cached_property
    def _row_of_path(self) -> dict[str, int]:
        rows = range(len(self) - 1, -1, -1)  # the first of several stays
        return {self.paths[row]: row for row in rows}

    def paths_of(self, rows: np.ndarray) -> list[str]:
        """Paths of some rows, in any order."""
        if "paths" in self.__dict__:
            return self.paths[rows].tolist()
        found = self._call("take", self._offsets(rows).tolist(), ["path"])
        return [text_to_path(text) for text in found["path"].to_pylist()]

    def row(self, path: str) -> int | None:
        """Row of a path, the first of several; None if it has none."""
        if "paths" in self.__dict__:
            return self._row_of_path.get(path)
        return next(iter(self.rows(path)), None)

    # -- features ----------------------------------------------------------------------------

    @cached_property
    def features(self) -> np.ndarray | TableFeatures:
        """(N, D) float32; held in memory if they are few, else read when they are used."""
        if len(self) * self._size * 4 <= _HELD_BYTES:
            return np.array(self.block(0, len(self)))
        return TableFeatures(self, self._size)

    @cached_property
    def mean(self) -> np.ndarray:
        """(D,) float64, the mean of the features."""
        total = np.zeros(self._size)
        for begin in range(0, len(self), _BLOCK_ROWS):
            total += self.features[begin : begin + _BLOCK_ROWS].sum(axis=0, dtype=np.float64)
        return total / max(1, len(self))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """(n, D) features of some rows, in any order."""
        unique, inverse = np.unique(rows, return_inverse=True)
        if len(unique) == 0:
            return np.empty((0, self._size), dtype=np.float32)
        found = self._call("take", self._offsets(unique).tolist(), [self._columns.feature])
        return self._matrix(found, len(unique))[inverse.reshape(-1)]

    def block(self, begin: int, end: int) -> np.ndarray:
        """(end - begin, D) features of consecutive rows."""
        end = min(end, len(self))
        if end <= begin:
            return np.empty((0, self._size), dtype=np.float32)
        first, last = self._offsets(np.array([begin, end - 1])).tolist()
        parts = []
        for offset in range(first, last + 1, _BLOCK_ROWS):
            limit = min(_BLOCK_ROWS, last + 1 - offset)
            parts.append(self._read([self._columns.feature], {"offset": offset, "limit": limit}))
        import pyarrow as pa

        return self._matrix(pa.concat_tables(parts), end - begin)

    def _matrix(self, table: Any, count: int) -> np.ndarray:
        column = table[self._columns.feature].combine_chunks()
        values = column.drop_null() if column.null_count else column
        matrix = values.flatten().to_numpy().reshape(-1, self._size)
        if len(matrix) != count:
            raise ValueError(
                f"{self.file} is damaged: {count - len(matrix)} files without a failure have no "
                "feature; build the index from scratch (--rebuild, rebuild=True)"
            )
        return matrix

    def nearest(self, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Rows, features and paths of about the k most similar features, by the vector index.

        Rows that the index does not hold yet are compared one by one.
        """
        nearest = {
            "column": self._columns.feature,
            "q": query.astype(np.float32),
            "k": k,
            "metric": "cosine",
            "nprobes": PROBES,
            "refine_factor": REFINED,
        }
        wanted = ["_rowoffset", "path", self._columns.feature, "_distance"]
        found = self._read(wanted, {"nearest": nearest})  # one request: each waits for a process
        paths = [text_to_path(text) for text in found["path"].to_pylist()]
        return self._rows(found["_rowoffset"].to_numpy()), self._matrix(found, len(found)), paths


def open_table(file: str | Path) -> OpenTable | RemoteTable:
    try:
        return read_table(str(file))
    except TableError as error:
        advice = "; build the index from scratch (--rebuild)" if Path(file).name == TABLE else ""
        raise ValueError(f"{error}{advice}") from error


def read_header(
    file: str | Path, opened: OpenTable | RemoteTable, columns: Columns | None = None
) -> tuple[dict[str, Any], int]:
    """Header of an index, and the size of its features.

    Raises:
        ValueError: It is another table.
    """
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


def records_of(rows: Any, columns: Columns, feature: np.ndarray | None) -> dict[str, FileRecord]:
    """Records by path; a file with windows and a failure lacks some of its windows."""
    read = [rows[name].to_pylist() for name in columns.state]
    records: dict[str, FileRecord] = {}
    for text, size, mtime, failure in zip(*read, strict=True):
        path = text_to_path(text)
        held: Stored | None = None if feature is None or failure else feature
        reason = "" if held is not None else failure or "it has no feature"
        if path in records:
            held = records[path].feature if held is None else held
            reason = records[path].reason or reason
        records[path] = FileRecord(size, mtime, held, reason)
    return records


def header_text(header: Mapping[str, Any]) -> str:
    return json.dumps({"version": _VERSION, **header})
