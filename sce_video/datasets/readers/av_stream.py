"""The video stream of a file: its table of frames, and decoding from any packet on."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from itertools import chain

import av
import numpy as np

from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.av_file import AvFile, can_be_quick, decode_packets
from sce_video.datasets.readers.base import check_deadline
from sce_video.datasets.readers.frame_table import (
    FrameTable,
    TableCache,
    table_from_index,
    table_from_packets,
)
from sce_video.datasets.readers.restart_points import is_restart_point

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
