"""The table of a video's frames: their times, and the packets at which decoding can start.

The table is made from all packets of the stream (:func:`table_from_packets`), or from the index of
an mp4, mov or AVI file without reading media data (:func:`table_from_index`). Containers flag key
frames, but only the packet shows whether decoding can start there (:func:`is_restart_point`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import BinaryIO

import av
import numpy as np

from sce_video.utils.files import regular_file

#: Number of seconds that a clock may jump ahead. After a longer jump, it has restarted, as in the
#: ffmpeg program.
_JUMP = Fraction(10)
#: Number of seconds that a clock may go back between key frames without having restarted.
_SLIP = Fraction(1, 10)
_MAX_MOOV_BYTES = 256 * 2**20  # any larger header is corrupt


@dataclass(frozen=True)
class FrameTable:
    """The packets of a video stream, in decoding order.

    Attributes:
        pts: (F,) int64, presentation timestamp of each packet in the stream's time base. If the
            file's clock restarts, the timestamps continue.
        is_key: (F,) bool, whether decoding can start at a packet.
        last_duration: Duration of the frame that is displayed last, in the same unit; 0 if it is
            not stated.
        hidden: (F,) bool, whether an edit list hides a frame. Such a frame is decoded, because
            other frames may refer to it. None if no frame is hidden.
        false_keys: Whether the container also flags packets at which decoding cannot start.
        stored: (F, 2) int64, offset and size of each packet in the file in bytes; None if packets
            must be demuxed.
        restarts: Positions of the packets at which the file's clock restarts or jumps, or None.
        shifts: (F,) int64, values that were added to the timestamps of the packets because of
            restarts, or None.
    """

    pts: np.ndarray
    is_key: np.ndarray
    last_duration: int
    hidden: np.ndarray | None = None
    false_keys: bool = False
    stored: np.ndarray | None = None
    restarts: np.ndarray | None = None
    shifts: np.ndarray | None = None

    @property
    def stored_pts(self) -> np.ndarray:
        """Return the timestamps (F,) int64 of the packets in the file."""
        return self.pts if self.shifts is None else self.pts - self.shifts

    @property
    def shifts_of_recordings(self) -> list[int]:
        """Return the shift of each recording, from one restart to the next."""
        if self.shifts is None or self.restarts is None:
            return [0]
        return self.shifts[[0, *self.restarts]].tolist()

    @property
    def display_order(self) -> np.ndarray:
        """Return the positions of the packets whose frames are displayed, sorted by timestamp."""
        shown = np.arange(len(self.pts)) if self.hidden is None else np.flatnonzero(~self.hidden)
        return shown[np.argsort(self.pts[shown], kind="stable")]


def table_from_packets(
    rows: list[tuple[int, bool, int, bool]], false_keys: bool = False, clock: Clock | None = None
) -> FrameTable:
    """Return the table of packets, which are given by timestamp, key frame, duration and hidden.

    ``clock`` finds out where timestamps are not continuous. None means that they are continuous.
    """
    pts, is_key, durations, hidden = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    shown = hidden == 0
    restarts = None if clock is None else clock.restarts(pts, is_key == 1, durations, shown)
    shifts = None
    if clock is not None and restarts is not None:
        shifts = clock.shifts(pts, durations, shown, restarts)
        pts = pts + shifts
    last = int(durations[shown][np.argmax(pts[shown])]) if shown.any() else 0
    cut = None if shown.all() else ~shown
    return FrameTable(pts, is_key.astype(bool), last, cut, false_keys, None, restarts, shifts)


@dataclass(frozen=True)
class Clock:
    """The clock of a file's timestamps, which may restart where recordings were joined."""

    #: Decoding time of each packet, or NaN if it is unknown, (F,) float64.
    dts: np.ndarray
    #: Length of one timestamp unit in seconds.
    tick: Fraction
    #: Whether the container has a free-running clock (as in MPEG-TS), so a jump is not a pause.
    free: bool

    def restarts(
        self, pts: np.ndarray, is_key: np.ndarray, durations: np.ndarray, shown: np.ndarray
    ) -> np.ndarray | None:
        """Return the positions of the packets at which the clock restarts or jumps, or None.

        The clock restarts if a key frame would be displayed before an earlier frame. A free-running
        clock also restarts if it jumps far back or ahead, as in the ffmpeg program. In other
        containers, a jump ahead is a pause. The arguments are columns of a table.
        """
        known = np.flatnonzero(shown & ~np.isnan(self.dts)) if self.free else np.flatnonzero(shown)
        before, stamps = known[:-1], pts[known]
        known = known[1:]
        early = is_key[known] & (stamps[1:] < np.maximum.accumulate(stamps)[:-1])
        if self.free:
            steps = self.dts[known] - self.dts[before]
            back = steps < np.where(early, 0, -float(_SLIP / self.tick))
            ahead = steps > durations[before] + float(_JUMP / self.tick)
            found = known[back | ahead]
            return found if found.size else None
        if not early.any():
            return None
        found, latest = [], stamps[0]  # latest timestamp in the current recording
        for position, stamp in zip(known.tolist(), stamps[1:].tolist(), strict=True):
            if is_key[position] and stamp < latest:
                found.append(position)
                latest = stamp
            latest = max(latest, stamp)
        return np.array(found, dtype=np.int64)

    @np.errstate(over="ignore")  # a damaged file may contain any 64-bit value
    def shifts(
        self, pts: np.ndarray, durations: np.ndarray, shown: np.ndarray, restarts: np.ndarray
    ) -> np.ndarray:
        """Return the shifts (F,) int64 that make timestamps continuous from recording to recording.

        ::

            timestamps    0 1 2 3 | 1 2 3 | 900 901
            shifts        0 0 0 0 | 3 3 3 | -893 -893      displayed from 0 to 8
        """
        stamps, end = pts.copy(), None
        for part in np.split(np.arange(len(pts)), restarts):
            # FFmpeg derives a missing timestamp from the next packet, which may belong to the next
            # recording.
            delays = pts[part] - self.dts[part]
            foreign = np.abs(delays) > float(_JUMP / self.tick)
            if foreign.any() and (delays[~foreign] >= 0).any():
                decoded = self.dts[part] + np.nanmax(delays[~foreign])
                latest = np.nanmax(self.dts[part] + np.maximum(1, durations[part]))
                stamps[part[foreign]] = np.minimum(decoded, latest)[foreign]
            own = part[shown[part]]
            if not own.size:
                continue
            if end is not None:
                stamps[part] += end - stamps[own].min()
            ordered = np.sort(stamps[own])
            duration = int(durations[own[np.argmax(stamps[own])]])
            if duration <= 0 and len(ordered) > 1:  # it is not stated, so use the median distance
                duration = int(np.median(np.diff(ordered)))
            end = ordered[-1] + max(1, duration)
        return stamps - pts


