"""Rows of a table by their paths: ``videos.lance/a/0.mp4`` is the row ``a/0.mp4``."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np

from sce_video.datasets.readers.errors import VideoDecodeError
from sce_video.datasets.tables.rows import list_rows, table_path
from sce_video.datasets.tables.table_reader import TableReader
from sce_video.datasets.tables.table_rows import TableRows


class NamedRows:
    """The rows of the newest version of a table, found by their paths.

    Args:
        table: Path or URI.

    Attributes:
        videos: Paths and labels, sorted by path; without rows of failed imports.

    Raises:
        TableError, MissingPackageError: See :func:`~sce_video.datasets.tables.rows.list_rows`.
        ValueError: No row can be read.
    """

    def __init__(self, table: str) -> None:
        found = list_rows(table)
        self.videos = found.videos
        self._rows = found.rows
        self._source = TableRows(table, found.version)

    def number(self, path: str) -> int | None:
        """Row number of a path; None if there is no such row, or its import failed."""
        wanted, count = table_path(path), len(self.videos)
        at = bisect_left(range(count), wanted, key=self.videos.path)
        found = at < count and self.videos.path(at) == wanted
        return int(self._rows[at]) if found else None

    def frame_indexes(self, samples: np.ndarray) -> list[Any]:
        """Frame index of some videos by position in ``videos``; the reason where it is damaged."""
        rows = self._rows[samples].tolist()
        data = self._source.read_indexes(rows)
        return [data[row].index or data[row].failure for row in rows]

    def open(self, path: str, name: str, options: Mapping[str, Any]) -> TableReader:
        """The reader of a row.

        Args:
            path: Of the row.
            name: For messages.
            options: Of :class:`TableReader`.

        Raises:
            VideoDecodeError: There is no such row, or it cannot be read.
            TableError: The table cannot be read.
        """
        row = self.number(path)
        if row is None:
            raise VideoDecodeError(name, "the table has no such row, or its import failed")
        return self._source.open(row, name, None, options)


#: Of this process, and of those that it forks.
_opened: dict[str, NamedRows] = {}


def named_rows(table: str | os.PathLike[str]) -> NamedRows:
    """The rows of a table, which is listed once per process; errors as of :class:`NamedRows`."""
    key = os.fspath(table).rstrip("/")
    if key not in _opened:
        _opened[key] = NamedRows(key)
    return _opened[key]
