"""The video stream of a file: its table of frames, and decoding from any packet on."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from itertools import chain

import av
import numpy as np

from sce_video.datasets.readers.av_file import AvFile, can_be_quick, decode_packets
from sce_video.datasets.readers.base import check_deadline
from sce_video.datasets.readers.errors import VideoDecodeError
from sce_video.datasets.readers.frame_table import (
    FrameTable,
    TableCache,
    table_from_index,
    table_from_packets,
)
from sce_video.datasets.readers.limits import DecodeLimits

_START_CODE = b"\0\0\1"
_HEAD_BYTES = 4096  # of a packet or unit, in which a header is looked for
_RECOVERY_POINT = 6  # payloadType


def is_restart_point(codec: str, extradata: bytes, packet: bytes | memoryview) -> bool:
    """Whether all frames displayed from a key packet on are the same if decoding starts there.

    True for:

    - h264: an IDR picture, or a recovery point (SEI) after zero frames, as in open GOPs;
    - HEVC: an IDR, CRA or BLA picture;
    - MPEG-1, MPEG-2, MPEG-4: an intra picture;
    - other codecs: always, the container's flag is trusted.

    Args:
        codec: FFmpeg's name of it.
        extradata: The codec's header, which says how NAL units are separated.
        packet: A packet that the container flags as a key frame.
    """
    test = _TESTS.get(codec)
    return test is None or test(packet, extradata)


def holds_idr(extradata: bytes, packet: bytes | memoryview) -> bool:
    """Whether an h264 packet holds an IDR picture, before which nothing is referred to."""
    return any(unit[0] & 31 == 5 for unit in _h264_units(packet, extradata))


def _h264_units(packet: bytes | memoryview, extradata: bytes) -> Iterator[bytes | memoryview]:
    size = (extradata[4] & 3) + 1 if len(extradata) > 4 and extradata[0] == 1 else 0
    return _units(packet, size)


def _h264(packet: bytes | memoryview, extradata: bytes) -> bool:
    recovery: int | None = None
    for unit in _h264_units(packet, extradata):
        kind = unit[0] & 31
        if kind == 5:
            return True
        if kind in (1, 2):
            return recovery == 0
        if kind == 6 and recovery is None:
            recovery = _recovery_frames(bytes(unit[1:_HEAD_BYTES]))
    return False


def _hevc(packet: bytes | memoryview, extradata: bytes) -> bool:
    size = (extradata[21] & 3) + 1 if len(extradata) > 22 and extradata[0] == 1 else 0
    for unit in _units(packet, size):
        kind = unit[0] >> 1 & 63
        if kind < 32:  # the first slice
            return 16 <= kind <= 23
    return False


def _mpeg2(packet: bytes | memoryview, extradata: bytes) -> bool:
    data = bytes(packet[:_HEAD_BYTES])
    at = data.find(_START_CODE + b"\x00")  # picture_start_code
    return 0 <= at < len(data) - 5 and data[at + 5] >> 3 & 7 == 1  # picture_coding_type


def _mpeg4(packet: bytes | memoryview, extradata: bytes) -> bool:
    data = bytes(packet[:_HEAD_BYTES])
    at = data.find(_START_CODE + b"\xb6")  # vop_start_code
    return 0 <= at < len(data) - 4 and data[at + 4] >> 6 == 0  # vop_coding_type


_TESTS: dict[str, Callable[[bytes | memoryview, bytes], bool]] = {
    "h264": _h264,
    "hevc": _hevc,
    "mpeg1video": _mpeg2,
    "mpeg2video": _mpeg2,
    "mpeg4": _mpeg4,
}


def _units(packet: bytes | memoryview, length_size: int) -> Iterator[bytes | memoryview]:
    """The NAL units of a packet: each after its length, or (size 0) after a start code."""
    if length_size:
        position = 0
        while position + length_size < len(packet):
            begin = position + length_size
            position = begin + int.from_bytes(packet[position:begin], "big")
            if position > begin:
                yield packet[begin:position]
        return
    for unit in bytes(packet).split(_START_CODE)[1:]:
        if unit:
            yield unit


def _recovery_frames(sei: bytes) -> int | None:
    """``recovery_frame_cnt`` of an SEI unit; None if it holds no recovery point."""
    sei, position = sei.replace(b"\0\0\3", b"\0\0"), 0  # without emulation prevention
    while position + 2 <= len(sei):
        kind, position = _sei_number(sei, position)
        size, position = _sei_number(sei, position)
        if kind == _RECOVERY_POINT:
            return _exp_golomb(sei[position : position + size])
        position += size
    return None


def _sei_number(sei: bytes, position: int) -> tuple[int, int]:
    """A payload type or size at a position (bytes of 255 are added up), and the position after."""
    value = 0
    while position < len(sei) and sei[position] == 255:
        value, position = value + 255, position + 1
    return (value + sei[position], position + 1) if position < len(sei) else (value, position)


def _exp_golomb(data: bytes) -> int | None:
    """The first ue(v) of some bytes; None if they end before it does."""
    bits = "".join(f"{byte:08b}" for byte in data)
    zeros = bits.find("1")
    if zeros < 0 or len(bits) < 2 * zeros + 1:
        return None
    return int(bits[zeros : 2 * zeros + 1], 2) - 1


# Without an index the packets of a file are read once, and kept in memory up to this size: decoding
# then starts at any key frame without a seek. Larger files are read again from the key frame on.
_MAX_HELD_BYTES = 64 * 2**20
_tables = TableCache(capacity=128)


class WrongIndexError(Exception):
    """A packet is not the one that the file's index lists."""


