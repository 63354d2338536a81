"""Rows of a table, which each process reads for itself and decodes without a file."""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import Any, Unpack

import av
import numpy as np

from sce_video.datasets.pipeline import PipelineResults
from sce_video.datasets.readers.av_file import make_packet, open_decoder
from sce_video.datasets.readers.av_reader import AvFrames, HeldFrames
from sce_video.datasets.readers.base import (
    DecodedFrames,
    DecodeLimits,
    ReaderOptions,
    VideoDecodeError,
    VideoReader,
    check_damage,
    check_deadline,
)
from sce_video.datasets.tables.row_columns import (
    INDEX,
    STREAM,
    CodecParameters,
    DamagedRowError,
    FrameIndex,
    list_rows,
    table_path,
)
from sce_video.datasets.tables.table import (
    OpenTable,
    RemoteTable,
    TableError,
    cannot,
    is_remote,
    read_table,
)

_ROWS_OF_A_READ = 4
_READS_AT_ONCE = 20  # number of simultaneous reads; enough for two batches of 32

# Open decoders that are not in use. They are kept, because opening a decoder takes as long as
# decoding one or two frames, and the streams of a table share few sets of parameters. A decoder is
# dropped if it raised an error or if its thread was abandoned.
_idle_decoders: OrderedDict[tuple[CodecParameters, int, int], Any] = OrderedDict()
_idle_lock = Lock()
_MOST_IDLE = 8
# Only these decoders are used more than once. A damaged frame may show parts of earlier frames,
# even from another row. These decoders flag such frames, which are then decoded again with a new
# decoder.
_REUSED = frozenset({"h264", "mpeg4", "vp9", "av1", "libdav1d"})


class TableReader(VideoReader):
    """Reader of a row's frames, which are bit-identical to the frames of ``AvReader``.

    ``fetch`` receives ascending positions of packets and returns their bytes. If a reader is opened
    before its sample is made, its ``deadline`` is set later. The option ``correction`` is not used.
    """

    def __init__(
        self,
        path: str,
        *,
        index: FrameIndex,
        fetch: Callable[[np.ndarray], Sequence[bytes | memoryview]],
        **options: Unpack[ReaderOptions],
    ) -> None:
        super().__init__(path, **options)
        self._index, self._fetch = index, fetch
        self.limits.check_frame(path, index.parameters.height, index.parameters.width)
        self.timestamps, self.duration = index.timestamps, index.duration

    def read(self, indices: np.ndarray) -> np.ndarray:
        return self.decode(indices).stacked(self.path, self.limits)

    def decode(self, indices: np.ndarray) -> DecodedFrames:
        indices = self._check_indices(indices)
        index, positions = self._index, self._index.packets_for(indices)
        packets = self._fetch(positions)
        wanted, stamps = index.pts[indices].tolist(), index.pts[positions].tolist()
        check_deadline(self.path, self.deadline)
        timed = zip(stamps, packets, strict=True)
        try:
            found = _decode(index.parameters, timed, set(wanted), self.num_threads, self.limits)
        except (av.FFmpegError, ValueError) as error:
            raise VideoDecodeError(self.path, f"cannot be decoded: {error}", False) from error
        if len(found) < len(wanted):
            missing = [int(i) for i, pts in zip(indices, wanted, strict=True) if pts not in found]
            raise VideoDecodeError(self.path, f"frame {missing[0]} cannot be decoded", False)
        held = HeldFrames(self.path, self.limits)
        frames = [held.checked(found[pts]) for pts in wanted]
        damaged = sum(frame.is_corrupt for frame in frames)
        self.damaged += damaged
        check_damage(self.path, damaged, len(frames))
        decoded = AvFrames(frames, None, self.num_threads, index.turns)
        self._size = decoded.size
        return decoded

    def close(self) -> None:
        """Do nothing, because a reader keeps no file open."""


def _decode(
    parameters: CodecParameters,
    packets: Iterable[tuple[int, bytes | memoryview]],
    wanted: set[int],
    num_threads: int,
    limits: DecodeLimits,
) -> dict[int, av.VideoFrame]:
    """Decode packets (timestamp, bytes) from a key frame on, and return the wanted frames.

    av.FFmpegError is raised if the decoder refuses its parameters or a packet.
    """
    key, packets = (parameters, num_threads, limits.max_pixels), list(packets)
    with _idle_lock:
        codec = _idle_decoders.pop(key, None)
    if codec is not None:
        found, damaged = _decode_with(codec, packets, wanted)
        if not damaged:
            _keep_idle(key, codec)
            return found
    codec = av.CodecContext.create(parameters.codec, "r")
    # Set the parameters that a file's container would provide.
    codec.extradata = parameters.extradata or None
    codec.width, codec.height = parameters.width, parameters.height
    names = ("color_range", "colorspace", "color_primaries", "color_trc")
    for name, value in zip(names, parameters.colors, strict=True):
        setattr(codec, name, value)
    open_decoder(codec, num_threads, limits)
    found, damaged = _decode_with(codec, packets, wanted)
    if not damaged and parameters.codec in _REUSED:
        _keep_idle(key, codec)
    return found


