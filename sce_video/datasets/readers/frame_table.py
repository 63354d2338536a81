"""The table of a video's frames: when each is displayed and where decoding can start.

Two sources give the same table: all packets of the stream (:func:`table_from_packets`), and the
index of an mp4, mov or AVI file, for which no media data is read (:func:`table_from_index`).
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import av
import numpy as np

_MAX_MOOV_BYTES = 256 * 2**20  # a larger header is taken to be corrupt


@dataclass(frozen=True)
class FrameTable:
    """The packets of a video stream, in decoding order.

    Attributes:
        pts: (F,) int64, presentation time stamp of each packet, in the stream's time base.
        is_key: (F,) bool, whether it is a key frame, where decoding can start.
        last_duration: Duration of the frame displayed last, same unit; 0 if not stated.
        hidden: (F,) bool, frames cut away by an edit list: decoded, because others refer to them,
            but never displayed. None if there are none.
        false_keys: Whether the container flags other packets as key frames too, where decoding
            cannot start (see ``restart_points.py``).
    """

    pts: np.ndarray
    is_key: np.ndarray
    last_duration: int
    hidden: np.ndarray | None = None
    false_keys: bool = False

    @property
    def display_order(self) -> np.ndarray:
        """Indices of the packets whose frames are displayed, sorted by time stamp."""
        shown = np.arange(len(self.pts)) if self.hidden is None else np.flatnonzero(~self.hidden)
        return shown[np.argsort(self.pts[shown], kind="stable")]

    @property
    def reordered(self) -> bool:
        """Whether decoding order and display order differ (B frames)."""
        return bool((np.diff(self.pts) < 0).any())


def table_from_packets(
    pts: list[int],
    is_key: list[bool],
    durations: list[int],
    hidden: list[bool],
    false_keys: bool = False,
) -> FrameTable:
    """The table of packets that were read; for the arguments see :class:`FrameTable`."""
    stamps = np.asarray(pts, dtype=np.int64)
    cut = np.asarray(hidden, dtype=bool)
    shown = np.flatnonzero(~cut)
    last = durations[int(shown[np.argmax(stamps[shown])])] if shown.size else 0
    cut_or_none = cut if cut.any() else None
    return FrameTable(stamps, np.asarray(is_key, dtype=bool), last, cut_or_none, false_keys)


class TableCache:
    """Least-recently-used cache of tables of files that had to be read to the end.

    Args:
        capacity: Number of tables; each takes nine bytes a frame.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tables: OrderedDict[tuple[str, int, int], FrameTable] = OrderedDict()

    def get(self, path: str) -> FrameTable | None:
        """The table of a file if it is cached and the file has not changed since, else None."""
        key = _identity(path)
        table = self._tables.get(key)
        if table is not None:
            self._tables.move_to_end(key)
        return table

    def put(self, path: str, table: FrameTable) -> None:
        """Add the table of a file."""
        self._tables[_identity(path)] = table
        while len(self._tables) > self._capacity:
            self._tables.popitem(last=False)


def _identity(path: str) -> tuple[str, int, int]:
    status = os.stat(path)
    return os.path.abspath(path), status.st_size, status.st_mtime_ns


def table_from_index(path: str, stream: av.VideoStream) -> FrameTable | None:
    """The table of an mp4, mov or AVI file, from the index that FFmpeg reads when opening it.

    The index has offset, decoding time and key-frame flag of each sample, for mp4 after the edit
    list. FFmpeg does not expose the difference of decoding and presentation time (``ctts``), so it
    is read from the file here. The time stamps are right up to one constant, which the first packet
    gives (see ``AvStream``), and key-frame flags are those of the container: decoding may be
    impossible to start there.

    Returns:
        None where it is not certain that the packets give the same table: other containers,
        fragmented files, edit lists that cut or repeat frames, AVI files with B frames, empty
        samples, truncated files, tables that contradict each other.
    """
    entries = getattr(stream, "index_entries", None)  # PyAV 18
    # More frames than bytes: a few bytes of an index can state millions of samples.
    file_size = os.path.getsize(path)
    if entries is None or not 0 < len(entries) <= file_size:
        return None
    name = stream.container.format.name
    if name.startswith("mov,"):
        samples = _read_sample_tables(path, stream.id, len(entries))
    elif name == "avi" and not stream.codec_context.has_b_frames:
        count = len(entries)  # counted in frames
        samples = _SampleTables(np.ones(count, np.int64), np.zeros(count, np.int64))
    else:
        return None
    if samples is None:
        return None
    rows = [(e.timestamp, e.pos, e.size, e.is_keyframe, e.is_discard) for e in entries]
    dts, byte_offsets, sizes, keys, discarded = np.array(rows, dtype=np.int64).T
    if discarded.any() or not sizes.all() or not keys.any():
        return None
    if (byte_offsets + sizes).max() > file_size or not keys[0]:
        return None  # truncated: the packets tell what is left
    steps = np.diff(dts)
    if name == "avi":  # where a frame is missing, the one before it is displayed longer
        if (steps <= 0).any() or dts[-1] + 1 != stream.frames:
            return None
    elif (steps <= 0).any() or (steps != samples.durations[:-1]).any():
        return None
    pts = dts + samples.offsets
    last = int(np.argmax(pts))
    return FrameTable(pts, keys.astype(bool), int(samples.durations[last]))


