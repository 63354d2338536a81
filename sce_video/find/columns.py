"""Columns of the videos of an index (camera, date, site, ...), and conditions on them in SQL.

A condition may be a stranger's: SQLite evaluates it in a database in memory that holds nothing but
these columns, reads one table by functions of a list, and is stopped when it takes long.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sce_video.datasets.labelled import PATH_COLUMNS
from sce_video.datasets.segments import read_csv_lines
from sce_video.utils.command import printable_utf8

if TYPE_CHECKING:  # which needs torch; a mistyped condition is told before that is imported
    from sce_video.find.store import VideoIndex

#: The file beside an index that is read unless another is named.
COLUMNS = "columns.csv"
_SECONDS = 5.0  # for one condition
_STEPS = 1000  # of SQLite's machine between two looks at the clock
_SHOWN_VALUES = 50  # of a column, for the page
_READ_TWICE = 4 * 2**20  # bytes; a larger file takes as long as the imports that come after it
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d{1,2})?", re.ASCII)
#: Of a condition: no part of it may take long within one step of the machine.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
}
_FUNCTIONS = frozenset(
    "abs coalesce date datetime glob ifnull instr julianday length like lower ltrim max min nullif "
    "round rtrim strftime substr substring time trim typeof upper".split()
)
_TABLE, _KEY = "videos", "#"
_MOST_COLUMNS, _MOST_TEXT = 200, 10_000


class VideoColumns:
    """The columns of the videos of an index; for several threads.

    Every index has the column ``path``. Others are those of a CSV file whose first line names them:
    ``path`` (or video, file, filename), relative to the indexed folder or absolute, and any more. A
    column of numbers is compared as numbers, another as text, so dates as ``2026-01-31``; empty
    cells, and all of a video without a line, are NULL. Lines of other videos are passed over.

    Args:
        paths: (N,) text, of the rows of the index; with none at all the file alone is checked.
        root: The indexed folder.
        file: Of the columns; None if there is only the path.

    Attributes:
        file: As given.
        names: Their names, ``path`` first.
        without: Paths of the index that have no line.

    Raises:
        ValueError: the file is no such table, or a path has two lines; with file and line.
    """

    def __init__(self, paths: np.ndarray, root: str, file: Path | None) -> None:
        self.file = file
        self.names: list[str] = ["path"]
        self.without: list[str] = []
        cells: dict[str, list[str]] = {}
        # Windows of a video share its line.
        videos, self._video_of_row = np.unique(paths.astype(str), return_inverse=True)
        self._paths: list[str] = videos.tolist()
        if file is not None:
            self.names, cells = _read_columns(file, root, set(self._paths))
            self.without = [path for path in self._paths if path not in cells]
        self._lock, self._selects, self._deadline = threading.Lock(), 0, 0.0
        self._base = sqlite3.connect(":memory:", check_same_thread=False)
        self._values = self._fill(cells)
        self._base.set_authorizer(self._allow)
        self._base.set_progress_handler(lambda: time.monotonic() > self._deadline, _STEPS)
        for limit, most in _LIMITS.items():
            self._base.setlimit(limit, most)

    def _fill(self, cells: dict[str, list[str]]) -> list[dict[str, Any]]:
        """Make the table of the database; returns what :meth:`describe` does."""
        kinds, found = ["TEXT"], []
        for number, name in enumerate(self.names[1:]):
            values = {row[number] for row in cells.values()} - {""}
            numbers = bool(values) and all(map(_NUMBER.fullmatch, values))
            kinds.append("NUMERIC" if numbers else "TEXT")
            few = values if len(values) <= _SHOWN_VALUES else set()
            shown = sorted(few, key=float if numbers else None)
            found.append({"name": name, "number": numbers, "values": [*map(printable_utf8, shown)]})
        quoted = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in self.names]
        columns = ", ".join(f"{n} {k}" for n, k in zip(quoted, kinds, strict=True))
        self._base.execute(f'CREATE TABLE {_TABLE} ("{_KEY}" INTEGER PRIMARY KEY, {columns})')
        none = [None] * (len(self.names) - 1)

        def rows() -> Iterator[list[Any]]:
            for key, path in enumerate(self._paths):
                row = cells.get(path)
                values = none if row is None else [_utf8(cell) if cell else None for cell in row]
                yield [key, _utf8(path), *values]

        marks = ", ".join("?" * (len(self.names) + 1))
        self._base.executemany(f"INSERT INTO {_TABLE} VALUES ({marks})", rows())
        self._base.commit()
        return found

    def describe(self) -> list[dict[str, Any]]:
        """Of each column but the path its name, whether it holds numbers, and its values if they
        are few."""
        return self._values

    def matching(self, where: str) -> np.ndarray:
        """(N,) bool, the rows of the index for which a condition is true; empty text is for all.

        Raises:
            ValueError: SQLite cannot read the condition, it does more than to compare columns, or
                it takes longer than 5 s.
        """
        if not where.strip():
            return np.ones(len(self._video_of_row), dtype=bool)
        # On a line of its own: a comment at its end does not hide the bracket.
        text = f'SELECT "{_KEY}" FROM {_TABLE} WHERE (\n{where}\n)'
        with self._lock:
            self._selects, self._deadline = 0, time.monotonic() + _SECONDS
            try:
                keys = [key for (key,) in self._base.execute(text)]
            except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
                raise ValueError(self._explained(where, error)) from None
        found = np.zeros(len(self._paths), dtype=bool)
        found[np.array(keys, dtype=np.int64)] = True
        return found[self._video_of_row]

    def _allow(self, action: int, first: str | None, second: str | None, *_: Any) -> int:
        """Whether SQLite may do something that a condition asks for."""
        if action == sqlite3.SQLITE_SELECT:  # no query inside the condition, or joined to ours
            self._selects += 1
            allowed = self._selects == 1
        elif action == sqlite3.SQLITE_READ:
            allowed = first == _TABLE
        else:
            allowed = action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _FUNCTIONS
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _explained(self, where: str, error: Exception) -> str:
        reason = " ".join(str(error).split()) or type(error).__name__
        if reason == "interrupted":
            reason = f"it takes longer than {_SECONDS:g} s"
        elif reason == "not authorized":
            reason = "only columns may be compared: no further SELECT, PRAGMA or ATTACH"
        elif reason.startswith("no such column"):
            names = ", ".join(self.names)
            reason += f"; {self.file or 'without a file of columns (--columns)'} has {names}"
        return f"the condition {where!r:.200} cannot be evaluated: {reason}"


def columns_file(folder: str | Path, given: str | os.PathLike | None) -> Path | None:
    """The file of columns of an index: the given one, else ``columns.csv`` in its folder.

    None if there is none; FileNotFoundError for a given one that is missing.
    """
    file = Path(folder, COLUMNS) if given is None else Path(given)
    if file.is_file():
        return file
    if given is not None:
        raise FileNotFoundError(f"no file of columns at {file}")
    return None


def columns_of_index(index: VideoIndex, file: str | os.PathLike | None = None) -> VideoColumns:
    """The columns of an index; ``file`` None is ``columns.csv`` in its folder, if it is there."""
    return VideoColumns(index.path_array, index.root, columns_file(index.folder, file))


def check_condition(folder: str | Path, file: str | os.PathLike | None, where: str) -> None:
    """See that SQLite can read a condition on columns, without the index; of large files it is seen
    later.

    Raises:
        FileNotFoundError, ValueError: as of :class:`VideoColumns` and its ``matching``.
    """
    found = columns_file(folder, file)
    if found is None or found.stat().st_size <= _READ_TWICE:
        VideoColumns(np.empty(0, dtype=np.str_), "", found).matching(where)


def _utf8(text: str) -> str:
    """Bytes that are no UTF-8, which SQLite does not take, as replacement characters."""
    if text.isascii():  # a million cells
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _read_columns(file: Path, root: str, known: set[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Names of the columns, ``path`` first, and the cells of each known path without it."""
    lines = read_csv_lines(file)
    if not lines:
        raise ValueError(f"{file} is empty: its first line names the columns, path and others")
    (number, header), *rows = lines
    lowered = [name.lower() for name in header]
    key = next((lowered.index(name) for name in PATH_COLUMNS if name in lowered), None)
    if key is None:
        raise ValueError(
            f"{file}, line {number}: there is no column path in {','.join(header)!r:.200}: the "
            "first line names the columns"
        )
    lowered[key] = "path"
    twice = [name for name in lowered if not name or name == _KEY or lowered.count(name) > 1]
    if twice or len(header) > _MOST_COLUMNS:
        what = f"the column {twice[0]!r:.60} is named twice" if twice and twice[0] else ""
        what = what or ("a column has no name" if twice else f"more than {_MOST_COLUMNS} columns")
        raise ValueError(f"{file}, line {number}: {what}")
    cells: dict[str, list[str]] = {}
    line_of: dict[str, int] = {}
    for number, row in rows:
        if len(row) != len(header) or not row[key]:
            what = f"{len(row)} cells, not {len(header)} as in the first line"
            what = what if len(row) != len(header) else "there is no path"
            raise ValueError(f"{file}, line {number}: {what}")
        if (longest := max(map(len, row))) > _MOST_TEXT:
            raise ValueError(
                f"{file}, line {number}: a cell of {longest} characters, at most {_MOST_TEXT}"
            )
        path = os.path.relpath(row[key], root) if os.path.isabs(row[key]) else row[key]
        if path in line_of:
            raise ValueError(
                f"{file}, line {number}: {path} has a line already, line {line_of[path]}: remove "
                "one of them"
            )
        line_of[path] = number
        if path in known:
            cells[path] = row[:key] + row[key + 1 :]
    if known and not cells:
        first, line = next(iter(line_of.items()), ("none", number))
        raise ValueError(
            f"{file}, line {line}: none of its {len(line_of)} paths is in the index, the first is "
            f"{first}; the index has {min(known)}"
        )
    return ["path", *(name for i, name in enumerate(header) if i != key)], cells