def _decode_with(
    codec: Any, packets: Iterable[tuple[int, bytes | memoryview]], wanted: set[int]
) -> tuple[dict[int, av.VideoFrame], bool]:
    """Decode with an open decoder, and return the wanted frames and whether any is damaged."""
    found: dict[int, av.VideoFrame] = {}
    count, damaged = 0, False

    def keep(frames: list[av.VideoFrame]) -> None:
        nonlocal damaged
        for frame in frames:
            damaged |= frame.is_corrupt
            if frame.pts in wanted:
                found[frame.pts] = frame

    for count, (pts, data) in enumerate(packets, 1):  # noqa: B007
        packet = make_packet(data)
        packet.pts = packet.dts = pts
        keep(codec.decode(packet))
    if len(found) < len(wanted):  # the decoder still holds some frames
        keep(codec.decode(None))
        codec.flush_buffers()
    elif count > len(wanted):  # the decoder may still hold an unwanted frame
        codec.flush_buffers()
    return found, damaged


def _keep_idle(key: tuple[CodecParameters, int, int], codec: Any) -> None:
    with _idle_lock:
        _idle_decoders[key] = codec
        while len(_idle_decoders) > _MOST_IDLE:
            _idle_decoders.popitem(last=False)


@dataclass
class RowData:
    """Data that was read from a row.

    Attributes:
        index: Frame index; None until it is read.
        failure: Reason why the row cannot be read; empty if it can be read.
        packets: Bytes of packets by position, which are parts of what a request has read.
        drawn: Results of the pipeline's first steps, up to sampling clips, by index and seed.
        reading: Read of packets that is in progress in another thread.
    """

    index: FrameIndex | None = None
    failure: str = ""
    packets: dict[int, memoryview] = field(default_factory=dict)
    drawn: dict[tuple[int, int], PipelineResults] = field(default_factory=dict)
    reading: Future[None] | None = None


Rows = dict[int, RowData]