def table_from_index(path: str, stream: av.VideoStream) -> FrameTable | None:
    """Make the table of an mp4, mov or AVI file from the index that FFmpeg reads when opening it.

    The index contains the offset, decoding time and key-frame flag of each sample, after the edit
    list was applied. FFmpeg does not expose the difference to the presentation time (``ctts``),
    which is read from the file here. A constant must be added to the timestamps, which follows from
    the first packet (see ``AvStream``). Decoding may not be able to start at flagged key frames.

    Returns:
        The table. None if the packets might give a different table, as in other containers,
        fragmented files, AVI files with B frames, truncated files, or if edit lists cut or repeat
        frames, samples are empty or tables are inconsistent.
    """
    entries = getattr(stream, "index_entries", None)  # exists since PyAV 18
    # An index of a few bytes can claim millions of samples, which is more than the file has bytes.
    file_size = os.path.getsize(path)
    if entries is None or not 0 < len(entries) <= file_size:
        return None
    name, count = stream.container.format.name, len(entries)
    samples = None
    if name.startswith("mov,"):
        samples = _read_sample_tables(path, stream.id, count)
    elif name == "avi" and not stream.codec_context.has_b_frames:
        samples = np.ones(count, np.int64), np.zeros(count, np.int64)  # times are in frames
    if samples is None:
        return None
    durations, offsets = samples
    rows = [(e.timestamp, e.pos, e.size, e.is_keyframe, e.is_discard) for e in entries]
    dts, byte_offsets, sizes, keys, discarded = np.array(rows, dtype=np.int64).T
    if discarded.any() or not sizes.all() or not keys[0]:
        return None
    if (byte_offsets + sizes).max() > file_size:
        return None  # the file is truncated, so only its packets can be read
    steps = np.diff(dts)
    if name == "avi":  # missing frames extend the previous frame
        if (steps <= 0).any() or dts[-1] + 1 != stream.frames:
            return None
    elif (steps <= 0).any() or (steps != durations[:-1]).any():
        return None
    pts = dts + offsets
    last = int(durations[np.argmax(pts)])
    # Packets may be read without a demuxer only if there are no B frames, because all times are
    # then FFmpeg's own.
    plain = stream.codec_context.name in ("h264", "hevc") and (offsets == offsets[0]).all()
    stored = np.stack([byte_offsets, sizes], 1) if plain and name != "avi" else None
    return FrameTable(pts, keys.astype(bool), last, stored=stored)


