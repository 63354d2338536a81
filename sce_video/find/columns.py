"""Columns of an index's videos (camera, date, site, ...), and SQL conditions on them.

Conditions and columns may be untrusted. SQLite therefore reads one table, with a list of allowed
functions, in a process that is ended if it takes long (:mod:`~sce_video.find.column_process`). For
an index of many videos, the database is a file next to the index. It is created again if the
columns or the index change.
"""

from __future__ import annotations

import json
import operator
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from sce_video.datasets.sources import is_table, is_table_folder
from sce_video.datasets.text_tables import read_csv_lines
from sce_video.datasets.video_list import PATH_COLUMNS
from sce_video.find import column_process
from sce_video.utils.command import printable_utf8
from sce_video.utils.files import WriteError, atomic_file, cache_folder, parse_json
from sce_video.utils.storage import absolute

if TYPE_CHECKING:  # it imports torch, and a mistyped condition must be reported before that
    from sce_video.find.store import VideoIndex

#: Name of the file next to an index that is read if no other file is given
COLUMNS = "columns.csv"
#: Name of the database created from the file
DATABASE = "columns.sqlite"
_VERSION = 1  # version of the database
_SECONDS = 5.0  # time limit for one condition
_SHOWN_VALUES = 50  # largest number of different values that the page offers for a column
_SHOWN_TEXT = 100  # largest number of characters in a value that the page offers
_READ_TWICE = 4 * 2**20  # bytes; reading a larger file takes as long as the imports that follow
_MANY = 20_000  # rows of an index above which the database is stored
_KEPT = 32  # number of conditions whose matching rows are cached
_BLOCK = 16384  # rows at a time
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d{1,2})?", re.ASCII)
_TABLE = column_process.TABLE
_KEY = column_process.KEY
_MOST_COLUMNS = 200  # largest number of columns in a file, which may be untrusted
_MOST_TEXT = 10_000  # largest number of characters in a cell of such a file
_DAMAGED = f"{DATABASE} next to the index is damaged. Remove it"
#: Columns in a table of videos that do not describe the videos themselves
_OF_THE_TABLE = {"settings", "failure", "source_size", "source_mtime_ns"}


@dataclass(frozen=True)
class VideoColumn:
    """Column that describes the videos.

    Attributes:
        name: Name of the column.
        number: Whether values are compared as numbers.
        values: Different values if there are few; otherwise empty.
    """

    name: str
    number: bool
    values: tuple[str, ...]

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> VideoColumn:
        """Read a column of an untrusted database; raise ValueError for anything else."""
        name, number, values = facts["name"], facts["number"], facts["values"]
        texts = isinstance(values, list) and len(values) <= _SHOWN_VALUES
        if not (
            texts and isinstance(number, bool) and all(isinstance(v, str) for v in (name, *values))
        ):
            raise ValueError("the description of a column has the wrong types")
        return cls(name, number, tuple(values))