class NoRestartPointError(Exception):
    """Decoding cannot start at a packet that the file's index flags as a key frame."""


class AvStream:
    """Packets and frames of the best video stream of a file.

    Args:
        path: A regular file.
        num_threads: Threads of the decoder.
        deadline: Value of ``time.monotonic()`` after which reading raises.
        limits: How large frames may be.

    Raises:
        VideoDecodeError: The file cannot be opened or has no video stream with a decoder.

    Attributes:
        file: The open file; another one after :meth:`reopen`.
        table: See :meth:`read_table`.
        deadline: May be moved while frames are decoded.
    """

    def __init__(
        self, path: str, num_threads: int, deadline: float | None, limits: DecodeLimits
    ) -> None:
        self.path = path
        self._num_threads = num_threads
        self.deadline = deadline
        self._limits = limits
        self._held: list[av.Packet] | None = None
        self._indexed = False
        self._checked = False  # whether the keys of an index are known to be restart points
        self.table = table_from_packets([], [], [], [])
        self.file = AvFile(path, num_threads, can_be_quick(path), limits)
        self.extradata = self.file.codec.extradata or b""

    def reopen(self, quick: bool | None = None) -> None:
        """Open the file again, from its start and with a new decoder; None keeps ``quick``."""
        quick = self.file.quick if quick is None else quick
        self.file.close()
        self.file = AvFile(self.path, self._num_threads, quick, self._limits)
        self.extradata = self.file.codec.extradata or b""

    def close(self) -> None:
        """Close the file; may be called more than once."""
        self._held = None
        self.file.close()

    # -- the table of frames ---------------------------------------------------------------

    def read_table(self, use_index: bool) -> bool:
        """Read :attr:`table`; False (and an empty table) where packets have no time stamps.

        It is read again with FFmpeg's probing where the quick opening was not enough.
        """
        if self.file.quick and not self.file.self_describing:
            self.reopen(quick=False)
        found = self._read_table(use_index)
        if found and self.file.quick and not self.file.quick_was_enough(self.table):
            self.reopen(quick=False)
            found = self._read_table(use_index)
        return found

    def _read_table(self, use_index: bool) -> bool:
        self._held = None
        table = self._table_of_index() if use_index else None
        self._indexed = table is not None
        self._checked = not self._indexed
        if table is None:
            table = self._table_of_packets()
        self.table = table if table is not None else table_from_packets([], [], [], [])
        return table is not None

    def _table_of_index(self) -> FrameTable | None:
        """The table in the file's index, if valid; checked against the first packet."""
        table = table_from_index(self.path, self.file.stream)
        if table is None:
            return None
        first = next(self.file.packets(lambda: self.deadline), None)
        if first is None or first.pts is None or not first.is_keyframe:
            self.reopen()
            return None
        shift = first.pts - table.pts[0]
        return FrameTable(table.pts + shift, table.is_key, table.last_duration)

    def _table_of_packets(self) -> FrameTable | None:
        """The table of all packets, kept in memory if small; None if time stamps are missing."""
        known = _tables.get(self.path)
        if known is not None:
            return known
        held: list[av.Packet] | None = []
        size, pts, keys, durations, hidden = 0, [], [], [], []
        false_keys = False
        for packet in self.file.packets(lambda: self.deadline):
            pts.append(packet.pts)
            keys.append(packet.is_keyframe and self._can_start_at(packet))
            false_keys |= packet.is_keyframe and not keys[-1]
            durations.append(packet.duration or 0)
            hidden.append(packet.is_discard)
            size += packet.size
            if held is not None:
                held.append(packet)
                held = None if size > _MAX_HELD_BYTES else held
        if all(hidden):
            raise VideoDecodeError(self.path, "holds no video packets")
        self._held = held
        if None in pts:
            return None
        table = table_from_packets(pts, keys, durations, hidden, false_keys)
        if held is None:
            _tables.put(self.path, table)
        return table

    def _can_start_at(self, packet: av.Packet) -> bool:
        return is_restart_point(self.file.codec.name, self.extradata, memoryview(packet))

    def drop_false_keys(self) -> None:
        """Clear ``table.is_key`` of the packets at which decoding cannot start.

        An index flags key frames without their packets, so these are read here, once.
        """
        if self._checked:
            return
        is_key = self.table.is_key.copy()
        for position in np.flatnonzero(is_key).tolist()[1:]:
            check_deadline(self.path, self.deadline)
            is_key[position] = self._can_start_at(self.packet(position))
        dropped = not np.array_equal(is_key, self.table.is_key)
        self.table = replace(self.table, is_key=is_key, false_keys=dropped)
        self._checked = True

    # -- packets to frames -----------------------------------------------------------------

    def frames_from(
        self, first: int, last: int | None = None, wanted: Container[int] | None = None
    ) -> Iterator[av.VideoFrame]:
        """Decode packets ``first`` to ``last`` (to the end if None), in display order.

        With ``wanted`` (time stamps), frames that no other frame refers to are decoded only if they
        are wanted.

        Raises:
            WrongIndexError: The packets are not those of the table.
            NoRestartPointError: Decoding cannot start at ``first``; see :meth:`drop_false_keys`.
        """
        self.file.codec.flush_buffers()
        skipping: bool | None = None

        def decoder_for(packet: av.Packet) -> av.VideoCodecContext:
            nonlocal skipping
            codec = self.file.codec  # seeking to the start may have opened a new one
            skip = wanted is not None and packet.pts not in wanted
            if skip is not skipping:
                codec.skip_frame = "NONREF" if skip else "DEFAULT"
                skipping = skip
            return codec

        for frames in decode_packets(self._packets_between(first, last), decoder_for):
            yield from frames

    def packet(self, position: int) -> av.Packet:
        """One packet; VideoDecodeError if it cannot be read any more."""
        for _, packet in self._packets_from(position):
            return packet
        raise VideoDecodeError(self.path, "changed while it was being read")

    def _packets_between(self, first: int, last: int | None) -> Iterator[av.Packet]:
        for position, packet in self._packets_from(first):
            check_deadline(self.path, self.deadline)
            if position == first > 0 and not self._checked and not self._can_start_at(packet):
                raise NoRestartPointError
            yield packet
            if position == last:
                return

    def _packets_from(self, first: int) -> Iterator[tuple[int, av.Packet]]:
        """(position, packet) from packet ``first`` on, in decoding order."""
        if self._held is not None:
            yield from enumerate(self._held[first:], first)
            return
        for position, packet in self._seek(first) or self._rewind():
            if self._indexed and packet.pts != self.table.pts[position]:
                raise WrongIndexError
            if position >= first:
                yield position, packet

    def _seek(self, first: int) -> Iterator[tuple[int, av.Packet]] | None:
        """Seek to packet ``first`` or before it; None if the container cannot."""
        if first == 0 and not self._indexed:
            return None  # not every container can seek to its start
        if not self.file.seek(int(self.table.pts[first])):
            return None
        packets = self.file.packets(lambda: self.deadline)
        head = next(packets, None)
        if head is None:
            return None
        position = np.flatnonzero(self.table.pts == head.pts)
        if len(position) != 1 or position[0] > first or not head.is_keyframe:
            return None
        return enumerate(chain([head], packets), int(position[0]))

    def _rewind(self) -> Iterator[tuple[int, av.Packet]]:
        self.reopen()
        return enumerate(self.file.packets(lambda: self.deadline))
