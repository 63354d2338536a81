"""Conversion of a repacked file to the row of a table."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import zlib
from dataclasses import dataclass, replace

import av
import numpy as np

from sce_video.datasets.readers.av_file import AvFile, can_be_quick
from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.base import (
    DecodeLimits,
    FrameCountError,
    VideoDecodeError,
    check_regular_file,
)
from sce_video.datasets.readers.frame_table import is_restart_point
from sce_video.datasets.tables.row_columns import CodecParameters, FrameIndex, table_path
from sce_video.datasets.tables.table_rows import TableReader

#: Length of a stream's hash in bytes, which is long enough that no two streams share a hash.
_HASH_BYTES = 16
_LARGEST_STREAM = 2**31  # size in bytes. A row is held in memory while it is written


@dataclass(frozen=True, slots=True)  # a driver holds one instance for each file
class RowSource:
    """A file to import."""

    file: str  # path of the file
    path: str  # path in the table
    label: int = -1  # -1 without a label
    class_name: str | None = None  # name of the file's class folder; None for a list
    timeout: float | None = 60.0  # time limit for reading the file in seconds; None for no limit
    max_pixels: int = DecodeLimits().max_pixels  # largest number of pixels in a frame


@dataclass(frozen=True, kw_only=True)
class VideoRow:
    """A row of a table, with the columns of ``row_columns.schema``.

    In a row with a ``failure``, the fields from ``index`` on are None.

    Attributes:
        path: Path in the table.
        label: Label; -1 without one.
        class_name: Name of the file's class folder; None for a list.
        source_size: Size of the file in bytes; -1 if there is no file.
        source_mtime_ns: Modification time of the file; -1 if there is no file.
        failure: Reason why the row has no stream; empty if it has one.
        settings: Settings of ``repack --to`` as JSON; empty for an imported file.
        index: Packed :class:`FrameIndex`.
        frames: Number of frames.
        duration: Duration in seconds.
        codec, pixel_format: FFmpeg's names.
        width, height: Size of the coded frames in pixels.
        rotation: Degrees by which frames are turned counter-clockwise for display.
        size, hash: Size of the stream in bytes, and its BLAKE2 hash.
        stream: All packets, one after another.
    """

    path: str
    label: int
    class_name: str | None
    source_size: int
    source_mtime_ns: int
    failure: str = ""
    settings: str = ""
    index: bytes | None = None
    frames: int | None = None
    duration: float | None = None
    codec: str | None = None
    width: int | None = None
    height: int | None = None
    pixel_format: str | None = None
    rotation: int | None = None
    size: int | None = None
    hash: bytes | None = None
    stream: bytes | None = None


class NotRepackedError(ValueError):
    """Error for a file whose packets do not decode to the frames of the file."""


def video_row(source: RowSource) -> VideoRow:
    """Return the row of a file.

    The first and the last frame are decoded from the packets alone and compared with the frames
    that the file reader returns. If a file cannot be imported, no error is raised. The row then has
    no stream, and its ``failure`` is the reason.
    """
    unread = unread_row(source)  # compared after reading, because the file may change
    try:
        check_regular_file(source.file)
        row = _with_content(unread, source)
        if unread_row(source) == unread:
            return row
        reason = "changed while it was being read"
    except VideoDecodeError as error:
        reason = error.reason
    except FrameCountError as error:
        reason = f"{len(error.timestamps)} of {error.promised} frames decode"
    except NotRepackedError as error:
        reason = f"{error}: repack it"
    except (av.FFmpegError, OSError) as error:
        reason = f"cannot be read: {error}"
    return replace(unread, failure=reason)


def unread_row(source: RowSource) -> VideoRow:
    """Return the row of a file without its content, but with the present state of the file."""
    try:
        status = os.stat(source.file)
        size, mtime_ns = status.st_size, status.st_mtime_ns
    except OSError:
        size, mtime_ns = -1, -1  # there is no file
    return VideoRow(
        path=table_path(source.path),
        label=source.label,
        class_name=None if source.class_name is None else table_path(source.class_name),
        source_size=size,
        source_mtime_ns=mtime_ns,
    )


def _with_content(row: VideoRow, source: RowSource) -> VideoRow:
    deadline = None if source.timeout is None else time.monotonic() + source.timeout
    limits = DecodeLimits(source.max_pixels)
    reader = AvReader(source.file, deadline=deadline, limits=limits)
    with reader:
        # Compare two frames only, because all frames may not fit into memory.
        ends = np.unique([0, len(reader.timestamps) - 1])
        frames = reader.decode(ends)
        stream, index = _read_stream(
            source.file, frames.orientation, reader.duration, deadline, limits
        )
        if reader.by_count or not np.array_equal(index.timestamps, reader.timestamps):
            raise NotRepackedError("its packets and its frames have different timestamps")

        def fetch(positions: np.ndarray) -> list[bytes]:
            return [stream[index.offsets[p] : index.offsets[p + 1]] for p in positions.tolist()]

        alone = TableReader(source.file, index=index, fetch=fetch, limits=limits)
        if alone.duration <= 0:
            raise NotRepackedError("it has no duration")
        decoded = alone.decode(ends)
        if not all(np.array_equal(decoded[i], frames[i]) for i in range(len(ends))):
            raise NotRepackedError("its packets do not decode to the same frames as the file")
    return replace(
        row,
        index=index.pack(),
        frames=len(index.pts),
        duration=index.duration,
        codec=index.parameters.codec,
        width=index.parameters.width,
        height=index.parameters.height,
        pixel_format=str(frames.first.format.name),
        rotation=index.turns % 4 * 90,
        size=len(stream),
        hash=hashlib.blake2b(stream, digest_size=_HASH_BYTES).digest(),
        stream=stream,
    )


def _read_stream(
    file: str, turns: int, duration: float, deadline: float | None, limits: DecodeLimits
) -> tuple[bytes, FrameIndex]:
    """Return all packets, one after another, and the index of the frames."""
    opened = AvFile(file, 1, can_be_quick(file), limits)
    with contextlib.closing(opened):
        codec = opened.codec
        extradata = bytes(codec.extradata or b"")
        packets, pts, keys, size = [], [], [], 0
        for packet in opened.packets(deadline):
            if packet.pts is None or packet.is_discard:
                raise NotRepackedError("it has packets that do not belong to exactly one frame")
            packets.append(bytes(packet))
            pts.append(packet.pts)
            keys.append(packet.is_keyframe and is_restart_point(codec.name, extradata, packets[-1]))
            size += len(packets[-1])
            if size > _LARGEST_STREAM:
                raise NotRepackedError(f"its stream is longer than {_LARGEST_STREAM} bytes")
        # With B-frames, the storage order differs from the display order. repack writes none.
        if not packets or not keys[0] or (np.diff(pts) <= 0).any():
            raise NotRepackedError("its frames are not stored in display order")
        base = opened.stream.time_base
        sizes = np.array([len(packet) for packet in packets], dtype=np.int64)
        parameters = CodecParameters(
            codec.name, extradata, codec.width, codec.height,
            (codec.color_range, codec.colorspace, codec.color_primaries, codec.color_trc),
        )  # fmt: skip
        index = FrameIndex(
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]),
            checks=np.array([zlib.crc32(packet) for packet in packets], dtype=np.uint32),
            pts=np.array(pts, dtype=np.int64),
            is_key=np.array(keys, dtype=bool),
            time_base=(base.numerator, base.denominator),
            duration=duration,
            parameters=parameters,
            turns=turns,
        )
        return b"".join(packets), index