class VideoColumns:
    """Columns of an index's videos, for use by several threads.

    Every index has the column ``path``. Other columns come from the table of videos from which it
    was created, and from a CSV file. The file's first line lists its columns: ``path`` (or video,
    file, filename), relative to the indexed folder or absolute, and any others. If both sources
    contain a column, the file's is used. A column of numbers is compared as numbers and any other
    as text, so dates are written as ``2026-01-31``. Empty cells are NULL, and so are all cells of a
    video without a line. Lines of videos that are not in the index are ignored.

    Args:
        source: Database created by :func:`_fill`, as a file or as its content.
        rows: Number of rows in the index.

    Attributes:
        described: Columns except ``path``.
        names: Names of the columns, with ``path`` first.
        without: Number of videos without a line in the file.
        state: Description, as text, of everything from which the database was created.

    Raises:
        ValueError: If the database does not contain columns.
    """

    def __init__(self, source: Path | bytes, rows: int) -> None:
        self._base, self._lock = _Database(source, rows), threading.Lock()
        made, text, video_of_row = self._base.facts
        facts = parse_json(text.decode(), "the facts")
        self.described = [VideoColumn.from_facts(column) for column in facts["columns"]]
        self.names = ["path", *(column.name for column in self.described)]
        self.without, self.state = operator.index(facts["without"]), str(facts["state"])
        self._source = str(facts["source"])
        self._count = operator.index(facts["videos"])
        self._video_of_row = np.frombuffer(video_of_row, dtype=np.int32)
        numbers = self._video_of_row
        inside = ((numbers >= 0) & (numbers < self._count)).all() and 0 <= self._count <= rows
        known = made.decode() == _videos_sql(self.described)
        if len(numbers) != rows or not inside or not known:
            raise ValueError("it is not a database of columns")
        self._found: OrderedDict[str, np.ndarray] = OrderedDict()  # one bit per row

    def matching(self, where: str) -> np.ndarray:
        """Return (N,) bool, the index rows that meet a condition. Empty text selects all rows.

        Raises:
            ValueError: If SQLite cannot read the condition, it does anything but compare columns,
                or it takes longer than 5 s.
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
            reason = "only columns may be compared: no further SELECT, PRAGMA or ATTACH"
        elif reason.startswith("no such column"):
            names = ", ".join(self.names)
            reason += f"; {self._source or 'without a file of columns (--columns)'} has {names}"
        elif reason.startswith("database disk image"):
            reason = _DAMAGED
        return f"the condition {where!r:.200} cannot be evaluated: {reason}"


class _Database:
    """Client of the :mod:`~sce_video.find.column_process` process on a database of columns.

    The process is kept for later conditions, and restarted after a condition that had to be ended.

    Args:
        source: File of the database, or its content.
        rows: Number of rows in the index.

    Attributes:
        facts: Facts that :meth:`~sce_video.find.column_process.Database.facts` returned.

    Raises:
        ValueError: If the database does not contain columns, or reading it takes too long.
    """

    def __init__(self, source: Path | bytes, rows: int) -> None:
        self._source, self._blob = source, 4 * rows
        self._process: subprocess.Popen[bytes] | None = None
        self.facts = self._start()

    def passing(self, count: int, where: str) -> Iterator[bytes]:
        """Yield the numbers of the matching videos, separated by commas.

        Raises:
            ValueError: If the condition cannot be evaluated. The message is the reason.
        """
        request = f"{count}\n{where}".encode()
        if self._process is None and self._start() != self.facts:
            self.close()
            raise ValueError("the database has been replaced in the meantime. Open the index again")
        with self._conversation() as (asked, answers):
            column_process.send(asked, request)
            longest = column_process.LONGEST_CELL + 1
            while (answer := column_process.receive(answers, longest))[:1] == column_process.KEYS:
                yield answer[1:]
        if answer != column_process.DONE:
            raise ValueError(answer[1:].decode())

    def _start(self) -> tuple[bytes, ...]:
        if isinstance(self._source, bytes):
            address, inside = ":memory:", self._source
        else:  # It is replaced only as a whole, and its folder may not support locks.
            address, inside = f"{self._source.absolute().as_uri()}?mode=ro&immutable=1", b""
        numbers = (str(number) for number in (_SECONDS, self._blob, len(inside)))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", column_process.__file__, address, *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with self._conversation() as (asked, answers):
            if inside:
                column_process.send(asked, inside)
            longest = max(self._blob, column_process.LONGEST_FACTS)
            return tuple(column_process.receive(answers, longest) for _ in range(3))

    @contextmanager
    def _conversation(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """Yield pipes to and from the process, which is ended if the block raises an error."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            yield cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
        except (EOFError, ConnectionError):
            status = process.wait()
            self.close()
            late = status == -signal.SIGALRM
            reason = f"it takes longer than {_SECONDS:g} s" if late else "SQLite cannot read it"
            raise ValueError(reason) from None
        except BaseException:  # the pipe may still contain answers
            self.close()
            raise

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


def columns_file(folder: str | Path, given: str | os.PathLike | None) -> Path | None:
    """Return an index's file of columns: the given file, or ``columns.csv`` in its folder.

    Raises:
        FileNotFoundError: If the given file is missing.
    """
    file = Path(folder, COLUMNS) if given is None else Path(given)
    if file.is_file():
        return file
    if given is not None:
        raise FileNotFoundError(f"there is no file of columns at {file}")
    return None


@dataclass(frozen=True)
class ColumnSources:
    """Sources of the columns.

    Attributes:
        root: Indexed folder.
        file: CSV file with columns.
        table: Table of videos with columns, as a path or a URI.
    """

    root: str
    file: Path | None = None
    table: str | None = None


