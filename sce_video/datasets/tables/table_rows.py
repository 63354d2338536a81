"""Rows of a table, read by the process that uses them."""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from sce_video.datasets.readers.base import ReaderOptions
from sce_video.datasets.readers.errors import VideoDecodeError
from sce_video.datasets.samplers import SampleRequest
from sce_video.datasets.tables.rows import (
    INDEX,
    STREAM,
    DamagedRowError,
    FrameIndex,
    list_rows,
    table_path,
)
from sce_video.datasets.tables.table import (
    BLOCK_SIZE,
    OpenTable,
    RemoteTable,
    TableError,
    cannot,
    is_remote,
    read_table,
)
from sce_video.datasets.tables.table_reader import TableReader

_ROWS_OF_A_READ = 4
_READS_AT_ONCE = 8


@dataclass
class RowData:
    """What has been read of a row."""

    #: Its frames; None until they were read.
    index: FrameIndex | None = None
    #: Why it cannot be read; empty if it can.
    failure: str = ""
    #: Bytes by position, parts of what was read at once.
    packets: dict[int, memoryview] = field(default_factory=dict)
    #: What the first steps of the pipeline have made of a sample, up to its clips, by index and
    #: seed.
    drawn: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    #: A read of its packets that is under way in another thread.
    reading: Future[None] | None = None

    @property
    def frames(self) -> FrameIndex:
        """The index, of a row that can be read."""
        assert self.index is not None
        return self.index