def _read_sample_tables(
    path: str, track_id: int, count: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Read the durations, and presentation minus decoding times, of an mp4 track's samples.

    The result is None if the file is fragmented or malformed, or does not list ``count`` samples.
    """
    try:
        with open(path, "rb", opener=regular_file) as file:
            moov = _find_moov(file, os.fstat(file.fileno()).st_size)
        if moov is None or any(kind == b"mvex" for kind, _ in _boxes(moov)):
            return None  # the file is fragmented, so most samples are listed elsewhere
        for kind, track in _boxes(moov):
            if kind != b"trak":
                continue
            header = _child(track, b"tkhd")
            if struct.unpack_from(">I", header, 20 if header[0] == 1 else 12)[0] != track_id:
                continue
            table = _child(track, b"mdia", b"minf", b"stbl")
            if struct.unpack_from(">I", _child(table, b"stsd"), 4)[0] != 1:
                return None  # the decoder's header changes between packets
            durations = _runs(_child(table, b"stts"), "stts", count)
            if any(kind == b"ctts" for kind, _ in _boxes(table)):
                return durations, _runs(_child(table, b"ctts"), "ctts", count)
            return durations, np.zeros(count, dtype=np.int64)
    except (OSError, struct.error, ValueError, StopIteration):
        pass
    return None


def _box_head(data: bytes | memoryview, position: int, room: int) -> tuple[int, bytes, int]:
    """Return size, kind and head size of a box; ValueError if it exceeds ``room`` bytes."""
    size, kind = struct.unpack_from(">I4s", data, position)
    head = 8
    if size == 1:  # a 64-bit size follows
        (size,) = struct.unpack_from(">Q", data, position + 8)
        head = 16
    elif size == 0:  # the box extends to the end of the file
        size = room
    if not head <= size <= room:
        raise ValueError("a box extends beyond its parent box")
    return size, kind, head


def _find_moov(file: BinaryIO, file_size: int) -> memoryview | None:
    position = 0
    while position + 8 <= file_size:
        file.seek(position)
        size, kind, head = _box_head(file.read(16), 0, file_size - position)
        if kind == b"moov":
            if size > _MAX_MOOV_BYTES:
                return None
            file.seek(position + head)
            return memoryview(file.read(size - head))
        position += size
    return None


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the kind and content of each box in ``data``."""
    position = 0
    while position + 8 <= len(data):
        size, kind, head = _box_head(data, position, len(data) - position)
        yield kind, data[position + head : position + size]
        position += size


def _child(data: memoryview, *kinds: bytes) -> memoryview:
    """Return the first box on a path of ``kinds``; StopIteration if there is none."""
    for wanted in kinds:
        data = next(content for kind, content in _boxes(data) if kind == wanted)
    return data


def _runs(box: memoryview, name: str, count: int) -> np.ndarray:
    """Expand a run-length coded table to one value per sample."""
    (rows,) = struct.unpack_from(">I", box, 4)
    pairs = np.frombuffer(box, dtype=">i4", count=2 * rows, offset=8).reshape(rows, 2)
    lengths = pairs[:, 0].astype(np.int64)
    if (lengths < 0).any() or lengths.sum() != count:
        raise ValueError(f"{name} does not list {count} samples")
    return np.repeat(pairs[:, 1].astype(np.int64), lengths)


_START_CODE = b"\0\0\1"
#: Number of bytes at the start of a packet or unit in which a header is searched.
_HEAD_BYTES = 4096
#: payloadType of a recovery point in SEI messages (H.264, annex D).
_RECOVERY_POINT = 6


@dataclass(frozen=True)
class _PictureHeader:
    """Position of the coding type in a picture header."""

    start_code: bytes  # bytes at the start of the header
    at: int  # distance from the start code to the byte with the coding type
    shift: int  # number of bits below the coding type in its byte
    mask: int  # mask of the coding type after shifting
    intra: int  # coding type of a picture that refers to no other picture


#: picture_header of ISO 11172-2 and 13818-2, 6.2.3.
_MPEG2_PICTURE = _PictureHeader(_START_CODE + b"\x00", at=5, shift=3, mask=7, intra=1)
_PICTURES = {
    "mpeg1video": _MPEG2_PICTURE,
    "mpeg2video": _MPEG2_PICTURE,
    # VideoObjectPlane of ISO 14496-2, 6.2.5.
    "mpeg4": _PictureHeader(_START_CODE + b"\xb6", at=4, shift=6, mask=3, intra=0),
}


def is_restart_point(codec: str, extradata: bytes, packet: bytes | memoryview) -> bool:
    """Return whether all later frames are exact if decoding starts at a key packet.

    This is true for IDR pictures and recovery points (SEI) after zero frames, as in open GOPs, in
    h264; for IDR, CRA and BLA pictures in HEVC; and for intra pictures in MPEG-1, MPEG-2 and
    MPEG-4. For other codecs, the container's flag is trusted. The codec's header ``extradata``
    defines how NAL units are separated.
    """
    if codec == "hevc":
        kinds = (unit[0] >> 1 & 63 for unit in nal_units(packet, extradata, 21))
        return 16 <= next((kind for kind in kinds if kind < 32), 0) <= 23  # type of the first slice
    if codec in _PICTURES:
        picture, data = _PICTURES[codec], bytes(packet[:_HEAD_BYTES])
        found = data.find(picture.start_code)
        if not 0 <= found < len(data) - picture.at:
            return False
        return data[found + picture.at] >> picture.shift & picture.mask == picture.intra
    if codec != "h264":
        return True
    recovery: int | None = None
    for unit in nal_units(packet, extradata, 4):
        kind = unit[0] & 31
        if kind in (1, 2, 5):  # first slice, which is type 5 in an IDR picture
            return kind == 5 or recovery == 0
        if kind == 6 and recovery is None:
            recovery = _recovery_frames(bytes(unit[1:_HEAD_BYTES]))
    return False


def nal_units(
    packet: bytes | memoryview, extradata: bytes, at: int
) -> Iterator[bytes | memoryview]:
    """Yield the NAL units of a packet, each of which follows a start code or its length.

    In an mp4 or Matroska file, whose header begins with 1, byte ``at`` of the header contains the
    size of the length field.
    """
    if len(extradata) <= at or extradata[0] != 1:
        yield from (unit for unit in bytes(packet).split(_START_CODE)[1:] if unit)
        return
    length_size, position = (extradata[at] & 3) + 1, 0
    while position + length_size < len(packet):
        begin = position + length_size
        position = begin + int.from_bytes(packet[position:begin], "big")
        if position > begin:
            yield packet[begin:position]


def _recovery_frames(sei: bytes) -> int | None:
    """Return an SEI unit's ``recovery_frame_cnt``; None if it contains no recovery point."""
    sei, position = sei.replace(b"\0\0\3", b"\0\0"), 0  # remove emulation prevention
    while position + 2 <= len(sei):
        kind, position = _sei_number(sei, position)
        size, position = _sei_number(sei, position)
        if kind == _RECOVERY_POINT:
            return _exp_golomb(sei[position : position + size])
        position += size
    return None


def _sei_number(sei: bytes, position: int) -> tuple[int, int]:
    """Return a payload type or size, in which bytes of 255 are added up, and the next position."""
    value = 0
    while position < len(sei) and sei[position] == 255:
        value, position = value + 255, position + 1
    return (value + sei[position], position + 1) if position < len(sei) else (value, position)


def _exp_golomb(data: bytes) -> int | None:
    """Return the first ue(v) number in some bytes; None if it is incomplete."""
    bits = "".join(f"{byte:08b}" for byte in data)
    zeros = bits.find("1")
    if zeros < 0 or len(bits) < 2 * zeros + 1:
        return None
    return int(bits[zeros : 2 * zeros + 1], 2) - 1