@dataclass(frozen=True)
class _SampleTables:
    """Duration of each sample of one track, and its presentation minus its decoding time."""

    durations: np.ndarray
    offsets: np.ndarray


def _read_sample_tables(path: str, track_id: int, count: int) -> _SampleTables | None:
    """The tables of ``count`` samples in the header of an mp4 file; None if it has no such ones.

    It may be fragmented or malformed, or list another number of samples.
    """
    try:
        with open(path, "rb") as file:
            moov = _find_moov(file, os.fstat(file.fileno()).st_size)
        if moov is None or any(kind == b"mvex" for kind, _ in _boxes(moov)):
            return None  # mvex: a fragmented file, whose samples are mostly listed elsewhere
        for kind, track in _boxes(moov):
            if kind == b"trak" and _track_id(track) == track_id:
                return _tables_of_track(track, count)
    except (OSError, struct.error, ValueError, KeyError):
        pass
    return None


def _find_moov(file: BinaryIO, file_size: int) -> memoryview | None:
    position = 0
    while position + 8 <= file_size:
        file.seek(position)
        header = file.read(16)
        size, kind = struct.unpack_from(">I4s", header)
        start = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", header, 8)
            start = 16
        elif size == 0:
            size = file_size - position
        if size < start or position + size > file_size:
            return None
        if kind == b"moov":
            if size > _MAX_MOOV_BYTES:
                return None
            file.seek(position + start)
            return memoryview(file.read(size - start))
        position += size
    return None


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """(kind, content) of the consecutive boxes in ``data``."""
    position = 0
    while position + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, position)
        start = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, position + 8)
            start = 16
        elif size == 0:
            size = len(data) - position
        if size < start or position + size > len(data):
            raise ValueError("a box extends beyond its parent box")
        yield kind, data[position + start : position + size]
        position += size


def _child(data: memoryview, *kinds: bytes) -> memoryview:
    """The first box found by descending through ``kinds``; KeyError if there is none."""
    for wanted in kinds:
        for kind, content in _boxes(data):
            if kind == wanted:
                data = content
                break
        else:
            raise KeyError(wanted)
    return data


def _track_id(track: memoryview) -> int:
    header = _child(track, b"tkhd")
    return int(struct.unpack_from(">I", header, 20 if header[0] == 1 else 12)[0])


def _tables_of_track(track: memoryview, count: int) -> _SampleTables:
    table = _child(track, b"mdia", b"minf", b"stbl")
    durations = _runs(_child(table, b"stts"), "stts", count)
    try:
        offsets = _runs(_child(table, b"ctts"), "ctts", count)
    except KeyError:
        offsets = np.zeros(count, dtype=np.int64)
    return _SampleTables(durations, offsets)


def _runs(box: memoryview, name: str, count: int) -> np.ndarray:
    """One value per sample, from a run-length coded table of (number of samples, value) pairs."""
    (rows,) = struct.unpack_from(">I", box, 4)
    pairs = np.frombuffer(box, dtype=">i4", count=2 * rows, offset=8).reshape(rows, 2)
    lengths = pairs[:, 0].astype(np.int64)
    if (lengths < 0).any() or lengths.sum() != count:
        raise ValueError(f"{name} lists another number of samples")
    return np.repeat(pairs[:, 1].astype(np.int64), lengths)
