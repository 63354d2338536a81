"""Columns of an index's videos (camera, date, site, ...), and SQL conditions on them.

The columns are copied into an SQLite database with one row per video. Neither conditions nor
columns are trusted, so a separate process evaluates them, which may call only a few SQL functions
and is ended if it takes too long (:mod:`~sce_video.find.column_process`). For a large index, the
database is a file next to the index. It is created again if the columns or the index change.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sce_video.datasets.sources import is_table, is_table_folder
from sce_video.datasets.text_tables import read_csv_lines
from sce_video.datasets.video_list import PATH_COLUMNS
from sce_video.find import column_process
from sce_video.utils.command import printable_utf8
from sce_video.utils.files import WriteError, atomic_file, cache_folder, parse_json
from sce_video.utils.records import read_record
from sce_video.utils.storage import absolute

# Import this only for type checks, so that a mistyped condition is reported before torch loads.
if TYPE_CHECKING:
    from sce_video.find.store import VideoIndex

#: Name of the CSV file that is read by default, in the folder of the index
COLUMNS = "columns.csv"
#: Name of the database that is created from the CSV file
DATABASE = "columns.sqlite"
_VERSION = 1  # version of the database format
_SECONDS = 5.0  # time limit for one condition
_SHOWN_VALUES = 50  # largest number of different values in a column that the page lists
_SHOWN_TEXT = 100  # largest number of characters in a listed value
_LARGE_FILE = 4 * 2**20  # size in bytes of a CSV file above which the database is stored
_MANY = 20_000  # number of index rows from which the database is stored in a file
_KEPT = 32  # number of conditions whose matching rows are cached
_BLOCK = 16384  # number of rows that are read at a time
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d{1,2})?", re.ASCII)
_TABLE = column_process.TABLE
_KEY = column_process.KEY
_MOST_COLUMNS = 200  # largest number of columns in a file, which may be untrusted
_MOST_TEXT = 10_000  # largest number of characters in a cell of such a file
_DAMAGED = f"{DATABASE} next to the index is damaged. Remove it"
#: Columns in a table of videos that describe the import instead of the video
_OF_THE_TABLE = {"settings", "failure", "source_size", "source_mtime_ns"}


@dataclass(frozen=True)
class VideoColumn:
    """Column that describes the videos.

    Attributes:
        name: Name of the column.
        number: Whether values are compared as numbers.
        values: Different values if there are at most 50; otherwise empty.
    """

    name: str
    number: bool
    values: tuple[str, ...]


@dataclass(frozen=True)
class _Facts:
    """Description of the columns in a database, which stores it as JSON.

    Attributes:
        columns: Columns except ``path``.
        without: Number of videos without a line in the CSV file.
        videos: Number of videos.
        state: Text that changes whenever a source of the columns changes.
        source: Names of the sources; empty without any.
    """

    columns: tuple[VideoColumn, ...]
    without: int
    videos: int
    state: str
    source: str


class VideoColumns:
    """Columns of an index's videos. Several threads can use them at the same time.

    Every index has the column ``path``. Other columns come from a CSV file and from the table of
    videos, if the index was built from a table. The first line of the CSV file lists its columns:
    ``path`` (or video, file, filename), relative to the indexed folder or absolute, and any others.
    If both sources contain a column, the CSV file's column is used. A column that contains only
    numbers is compared numerically, and any other column as text, so dates are written as
    ``2026-01-31``. Empty cells are NULL, and a video without a line has NULL in every column. Lines
    of videos that are not in the index are ignored.

    Args:
        source: Database created by :func:`_fill`, as a file or as its content.
        rows: Number of rows in the index.

    Attributes:
        described: Columns except ``path``.
        names: Names of the columns, with ``path`` first.
        without: Number of videos without a line in the CSV file.
        state: Text that changes whenever a source of the columns changes.

    Raises:
        ValueError: If the file or content is not a database of columns.
    """

    def __init__(self, source: Path | bytes, rows: int) -> None:
        self._base, self._lock = _Database(source, rows), threading.Lock()
        made, text, video_of_row = self._base.facts
        facts = read_record(_Facts, parse_json(text.decode(), "the facts"), "the facts")
        self.described, self.without, self.state = facts.columns, facts.without, facts.state
        self.names = ["path", *(column.name for column in self.described)]
        self._source, self._count = facts.source, facts.videos
        self._video_of_row = numbers = np.frombuffer(video_of_row, dtype=np.int32)
        inside = ((numbers >= 0) & (numbers < self._count)).all() and 0 <= self._count <= rows
        known = made.decode() == _videos_sql(self.described)
        known &= all(len(column.values) <= _SHOWN_VALUES for column in self.described)
        if len(numbers) != rows or not inside or not known:
            raise ValueError("it is not a database of columns")
        self._found: OrderedDict[str, np.ndarray] = OrderedDict()  # by condition, one bit per row

    def matching(self, where: str) -> np.ndarray:
        """Return a mask (N,) of the index rows that meet a condition; empty text selects all rows.

        Raises:
            ValueError: If SQLite cannot read the condition, the condition does anything other than
                compare columns, or evaluating it takes longer than 5 s.
        """
        count = len(self._video_of_row)
        if not where.strip():
            return np.ones(count, dtype=bool)
        with self._lock:
            if where not in self._found:
                videos = np.zeros(self._count, dtype=bool)
                try:
                    for keys in self._base.passing(self._count, where):
                        videos[np.fromstring(keys, np.int64, sep=",")] = True
                except IndexError:
                    raise ValueError(_DAMAGED) from None
                except ValueError as error:
                    raise ValueError(self._explained(where, str(error))) from None
                self._found[where] = np.packbits(videos[self._video_of_row])
                while len(self._found) > _KEPT:
                    self._found.popitem(last=False)
            return np.unpackbits(self._found[where], count=count).view(bool)

    def _explained(self, where: str, reason: str) -> str:
        reason = " ".join(reason.split())
        if reason == "not authorized":
            reason = "a condition may only compare columns, without SELECT, PRAGMA or ATTACH"
        elif reason.startswith("no such column"):
            where_from = self._source or "the index (no CSV file was given with --columns)"
            reason += f". The columns in {where_from} are: {', '.join(self.names)}"
        elif reason.startswith("database disk image"):
            reason = _DAMAGED
        return f"the condition {where!r:.200} cannot be evaluated: {reason}"


class _Database:
    """Client of a :mod:`~sce_video.find.column_process` that has opened a database of columns.

    The process answers any number of conditions. If a condition takes too long, the process is
    ended, and the next condition starts another one.

    Args:
        source: File of the database, or its content.
        rows: Number of rows in the index.

    Attributes:
        facts: Facts that :meth:`~sce_video.find.column_process.Database.facts` returned.

    Raises:
        ValueError: If it is not a database of columns, or reading it takes too long.
    """

    def __init__(self, source: Path | bytes, rows: int) -> None:
        self._source, self._blob = source, 4 * rows
        self._process: subprocess.Popen[bytes] | None = None
        self.facts = self._start()

    def passing(self, count: int, where: str) -> Iterator[bytes]:
        """Yield the numbers of the matching videos as comma-separated text.

        Raises:
            ValueError: If the condition cannot be evaluated. The message contains only the reason.
        """
        request = f"{count}\n{where}".encode()
        if self._process is None and self._start() != self.facts:
            self.close()
            raise ValueError("the database of columns was replaced. Open the index again")
        with self._conversation() as pipe:
            pipe.send_bytes(request)
            longest = column_process.LONGEST_CELL + 1
            while (answer := pipe.recv_bytes(longest))[:1] == column_process.KEYS:
                yield answer[1:]
        if answer != column_process.DONE:
            raise ValueError(answer[1:].decode())

    def _start(self) -> tuple[bytes, ...]:
        if isinstance(self._source, bytes):
            address, inside = ":memory:", self._source
        else:
            # Open the file without locks, which some file systems do not support. This is safe,
            # because the file is only ever replaced as a whole.
            address, inside = f"{self._source.absolute().as_uri()}?mode=ro&immutable=1", b""
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs:
            arguments = theirs.fileno(), address, _SECONDS, self._blob, len(inside)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", column_process.__file__, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        with self._conversation() as pipe:
            if inside:
                pipe.send_bytes(inside)
            longest = max(self._blob, column_process.LONGEST_FACTS)
            return tuple(pipe.recv_bytes(longest) for _ in range(3))

    @contextmanager
    def _conversation(self) -> Iterator[Connection]:
        """Yield the pipe to the process, and end the process if the block fails."""
        assert self._process is not None
        try:
            yield self._pipe
        except (EOFError, OSError):
            self._pipe.close()
            status = self._process.wait()
            self.close()
            late = status == -signal.SIGALRM
            reason = f"it takes longer than {_SECONDS:g} s" if late else "SQLite cannot read it"
            raise ValueError(reason) from None
        except BaseException:
            self.close()  # unread answers may remain in the pipe
            raise

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            self._pipe.close()
            process.kill()
            process.wait()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


@dataclass(frozen=True)
class ColumnSources:
    """Files from which columns are read.

    Attributes:
        root: Indexed folder.
        file: CSV file with columns; None without one.
        table: Table of videos with columns, as a path or a URI; None without one.
    """

    root: str
    file: Path | None = None
    table: str | None = None


def columns_of_index(index: VideoIndex, file: str | os.PathLike | None = None) -> VideoColumns:
    """Read the columns of an index, from ``columns.csv`` in its folder if ``file`` is None.

    For a large index or CSV file, the database is stored as ``columns.sqlite`` in the index's
    folder. If the index is a column in a table of videos, the database is stored in the user's
    cache. It is created again if the index, the CSV file or the table has changed.

    Raises:
        FileNotFoundError: If the given file does not exist.
        ValueError, TableError: If :func:`read_columns` cannot read the columns.
    """
    found = Path(index.folder, COLUMNS) if file is None else Path(file)
    if file is not None and not found.is_file():
        raise FileNotFoundError(f"there is no CSV file with columns at {found}")
    alone = is_table_folder(index.folder)  # the features are a column in a table of videos
    table = os.fspath(index.folder) if alone else index.root
    csv_file = found if found.is_file() else None
    sources = ColumnSources(index.root, csv_file, table if is_table(table) else None)
    large = len(index) >= _MANY or (csv_file and csv_file.stat().st_size > _LARGE_FILE)
    if not large or not index.stamp:
        return read_columns(index.path_array, sources)
    database, state = Path(index.folder, DATABASE), _state_of(index, sources)
    if alone:
        key = sha256(f"{absolute(table)} {index.stamp[-1]}".encode(errors="surrogateescape"))
        database = cache_folder() / "columns" / f"{key.hexdigest()}.sqlite"
    known = _open_database(database, state, len(index))
    # If the folder is not writable, the columns are read into memory instead.
    with suppress(WriteError, sqlite3.OperationalError):
        if known is None:
            with atomic_file(database) as unfinished, closing(sqlite3.connect(unfinished)) as base:
                _fill(base, index.path_array, sources, state)
            known = _open_database(database, state, len(index))
    return known or read_columns(index.path_array, sources)


def _state_of(index: VideoIndex, sources: ColumnSources) -> str:
    """Return a text that changes whenever a source of the columns changes."""
    from sce_video.datasets.tables.table import read_table

    state: list[Any] = [_VERSION, len(index), index.stamp, sources.root]
    changing = [sources.file]
    if sources.table is not None and "://" in sources.table:
        state.append(read_table(sources.table).version)
    elif sources.table is not None:
        changing.append(Path(sources.table, "_versions"))
    for path in changing:
        if path is not None:
            status = path.stat()
            state.append([os.path.abspath(path), status.st_size, status.st_mtime_ns])
    return json.dumps(state)


def _open_database(file: Path, state: str, rows: int) -> VideoColumns | None:
    """Open a stored database; return None if it is missing, out of date or not valid."""
    if not file.is_file():
        return None
    try:
        found = VideoColumns(file, rows)
    except ValueError:
        return None
    return found if found.state == state else None


def read_columns(paths: np.ndarray, sources: ColumnSources) -> VideoColumns:
    """Read columns into memory.

    From a table of videos, all columns that contain text, numbers, booleans or times are read,
    except ``settings``, ``failure``, ``source_size`` and ``source_mtime_ns``.

    Args:
        paths: (N,) text, the path of each row in the index.
        sources: Files from which the columns are read.

    Raises:
        ValueError: If the CSV file is not valid, or lists a path twice. The message names the file
            and the line.
        TableError: If the table cannot be read.
    """
    with closing(sqlite3.connect(":memory:")) as base:
        _fill(base, paths, sources, "")
        content = base.serialize()
    return VideoColumns(content, len(paths))


def _fill(base: sqlite3.Connection, paths: np.ndarray, sources: ColumnSources, state: str) -> None:
    """Fill an empty database.

    The table ``videos`` contains the columns, with one row per video. The table ``facts`` contains
    a single row: the description of the columns as JSON, and the video number of each index row.
    """
    key_of: dict[str, int] = {}  # video number by path, because all windows of a video share a line
    blocks = (paths[at : at + _BLOCK].tolist() for at in range(0, len(paths), _BLOCK))
    keys = (key_of.setdefault(path, len(key_of)) for block in blocks for path in block)
    video_of_row = np.fromiter(keys, np.int32, len(paths))
    base.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
    base.create_function("is_number", 1, lambda cell: _NUMBER.fullmatch(cell) is not None)
    base.execute(f'CREATE TEMP TABLE paths ("{_KEY}" INTEGER PRIMARY KEY, path)')
    base.executemany("INSERT INTO paths VALUES (?, ?)", ((k, _utf8(p)) for p, k in key_of.items()))
    given = [(str(sources.file), read_csv_lines(sources.file))] if sources.file else []
    given += [(sources.table, _lines_of_table(sources.table))] if sources.table else []
    taken, joined, missing = [f'paths."{_KEY}"', "path"], "paths", 0
    columns: list[VideoColumn] = []
    for number, (name, lines) in enumerate(given):
        found = _Lines(name, lines, sources.root, key_of)
        copied = found.copy(base, f"source{number}")
        joined += f' LEFT JOIN source{number} USING ("{_KEY}")'
        missing = found.missing if number == 0 else missing
        before = {column.name.lower() for column in columns}
        for place, column in enumerate(copied):
            if column.name.lower() not in before:
                columns.append(column)
                taken.append(f"source{number}.c{place}")
    base.execute(_videos_sql(columns))
    base.execute(f"INSERT INTO {_TABLE} SELECT {', '.join(taken)} FROM {joined}")
    names = " and ".join(name for name, _ in given)
    facts = json.dumps(asdict(_Facts(tuple(columns), missing, len(key_of), state, names)))
    base.execute(column_process.FACTS)
    base.execute("INSERT INTO facts VALUES (?, ?)", (facts, video_of_row.tobytes()))
    base.commit()


def _videos_sql(columns: Sequence[VideoColumn]) -> str:
    """Return the SQL statement that creates the table of columns."""
    named = [(c.name.replace('"', '""'), "NUMERIC" if c.number else "TEXT") for c in columns]
    kinds = ", ".join(["path TEXT", *(f'"{name}" {kind}' for name, kind in named)])
    return f'CREATE TABLE {_TABLE} ("{_KEY}" INTEGER PRIMARY KEY, {kinds})'


def _described(base: sqlite3.Connection, name: str, column: str, table: str) -> VideoColumn:
    """Return the column ``name``, whose text is in a column of a temporary table."""
    cells = f"FROM {table} WHERE {column} IS NOT NULL"
    some = f"SELECT DISTINCT {column} {cells} LIMIT {_SHOWN_VALUES + 1}"
    values = [value for (value,) in base.execute(some)]
    (text,) = base.execute(f"SELECT EXISTS (SELECT 1 {cells} AND NOT is_number({column}))")
    number = bool(values) and not text[0]
    if len(values) > _SHOWN_VALUES or max(map(len, values), default=0) > _SHOWN_TEXT:
        values = []
    values.sort(key=float if number else None)
    return VideoColumn(name, number, tuple(map(printable_utf8, values)))


class _Lines:
    """Lines of a CSV file or a table. The first line lists the columns.

    Args:
        source: Name of the file or table in messages.
        lines: Number and cells of each line.
        root: Folder to which relative paths refer.
        key_of: Number of each video in the index by its path.

    Attributes:
        missing: Number of videos without a line, known after :meth:`copy`.
    """

    def __init__(
        self, source: str, lines: Iterator[tuple[int, list[str]]], root: str, key_of: dict[str, int]
    ) -> None:
        self._source, self._lines, self._root, self._key_of = source, lines, root, key_of
        number, header = next(lines, (0, []))
        if not header:
            raise ValueError(
                f"{source} is empty. Its first line must name the columns: path and others"
            )
        lowered = [name.lower() for name in header]
        path = next((lowered.index(name) for name in PATH_COLUMNS if name in lowered), None)
        if path is None:
            raise ValueError(
                f"{source}, line {number}: there is no column path in {','.join(header)!r:.200}. "
                "The first line must name the columns"
            )
        lowered[path] = "path"
        problem = ""
        if "" in lowered:
            problem = "a column has no name"
        elif _KEY in lowered:
            problem = f"a column cannot be named {_KEY!r}"
        elif twice := [name for name in lowered if lowered.count(name) > 1]:
            problem = f"the column {twice[0]!r:.60} is named twice"
        elif len(header) > _MOST_COLUMNS:
            problem = f"there are more than {_MOST_COLUMNS} columns"
        if problem:
            raise ValueError(f"{source}, line {number}: {problem}")
        self._path = path
        self._names = [_utf8(name) for i, name in enumerate(header) if i != path]
        self.missing = len(key_of)

    def copy(self, base: sqlite3.Connection, table: str) -> list[VideoColumn]:
        """Copy the lines of indexed videos to a temporary table, and return their columns.

        The temporary table has the columns ``#`` (number of the video) and ``c0``, ``c1``, ...,
        which contain unconverted text.

        Raises:
            ValueError: If a line has too few or too many cells, a cell is too long, a path has two
                lines, or no path is in the index. The message names the file and the line.
        """
        cells = "".join(f", c{place}" for place in range(len(self._names)))
        base.execute(f'CREATE TEMP TABLE {table} ("{_KEY}" INTEGER PRIMARY KEY{cells})')
        marks = ", ".join("?" * (1 + len(self._names)))
        base.executemany(f"INSERT INTO {table} VALUES ({marks})", self._known())
        return [_described(base, n, f"c{i}", table) for i, n in enumerate(self._names)]

    def _known(self) -> Iterator[list[Any]]:
        """Yield video number and cells for each line that describes a video of the index."""
        source, key_of, first = self._source, self._key_of, ("none", 0)
        line_of = np.zeros(len(key_of), dtype=np.int64)
        count = 0
        for number, row in self._lines:
            if len(row) != 1 + len(self._names):
                raise ValueError(
                    f"{source}, line {number}: {len(row)} cells, not {1 + len(self._names)} as in "
                    "the first line"
                )
            if not row[self._path]:
                raise ValueError(f"{source}, line {number}: there is no path")
            if (longest := max(map(len, row))) > _MOST_TEXT:
                raise ValueError(
                    f"{source}, line {number}: a cell has {longest} characters, but at most "
                    f"{_MOST_TEXT} are allowed"
                )
            path = row.pop(self._path)
            path = os.path.relpath(path, self._root) if os.path.isabs(path) else path
            first = first if count else (path, number)
            count += 1
            key = key_of.get(path)
            if key is None:
                continue
            if line_of[key]:
                raise ValueError(
                    f"{source}, line {number}: {path} is already listed in line {line_of[key]}. "
                    "Remove one of the lines"
                )
            line_of[key] = number
            yield [key, *(_utf8(cell) if cell else None for cell in row)]
        self.missing = int((line_of == 0).sum())
        if key_of and self.missing == len(key_of):
            raise ValueError(
                f"{source}, line {first[1]}: none of its {count} paths is in the index, for "
                f"example {first[0]}. A path in the index is {min(key_of)}"
            )


def _lines_of_table(table: str) -> Iterator[tuple[int, list[str]]]:
    """Yield number and cells of the lines that a table of videos would have as a CSV file."""
    import pyarrow as pa

    from sce_video.datasets.tables.table import read_table

    kinds = "is_string is_large_string is_integer is_floating is_boolean is_date is_timestamp"
    opened = read_table(table)
    names = ["path"]
    for column in opened.call("schema"):
        taken = any(getattr(pa.types, kind)(column.type) for kind in kinds.split())
        if taken and column.name not in (*names, *_OF_THE_TABLE):
            names.append(column.name)
    yield 0, names
    for at in range(0, opened.call("count", None), _BLOCK):
        rows = opened.call("read", names, {"offset": at, "limit": _BLOCK})
        columns = [rows[name].to_pylist() for name in names]
        for number, row in enumerate(zip(*columns, strict=True), at + 1):
            # Treat NaN as missing, and write booleans as 0 and 1.
            values = (int(value) if isinstance(value, bool) else value for value in row)
            yield number, ["" if v is None or v != v else str(v) for v in values]


def _utf8(text: str) -> str:
    """Replace bytes that are not UTF-8, because SQLite rejects them."""
    if text.isascii():  # This fast path matters, because there may be a million cells.
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