def columns_of_index(index: VideoIndex, file: str | os.PathLike | None = None) -> VideoColumns:
    """Read the columns of an index, from ``columns.csv`` in its folder if ``file`` is None.

    Columns of many videos or of a large file are stored in ``columns.sqlite`` in the folder of the
    index. For a table of videos with features, they are stored in the user's cache. The database is
    created again if the index, the file or the table has changed.

    Raises:
        FileNotFoundError: If the given file does not exist.
        ValueError, TableError: If :func:`read_columns` cannot read the columns.
    """
    found = columns_file(index.folder, file)
    alone = is_table_folder(index.folder)  # a table of videos that also contains the features
    table = os.fspath(index.folder) if alone else index.root
    sources = ColumnSources(index.root, found, table if is_table(table) else None)
    large = len(index) >= _MANY or (found is not None and found.stat().st_size > _READ_TWICE)
    if not large or not index.stamp:
        return read_columns(index.path_array, sources)
    database, state = Path(index.folder, DATABASE), _state_of(index, sources)
    if alone:
        key = sha256(f"{absolute(table)} {index.stamp[-1]}".encode(errors="surrogateescape"))
        database = cache_folder() / "columns" / f"{key.hexdigest()}.sqlite"
    known = _open_database(database, state, len(index))
    # If the folder cannot be written, the columns are read into memory instead.
    with suppress(WriteError, sqlite3.OperationalError):
        if known is None:
            with atomic_file(database) as unfinished, closing(sqlite3.connect(unfinished)) as base:
                _fill(base, index.path_array, sources, state)
            known = _open_database(database, state, len(index))
    return known or read_columns(index.path_array, sources)


def _state_of(index: VideoIndex, sources: ColumnSources) -> str:
    """Describe everything from which a database of columns is created, as text."""
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
    """Open a database with this state; return None for any other file, which may be untrusted."""
    if not file.is_file():
        return None
    try:
        found = VideoColumns(file, rows)
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
    return found if found.state == state else None


def check_condition(folder: str | Path, file: str | os.PathLike | None, where: str) -> None:
    """Check that SQLite can read a condition on columns, without opening the index.

    Large files and tables of videos are not checked here, but when they are read.

    Raises:
        FileNotFoundError: If the given file of columns is missing.
        ValueError: If :class:`VideoColumns` or its ``matching`` refuses the file or the condition.
    """
    found = columns_file(folder, file)
    described = Path(folder, "index.json")
    # Read only the beginning, because the description of a large table may list many failures.
    text = "" if not described.is_file() else described.open(encoding="utf-8").read(4096)
    of_table = is_table_folder(folder) or re.search(r'"root": "[^"]*\.lance/*"', text)
    if not of_table and (found is None or found.stat().st_size <= _READ_TWICE):
        read_columns(np.empty(0, dtype=np.str_), ColumnSources("", found)).matching(where)


def read_columns(paths: np.ndarray, sources: ColumnSources) -> VideoColumns:
    """Read the columns of an index's rows with (N,) text ``paths`` into memory.

    Without any paths, only the file is checked. From a table of videos, all columns with text,
    numbers, truth values and times are read, except ``settings``, ``failure``, ``source_size`` and
    ``source_mtime_ns``.

    Raises:
        ValueError: If the file is not such a table, or a path has two lines. The message names the
            file and the line.
        TableError: If the table cannot be read.
    """
    with closing(sqlite3.connect(":memory:")) as base:
        _fill(base, paths, sources, "")
        content = base.serialize()
    return VideoColumns(content, len(paths))


def _fill(base: sqlite3.Connection, paths: np.ndarray, sources: ColumnSources, state: str) -> None:
    """Create the tables of :class:`VideoColumns` in an empty database.

    ``videos`` has one row of columns per file in the index. ``facts`` has a single row with a
    description of the columns, as JSON, and the file number of each index row, int32.
    """
    key_of: dict[str, int] = {}  # all windows of a video share its line
    blocks = (paths[at : at + _BLOCK].tolist() for at in range(0, len(paths), _BLOCK))
    keys = (key_of.setdefault(path, len(key_of)) for block in blocks for path in block)
    video_of_row = np.fromiter(keys, np.int32, len(paths))
    base.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
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
    facts = {
        "columns": [asdict(column) for column in columns],
        "without": missing,
        "videos": len(key_of),
        "state": state,
        "source": " and ".join(name for name, _ in given),
    }
    base.execute(column_process.FACTS)
    base.execute("INSERT INTO facts VALUES (?, ?)", (json.dumps(facts), video_of_row.tobytes()))
    base.commit()


def _videos_sql(columns: Sequence[VideoColumn]) -> str:
    """Return the statement that creates the table of columns."""
    named = [(c.name.replace('"', '""'), "NUMERIC" if c.number else "TEXT") for c in columns]
    kinds = ", ".join(["path TEXT", *(f'"{name}" {kind}' for name, kind in named)])
    return f'CREATE TABLE {_TABLE} ("{_KEY}" INTEGER PRIMARY KEY, {kinds})'