class TableRows:
    """Rows of one version of a table, by number.

    Each process opens the table for itself. All copies read the same version, so row numbers stay
    valid while other processes append rows. The arguments are explained at
    :func:`~sce_video.datasets.tables.table.read_table`.
    """

    def __init__(
        self,
        table: str,
        version: int,
        storage_options: Mapping[str, str] | None = None,
        block_size: int | None = None,
    ) -> None:
        self.table, self.version = table, version
        self._storage_options, self._block_size = dict(storage_options or {}), block_size
        self._opened: OpenTable | RemoteTable | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._pid = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_threads": None, "_pid": 0}

    @property
    def opened(self) -> OpenTable | RemoteTable:
        """Return the table that is open in this process."""
        if self._opened is None or self._pid != os.getpid():
            self._opened, self._pid = self._open(), os.getpid()
            self._threads = ThreadPoolExecutor(_READS_AT_ONCE, "read-ahead")  # starts no thread yet
        return self._opened

    @property
    def reads_beside(self) -> bool:
        """Return whether this process reads rows from object storage, in its own threads."""
        return is_remote(self.table) and isinstance(self.opened, OpenTable)

    def submit(self, read: Callable[..., Any], *arguments: Any) -> Future:
        """Call a function in one of the reading threads; see ``reads_beside``."""
        assert self._threads is not None
        return self._threads.submit(read, *arguments)

    def _open(self) -> OpenTable | RemoteTable:
        return read_table(self.table, self._storage_options, self.version, self._block_size)

    def describe(self, row: int) -> str:
        """Return ``row 12 of videos.lance``."""
        return f"row {row} of {self.table}"

    def read_indexes(self, rows: Sequence[int]) -> Rows:
        """Read the frame indexes of rows in one request. A damaged row gets a ``failure``.

        Raises:
            TableError: If the table cannot be read.
            VideoDecodeError: If the pages of one of the rows are damaged.
        """
        rows = sorted(set(rows))
        packed = self._ask(rows, "take", rows, [INDEX])
        found = {row: RowData() for row in rows}
        for row, value in zip(rows, packed[INDEX].to_pylist(), strict=True):
            if value is None:
                why = self._ask([row], "take", [row], ["failure"])["failure"][0].as_py()
                found[row].failure = why or f"{self.describe(row)} has no frame index"
                continue
            try:
                found[row].index = FrameIndex.unpack(value)
            except DamagedRowError as error:
                found[row].failure = f"{self.describe(row)}: {error}"
        return found

    def read_packets(self, wanted: Mapping[int, np.ndarray], data: Mapping[int, RowData]) -> None:
        """Read packets of several rows in one request, and add them to the rows' ``data``.

        ``wanted`` contains ascending positions by row. Errors are the same as for
        :meth:`read_indexes`.
        """
        spans, requests = [], []
        for row, positions in wanted.items():
            index = data[row].index
            assert index is not None
            missing = [p for p in positions.tolist() if p not in data[row].packets]
            for run in np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1):
                if len(run):  # consecutive packets form a single byte range
                    bounds = index.offsets[int(run[0]) : int(run[-1]) + 2].tolist()
                    spans.append((row, int(run[0]), bounds))
                    requests.append((row, bounds[0], bounds[-1] - bounds[0]))
        if not requests:
            return
        for number, _, content in self._ask(list(wanted), "read_ranges", STREAM, requests):
            if content is None:
                continue  # packets_of will report it as missing
            row, first, bounds = spans[number]
            view, packets = memoryview(content), data[row].packets
            for position, (begin, end) in enumerate(pairwise(bounds), first):
                packets[position] = view[begin - bounds[0] : end - bounds[0]]

    def start_reading(self, wanted: Mapping[int, np.ndarray], data: Mapping[int, RowData]) -> None:
        """Start reading packets from object storage, while the first rows are already decoded.

        Rows are read in the order of ``wanted``, a few at a time, and :meth:`packets_of` waits for
        the packets that it needs. From a disk, packets are read immediately.
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

    def open(
        self, row: int, path: str, data: RowData | None, options: ReaderOptions
    ) -> TableReader:
        """Return the reader of a row, named ``path`` in messages; ``data`` was read before.

        Raises:
            VideoDecodeError: If the row cannot be read, or its frames are too large.
            TableError: If the table cannot be read.
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
        """Return the checked bytes of packets of a row, and read packets that are missing.

        Raises:
            VideoDecodeError: If bytes are missing or damaged.
            TableError: If the table cannot be read.
        """
        if data.reading is not None:
            reading, data.reading = data.reading, None
            with suppress(VideoDecodeError):  # one of several rows failed, so try this row alone
                reading.result()
        try:
            self.read_packets({row: positions}, {row: data})
        except VideoDecodeError as error:
            raise VideoDecodeError(path, error.reason, error.permanent) from error
        packets: list[bytes | memoryview] = []
        assert data.index is not None
        checks = data.index.checks[positions].tolist()
        for position, check in zip(positions.tolist(), checks, strict=True):
            if position not in data.packets or zlib.crc32(data.packets[position]) != check:
                raise VideoDecodeError(
                    path, f"{self.describe(row)}: the bytes of packet {position} are damaged"
                )
            packets.append(data.packets[position])
        return packets

    def _ask(self, rows: Sequence[int], method: str, *arguments: Any) -> Any:
        """Call a method of the table. The error shows whether the table or a row is at fault."""
        try:
            return self.opened.call(method, *arguments)
        except TableError:
            raise
        except BaseException as error:
            # Lance raises these errors, or panics on damaged pages. A panic is not an Exception.
            panic = type(error).__name__ == "PanicException"
            if not panic and not isinstance(error, OSError | ValueError | RuntimeError):
                raise
            self._open()  # raises TableError unless only the rows are at fault
            names = self.describe(rows[0]) + (" and others" if len(rows) > 1 else "")
            reason = f"{names}: {cannot('read', self.table, error)}"
            raise VideoDecodeError(names, reason, False) from error


class NamedRows:
    """Rows of a table's newest version, which are found by their paths.

    Errors are the same as for :func:`~sce_video.datasets.tables.row_columns.list_rows`.
    """

    def __init__(self, table: str) -> None:
        found = list_rows(table)
        #: Paths and labels of all rows, sorted by path. Rows of failed imports are left out.
        self.videos = found.videos
        self._rows = found.rows
        self._source = TableRows(table, found.version)

    def number(self, path: str) -> int | None:
        """Return the row number of a path; None if the row is missing or its import failed."""
        wanted, count = table_path(path), len(self.videos)
        at = bisect_left(range(count), wanted, key=self.videos.path)
        found = at < count and self.videos.path(at) == wanted
        return int(self._rows[at]) if found else None

    def frame_indexes(self, samples: np.ndarray) -> list[Any]:
        """Return the frame index, or the reason for damage, of each position in ``videos``."""
        rows = self._rows[samples].tolist()
        data = self._source.read_indexes(rows)
        return [data[row].index or data[row].failure for row in rows]

    def open(self, path: str, name: str, options: ReaderOptions) -> TableReader:
        """Open the row of a path, whose name in messages is ``name``."""
        row = self.number(path)
        if row is None:
            raise VideoDecodeError(name, "the table has no such row, or its import failed")
        return self._source.open(row, name, None, options)


#: Tables that this process has already listed. Forked processes inherit them.
_opened: dict[str, NamedRows] = {}


def named_rows(table: str | os.PathLike[str]) -> NamedRows:
    """Return the rows of a table, which are listed once per process."""
    key = os.fspath(table).rstrip("/")
    if key not in _opened:
        _opened[key] = NamedRows(key)
    return _opened[key]