class TableRows:
    """Rows of one version of a table, by their number.

    The table is opened by each process for itself, at its first use. All copies read the same
    version, so row numbers stay valid while others append.

    Args: see :func:`~sce_video.datasets.tables.table.read_table`.

    Attributes:
        bytes_asked: Bytes of packets asked for so far, in this process.
    """

    def __init__(
        self,
        table: str,
        version: int,
        storage_options: Mapping[str, str] | None = None,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        self.table = table
        self.version = version
        self.bytes_asked = 0
        self._storage_options = dict(storage_options or {})
        self._block_size = block_size
        self._opened: OpenTable | RemoteTable | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._pid = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_threads": None, "_pid": 0}

    @property
    def opened(self) -> OpenTable | RemoteTable:
        """The open table of this process."""
        if self._opened is None or self._pid != os.getpid():
            self._opened, self._threads = self._open(), None
            self._pid = os.getpid()
        return self._opened

    @property
    def reads_beside(self) -> bool:
        """Whether rows are read in other threads: from object storage, by this very process."""
        return is_remote(self.table) and isinstance(self.opened, OpenTable)

    def submit(self, read: Callable[..., Any], *arguments: Any) -> Future:
        """Call a function in one of the threads of this process that read; see ``reads_beside``."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_READS_AT_ONCE, "read-ahead")
        return self._threads.submit(read, *arguments)

    def _open(self) -> OpenTable | RemoteTable:
        return read_table(self.table, self._storage_options, self.version, self._block_size)

    def describe(self, row: int) -> str:
        """``row 12 of videos.lance``."""
        return f"row {row} of {self.table}"

    # -- several rows at once ----------------------------------------------------------------

    def read_indexes(self, rows: Sequence[int]) -> dict[int, RowData]:
        """The frame indexes of rows, in one request; a damaged row has a ``failure``.

        Raises:
            TableError: The table cannot be read.
            VideoDecodeError: One of the rows cannot be read (its pages are damaged).
        """
        rows = sorted(set(rows))
        packed = self._ask(rows, "take", rows, [INDEX])
        found = {}
        for row, value in zip(rows, packed[INDEX].to_pylist(), strict=True):
            data = RowData()
            if value is None:
                why = self._ask([row], "take", [row], ["failure"])["failure"][0].as_py()
                data.failure = why or f"{self.describe(row)} has no frame index"
            else:
                try:
                    data.index = FrameIndex.unpack(value)
                except DamagedRowError as error:
                    data.failure = f"{self.describe(row)}: {error}"
            found[row] = data
        return found

    def read_packets(self, wanted: Mapping[int, np.ndarray], data: Mapping[int, RowData]) -> None:
        """Read packets of several rows in one request, into their ``packets``.

        Args:
            wanted: Ascending positions of packets by row.
            data: Of these rows, with their frame index.

        Raises:
            TableError, VideoDecodeError: See :meth:`read_indexes`.
        """
        spans, requests = [], []
        for row, positions in wanted.items():
            missing = [p for p in positions.tolist() if p not in data[row].packets]
            offsets = data[row].frames.offsets
            for first, last in _runs(missing):
                bounds = offsets[first : last + 2].tolist()
                spans.append((row, first, bounds))
                requests.append((row, bounds[0], bounds[-1] - bounds[0]))
        if not requests:
            return
        self.bytes_asked += sum(size for *_, size in requests)
        for number, _, content in self._ask(list(wanted), "read_ranges", STREAM, requests):
            if content is None:
                continue  # reported as missing by packets_of
            row, first, bounds = spans[number]
            view, packets = memoryview(content), data[row].packets
            for position, (begin, end) in enumerate(pairwise(bounds), first):
                packets[position] = view[begin - bounds[0] : end - bounds[0]]

    def start_reading(self, wanted: Mapping[int, np.ndarray], data: Mapping[int, RowData]) -> None:
        """As :meth:`read_packets`, but object storage is read while the first rows are decoded.

        Rows are read in the order of ``wanted``, a few at a time; :meth:`packets_of` waits for
        those that it needs.
        """
        if not self.reads_beside:
            self.read_packets(wanted, data)
            return
        rows = list(wanted)
        for begin in range(0, len(rows), _ROWS_OF_A_READ):
            part = {row: wanted[row] for row in rows[begin : begin + _ROWS_OF_A_READ]}
            reading = self.submit(self.read_packets, part, data)
            for row in part:
                data[row].reading = reading

    # -- one row -----------------------------------------------------------------------------

    def open(
        self, row: int, path: str, data: RowData | None, options: ReaderOptions
    ) -> TableReader:
        """The reader of a row, of which ``data`` was read before.

        ``path`` is named in messages; ``options`` are those of :class:`TableReader`.

        Raises:
            VideoDecodeError: It cannot be read, or its frames are too large.
            TableError: The table cannot be read.
        """
        if data is None:
            try:
                data = self.read_indexes([row])[row]
            except VideoDecodeError as error:
                raise VideoDecodeError(path, error.reason, error.permanent) from error
        if data.index is None:
            raise VideoDecodeError(path, data.failure)
        fetch = partial(self.packets_of, row, path, data)
        return TableReader(path, index=data.index, fetch=fetch, **options)

    def packets_of(
        self, row: int, path: str, data: RowData, positions: np.ndarray
    ) -> list[bytes | memoryview]:
        """The bytes of some packets of a row, checked; reads those that were not read before.

        Raises:
            VideoDecodeError: Bytes are missing or damaged.
            TableError: The table cannot be read.
        """
        index = data.frames
        if data.reading is not None:
            reading, data.reading = data.reading, None
            with suppress(VideoDecodeError):  # of one of several rows: read alone below
                reading.result()
        if any(position not in data.packets for position in positions.tolist()):
            try:
                self.read_packets({row: positions}, {row: data})
            except VideoDecodeError as error:
                raise VideoDecodeError(path, error.reason, error.permanent) from error
        packets: list[bytes | memoryview] = []
        for position, check in zip(
            positions.tolist(), index.checks[positions].tolist(), strict=True
        ):
            packet = data.packets.get(position)
            if packet is None or zlib.crc32(packet) != check:
                raise VideoDecodeError(
                    path, f"{self.describe(row)}: the bytes of packet {position} are damaged"
                )
            packets.append(packet)
        return packets

    def _ask(self, rows: Sequence[int], method: str, *arguments: Any) -> Any:
        """What the table answers; errors are those of the table, or else of the rows."""
        try:
            return self.opened.call(method, *arguments)
        except TableError:
            raise
        except BaseException as error:
            # Lance raises these, and its panics, on damaged pages, are no Exception.
            panic = type(error).__name__ == "PanicException"
            if not panic and not isinstance(error, OSError | ValueError | RuntimeError):
                raise
            # A table that can still be opened can be reached, so the fault is in the rows.
            self._open()
            names = f"{self.describe(rows[0])}" + (" and others" if len(rows) > 1 else "")
            reason = cannot("read", self.table, error)
            raise VideoDecodeError(names, f"{names}: {reason}", False) from error


def _runs(positions: list[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], position)
        else:
            runs.append((position, position))
    return runs


Rows = dict[int, RowData]


class ReadAhead:
    """Reads rows for batches of samples.

    Reading a batch takes three rounds of requests: frame indexes, where the rows lie, packets. From
    object storage those of the next batch are read while the samples of this one are decoded, so
    that their latency is not waited for.

    Args:
        source: The rows.
        rows: (N,) row number of each sample.
        needed: Positions of the packets that some requests need, by row, from their frame indexes.
    """

    def __init__(
        self,
        source: TableRows,
        rows: np.ndarray,
        needed: Callable[[Sequence[SampleRequest], Rows], Mapping[int, np.ndarray]],
    ) -> None:
        self._source = source
        self._rows = rows
        self._needed = needed
        self._next: tuple[Sequence[SampleRequest], Future[Rows]] | None = None
        self._pid = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_next": None}

    def read(self, requests: Sequence[SampleRequest], following: Sequence[SampleRequest]) -> Rows:
        """What was read for a batch, packets of which may be under way; by row.

        Args:
            requests: The batch.
            following: The one that this process makes next, where that is known.

        Raises:
            TableError, VideoDecodeError: See :meth:`TableRows.read_indexes`.
        """
        if self._pid != os.getpid():
            self._next, self._pid = None, os.getpid()
        before, self._next = self._next, None
        if before is not None and before[0] == requests:
            found = before[1].result()
        else:
            found = self._start(requests)
        if following and self._source.reads_beside:
            self._next = following, self._source.submit(self._start, following)
        return found

    def _start(self, requests: Sequence[SampleRequest]) -> Rows:
        rows = [int(self._rows[request.index]) for request in requests]
        found = self._source.read_indexes(rows)
        self._source.start_reading(self._needed(requests, found), found)
        return found


class NamedRows:
    """The rows of the newest version of a table, found by their paths.

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

    def open(self, path: str, name: str, options: ReaderOptions) -> TableReader:
        """The reader of the row of a path, which messages call ``name``; see :class:`TableRows`.

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