@dataclass
class _Values:
    """Summary of a column's values: some different ones, and whether all are numbers."""

    some: set[str] = field(default_factory=set)
    numbers: bool = True

    def note(self, cell: str) -> None:
        """Include another value."""
        if len(self.some) <= _SHOWN_VALUES:
            self.some.add(cell)
        if self.numbers and not _NUMBER.fullmatch(cell):
            self.numbers = False

    def column(self, name: str) -> VideoColumn:
        """Return the column that these values form."""
        shown = len(self.some) <= _SHOWN_VALUES
        shown = shown and max(map(len, self.some), default=0) <= _SHOWN_TEXT
        number = self.numbers and bool(self.some)
        order: list[str] = sorted(self.some if shown else (), key=float if number else None)
        return VideoColumn(name, number, tuple(map(printable_utf8, order)))


class _Lines:
    """Lines of a file or table of columns, the first of which lists the columns.

    Attributes:
        missing: Number of videos without a line, set when the lines have been copied.
    """

    def __init__(
        self, source: str, lines: Iterator[tuple[int, list[str]]], root: str, key_of: dict[str, int]
    ) -> None:
        self._source, self._lines, self._root, self._key_of = source, lines, root, key_of
        number, header = next(lines, (0, []))
        if not header:
            raise ValueError(
                f"{source} is empty: its first line names the columns, path and others"
            )
        lowered = [name.lower() for name in header]
        path = next((lowered.index(name) for name in PATH_COLUMNS if name in lowered), None)
        if path is None:
            raise ValueError(
                f"{source}, line {number}: there is no column path in {','.join(header)!r:.200}. "
                "The first line must name the columns"
            )
        lowered[path] = "path"
        twice = [name for name in lowered if not name or name == _KEY or lowered.count(name) > 1]
        if twice or len(header) > _MOST_COLUMNS:
            what = f"the column {twice[0]!r:.60} is named twice" if twice and twice[0] else ""
            what = what or (
                "a column has no name" if twice else f"more than {_MOST_COLUMNS} columns"
            )
            raise ValueError(f"{source}, line {number}: {what}")
        self._path = path
        self._names = [_utf8(name) for i, name in enumerate(header) if i != path]
        self._values = [_Values() for _ in self._names]
        self.missing = len(key_of)

    def copy(self, base: sqlite3.Connection, table: str) -> list[VideoColumn]:
        """Copy the lines of known videos to a temporary table, and return the other columns.

        The table has the columns ``#`` (number of the video) and ``c0``, ``c1``, ... as raw text.

        Raises:
            ValueError: If a line has too few or too many cells, a cell is too long, a path has two
                lines, or no path is in the index. The message names the file and the line.
        """
        cells = "".join(f", c{place}" for place in range(len(self._names)))
        base.execute(f'CREATE TEMP TABLE {table} ("{_KEY}" INTEGER PRIMARY KEY{cells})')
        marks = ", ".join("?" * (1 + len(self._names)))
        base.executemany(f"INSERT INTO {table} VALUES ({marks})", self._known())
        named = zip(self._names, self._values, strict=True)
        return [values.column(name) for name, values in named]

    def _known(self) -> Iterator[list[Any]]:
        """Yield the number and cells of each line that describes a video of the index."""
        source, key_of, first = self._source, self._key_of, ("none", 0)
        line_of = np.zeros(len(key_of), dtype=np.int64)
        count = 0
        for number, row in self._lines:
            if len(row) != 1 + len(self._names) or not row[self._path]:
                what = f"{len(row)} cells, not {1 + len(self._names)} as in the first line"
                what = what if len(row) != 1 + len(self._names) else "there is no path"
                raise ValueError(f"{source}, line {number}: {what}")
            if (longest := max(map(len, row))) > _MOST_TEXT:
                raise ValueError(
                    f"{source}, line {number}: a cell has {longest} characters, more than "
                    f"{_MOST_TEXT}"
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
            for place, cell in enumerate(row):
                if cell:
                    self._values[place].note(cell)
            yield [key, *(_utf8(cell) if cell else None for cell in row)]
        self.missing = int((line_of == 0).sum())
        if key_of and self.missing == len(key_of):
            raise ValueError(
                f"{source}, line {first[1]}: none of its {count} paths is in the index, for "
                f"example {first[0]}. The index contains {min(key_of)}"
            )


def _lines_of_table(table: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the columns of a table of videos as lines of text."""
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
            # NaN counts as missing, and a truth value becomes 0 or 1.
            values = (int(value) if isinstance(value, bool) else value for value in row)
            yield number, ["" if v is None or v != v else str(v) for v in values]


def _utf8(text: str) -> str:
    """Replace non-UTF-8 bytes, because SQLite refuses them."""
    if text.isascii():  # fast path, because there may be a million cells
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
