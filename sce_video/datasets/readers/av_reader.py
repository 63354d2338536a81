"""The default reader: PyAV (FFmpeg), exact time stamps, every format FFmpeg supports."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from itertools import chain

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from sce_video.datasets.errors import FrameCountError, VideoDecodeError
from sce_video.datasets.readers.av_file import AvFile, can_be_quick, decode_packets
from sce_video.datasets.readers.base import (
    FALLBACK_FPS,
    DecodedFrames,
    VideoReader,
    check_deadline,
    check_regular_file,
    last_frame_duration,
)
from sce_video.datasets.readers.frame_table import (
    FrameTable,
    TableCache,
    table_from_index,
    table_from_packets,
)
from sce_video.registry import READERS

# Without an index the packets of a file are read once, and kept in memory up to this size: decoding
# then starts at any key frame without a seek. Larger files are read again from the key frame on.
_MAX_HELD_BYTES = 64 * 2**20
_tables = TableCache(capacity=128)


@READERS.register_module("av")
class AvReader(VideoReader):
    """Reads a video with PyAV.

    The table of time stamps comes from the index of an mp4, mov or AVI file, so that only the media
    data that leads to requested frames is read. For other files it comes from the packets, which
    are read without decoding: once if they fit into 64 MiB, and once per process for a larger file.
    Frame counts and average rates of the header are not used, so variable frame rates are exact.

    A frame is found by its presentation time stamp. Decoding starts at the key frame at or before a
    requested frame, seeks when another key frame lies between two requested frames, and ends with
    the packet of the last requested frame, after which the decoder is drained. Frames that no other
    frame refers to (most B frames) are not decoded unless requested: the other frames are the same
    without them, and it saves a third of the time on Kinetics files.

    In an AVI file with B frames the demuxer makes up the packets' time stamps, and they do not
    match the frames: such a file is decoded from its start and the frames are counted. The same is
    done for a file with two equal time stamps. Without any time stamps, frames are spaced evenly.

    After a packet that the decoder refuses, decoding continues at the next key frame, because the
    frames in between are predicted from missing data.

    Args:
        path: A regular file.
        num_threads: Threads of the decoder; one is best when loader workers use all cores.
        correction: ``FrameCountError.correction`` of an earlier attempt.
        deadline: Value of ``time.monotonic()`` after which reading raises.

    Raises:
        VideoDecodeError: The file cannot be opened or has no video frames.
    """

    def __init__(
        self,
        path: str,
        *,
        num_threads: int = 1,
        correction: np.ndarray | None = None,
        deadline: float | None = None,
    ) -> None:
        check_regular_file(path)
        self.path = path
        self._num_threads = num_threads
        self._deadline = deadline
        self._closed = False
        self._file = AvFile(path, num_threads, quick=can_be_quick(path))
        try:
            self._build_table(use_index=correction is None)
            if correction is not None:
                self._correct(correction)
        except BaseException:
            self.close()
            raise

    # -- the table of frames ---------------------------------------------------------------

    def _build_table(self, use_index: bool) -> None:
        """Read the table, and again with FFmpeg's probing where the quick opening was not enough.

        A correction refers to the table of packets; the index may differ from it, so it is not used
        then.
        """
        if self._file.quick and not self._file.self_describing:
            self._reopen(quick=False)
        if self._read_table(use_index) and self._file.quick:
            if not self._file.quick_was_enough(self._table):
                self._reopen(quick=False)
                self._read_table(use_index)

    def _reopen(self, quick: bool) -> None:
        self._file.close()
        self._file = AvFile(self.path, self._num_threads, quick)

    def _read_table(self, use_index: bool = True) -> bool:
        """Build the table of time stamps; False where the packets have no time stamps."""
        self._held: list[av.Packet] | None = None
        table = self._table_of_index() if use_index else None
        self._indexed = table is not None
        if table is None:
            table = self._table_of_packets()
        self._table = table if table is not None else table_from_packets([], [], [], [])
        if table is None:
            self._by_count = True
            self._table_from_scan()
            return False
        made_up = self._file.format == "avi" and self._file.codec.has_b_frames
        self._order = table.display_order
        self._shown = table.pts[self._order]
        self._by_count = bool(made_up) or bool((np.diff(self._shown) == 0).any())
        self._set_table(self._shown, table.last_duration)
        return True

    def _table_of_index(self) -> FrameTable | None:
        """The table in the file's index, if valid; checked against the first packet."""
        table = table_from_index(self.path, self._file.stream)
        if table is None:
            return None
        first = next(self._file.packets(self._deadline), None)
        if first is None or first.pts is None or not first.is_keyframe:
            self._reopen(self._file.quick)
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
        for packet in self._file.packets(self._deadline):
            pts.append(packet.pts)
            keys.append(packet.is_keyframe)
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
        table = table_from_packets(pts, keys, durations, hidden)
        if held is None:
            _tables.put(self.path, table)
        return table

    def _set_table(self, pts: np.ndarray, last_duration: int) -> None:
        base = self._file.stream.time_base
        numerator, denominator = (base.numerator, base.denominator) if base else (1, 1000)
        self._pts = pts
        # integer * integer / integer: correctly rounded, so frame 64 at 25 fps is exactly 2.56
        self.timestamps = (pts - pts[0]) * numerator / denominator
        self.duration = float(self.timestamps[-1]) + last_frame_duration(
            self.timestamps, last_duration * numerator / denominator, self._rate()
        )

    @property
    def facts(self) -> tuple[str, str, int, float]:
        """Container, codec, pixels per frame, mean distance of key frames."""
        codec = self._file.codec
        keys = max(1, int(self._table.is_key.sum()))
        pixels = (codec.width or 0) * (codec.height or 0)
        return self._file.format, codec.name, pixels, len(self._pts) / keys

    @property
    def by_count(self) -> bool:
        """Whether frames are found by counting from the start, not by time stamp."""
        return self._by_count

    @property
    def random_access_at_keys(self) -> bool:
        """Whether decoding can start at every key frame and return all frames from there on.

        False where frames decoded after a key frame are displayed before it (open GOP), and where
        the second key frame of h264 is no IDR picture (intra refresh): the frames then depend on
        where decoding started. Also False if the first time stamp is negative.
        """
        keys = np.flatnonzero(self._table.is_key)
        earliest = np.minimum.accumulate(self._table.pts[::-1])[::-1]  # from each packet on
        if self._by_count or len(keys) == 0 or keys[0] != 0 or self._pts[0] < 0:
            return False
        if (earliest[keys] < self._table.pts[keys]).any():
            return False
        if len(keys) == 1 or self._file.codec.name != "h264":
            return True
        return _holds_idr(bytes(next(self._packets_from(int(keys[1])))[1]), self.extradata)

    @property
    def interlaced(self) -> bool:
        """Whether the first frame is flagged as interlaced."""
        frames = self.decode(np.zeros(1, dtype=np.int64))
        return isinstance(frames, _AvFrames) and frames.interlaced

    @property
    def extradata(self) -> bytes:
        """The codec's header as stored in the container; empty if there is none."""
        return self._file.codec.extradata or b""

    def _rate(self) -> float | None:
        rate = self._file.stream.average_rate or self._file.stream.guessed_rate
        return float(rate) if rate else None

    def _table_from_scan(self) -> None:
        """For packets without time stamps: decode to count the frames, and space them evenly."""
        count = sum(1 for _ in self._frames_from(0))
        if count == 0:
            raise VideoDecodeError(self.path, "no frame can be decoded")
        rate = self._rate() or FALLBACK_FPS
        self._pts = np.arange(count, dtype=np.int64)
        self.timestamps = self._pts / rate
        self.duration = count / rate

    def _correct(self, correction: np.ndarray) -> None:
        if correction[-1] >= len(self._pts):
            raise VideoDecodeError(self.path, "changed while it was being read")
        last = self.duration - float(self.timestamps[-1])
        self._pts = self._pts[correction]
        kept = self.timestamps[correction]
        self.timestamps = kept - kept[0]
        self.duration = float(self.timestamps[-1]) + last

    # -- frames ----------------------------------------------------------------------------

    def read(self, indices: np.ndarray) -> np.ndarray:
        decoded = self.decode(indices)
        frames = np.empty((len(decoded), *decoded.size, 3), dtype=np.uint8)
        for i, frame in enumerate(frames):
            frame[...] = decoded[i]
        return frames

    def decode(self, indices: np.ndarray) -> DecodedFrames:
        indices = self._check_indices(indices)
        if self._closed:
            raise ValueError(f"the reader of {self.path} is closed")
        try:
            frames = None if self._by_count else self._find_by_pts(indices)
            if frames is None:
                frames = self._find_by_count(indices) if self._by_count else self._recount(indices)
        except (av.FFmpegError, OSError) as error:
            raise VideoDecodeError(self.path, f"cannot be decoded: {error}", False) from error
        if self._size is None:
            height, width = frames[0].height, frames[0].width
            self._size = (width, height) if _quarter_turns(frames[0]) % 2 else (height, width)
        return _AvFrames(frames, self._size, self._num_threads, self._count_conversion)

    def _count_conversion(self) -> None:
        self.frames_converted += 1

    def _find_by_pts(self, indices: np.ndarray) -> list[av.VideoFrame] | None:
        """Frames found by time stamp; None if one of them is not found."""
        try:
            return self._frames_of(self._pts[indices])
        except _WrongIndexError:
            self._reopen(quick=False)
            self._read_table(use_index=False)
            if indices[-1] >= len(self._pts):
                raise VideoDecodeError(self.path, "its index does not match its packets") from None
            return None if self._by_count else self._frames_of(self._pts[indices])

    def _frames_of(self, wanted: np.ndarray) -> list[av.VideoFrame] | None:
        """Frames with these ascending time stamps; None if one of them is not found."""
        found: dict[int, av.VideoFrame | None] = dict.fromkeys(wanted.tolist())
        for start, stop in self._stretches(wanted):
            previous = None
            for frame in self._frames_from(start, stop, found):
                if frame.pts is None or (previous is not None and frame.pts <= previous):
                    return None
                previous = frame.pts
                if previous in found and found[previous] is None:
                    found[previous] = frame
        frames = [frame for frame in found.values() if frame is not None]
        return frames if len(frames) == len(found) else None

    def _stretches(self, wanted: np.ndarray) -> list[tuple[int, int]]:
        """First and last packet of each stretch that is decoded without a seek.

        A new stretch begins where a key frame follows the last packet needed so far::

            packets   K . . . . K . . . . K . . . .
            wanted          x x               x x      two stretches: 0 to 4, 10 to 12
        """
        packets = self._order[np.searchsorted(self._shown, wanted)]
        keys = np.flatnonzero(self._table.is_key)
        shown = self._table.pts[keys]
        by_time = np.argsort(shown, kind="stable")
        latest = np.maximum.accumulate(keys[by_time])  # last packet among those displayed so far
        found = np.searchsorted(shown[by_time], wanted, side="right") - 1
        starts = np.where(found < 0, 0, latest[found]) if len(keys) else np.zeros_like(packets)
        stretches: list[tuple[int, int]] = []
        for start, packet in zip(starts.tolist(), packets.tolist(), strict=True):
            if not stretches or start > stretches[-1][1]:
                stretches.append((start, packet))
            else:
                stretches[-1] = (stretches[-1][0], max(packet, stretches[-1][1]))
        return stretches

    def _find_by_count(self, indices: np.ndarray) -> list[av.VideoFrame]:
        """Frames found by counting from the start; FrameCountError if some are missing."""
        wanted = set(indices.tolist())
        frames: list[av.VideoFrame] = []
        found: list[int | None] = []
        for frame in self._frames_from(0):
            if len(found) in wanted:
                frames.append(frame)
                if len(frames) == len(wanted):
                    return frames
            found.append(frame.pts)
        raise self._frame_count_error(found)

    def _recount(self, indices: np.ndarray) -> list[av.VideoFrame]:
        """After time stamps failed: count instead; FrameCountError if frames are missing."""
        self._reopen(self._file.quick)  # a decoder may keep state of its first frame (interlacing)
        found = [frame.pts for frame in self._frames_from(0)]
        if len(found) < len(self._pts):
            raise self._frame_count_error(found)
        self._by_count = True
        return self._find_by_count(indices)

    def _frame_count_error(self, found: list[int | None]) -> Exception:
        if not found:
            return VideoDecodeError(self.path, "no frame can be decoded")
        if self._by_count or None in found:
            keep = np.arange(len(self._pts)) < len(found)
        else:
            keep = np.isin(self._pts, np.asarray(found, dtype=np.int64))
        if not keep.any() or keep.all():
            return VideoDecodeError(self.path, "its time stamps do not match its frames")
        seconds, rows = self.timestamps[keep], np.flatnonzero(keep)
        return FrameCountError(self.path, len(keep), seconds - seconds[0], rows)

    # -- packets to frames -----------------------------------------------------------------

    def _frames_from(
        self, first: int, last: int | None = None, wanted: Container[int] | None = None
    ) -> Iterator[av.VideoFrame]:
        """Decode packets ``first`` to ``last`` (to the end if None), in display order.

        With ``wanted`` (time stamps), frames that no other frame refers to are decoded only if they
        are wanted.
        """
        self._file.codec.flush_buffers()
        skipping: bool | None = None

        def decoder_for(packet: av.Packet) -> av.VideoCodecContext:
            nonlocal skipping
            codec = self._file.codec  # seeking to the start may have opened a new one
            skip = wanted is not None and packet.pts not in wanted
            if skip is not skipping:
                codec.skip_frame = "NONREF" if skip else "DEFAULT"
                skipping = skip
            return codec

        for frames in decode_packets(self._packets_between(first, last), decoder_for):
            self.frames_decoded += len(frames)
            yield from frames

    def _packets_between(self, first: int, last: int | None) -> Iterator[av.Packet]:
        for position, packet in self._packets_from(first):
            check_deadline(self.path, self._deadline)
            yield packet
            if position == last:
                return

    def _packets_from(self, first: int) -> Iterator[tuple[int, av.Packet]]:
        """(position, packet) from packet ``first`` on, in decoding order."""
        if self._held is not None:
            yield from enumerate(self._held[first:], first)
            return
        for position, packet in self._seek(first) or self._rewind():
            if self._indexed and packet.pts != self._table.pts[position]:
                raise _WrongIndexError
            if position >= first:
                yield position, packet

    def _seek(self, first: int) -> Iterator[tuple[int, av.Packet]] | None:
        """Seek to packet ``first`` or before it; None if the container cannot."""
        if first == 0 and not self._indexed:
            return None  # not every container can seek to its start
        if not self._file.seek(int(self._table.pts[first])):
            return None
        packets = self._file.packets(self._deadline)
        head = next(packets, None)
        if head is None:
            return None
        position = np.flatnonzero(self._table.pts == head.pts)
        if len(position) != 1 or position[0] > first or not head.is_keyframe:
            return None
        return enumerate(chain([head], packets), int(position[0]))

    def _rewind(self) -> Iterator[tuple[int, av.Packet]]:
        self._reopen(self._file.quick)
        return enumerate(self._file.packets(self._deadline))

    def close(self) -> None:
        self._held = None
        self._closed = True
        self._file.close()


class _WrongIndexError(Exception):
    """A packet is not the one that the file's index lists."""


class _AvFrames(DecodedFrames):
    """Decoded frames of a reader; still valid after the reader is closed.

    Args:
        frames: Frames of the decoder.
        size: Height and width as displayed; frames of another size are scaled to it.
        num_threads: Threads of the conversion to RGB.
        count: Called at each conversion.
    """

    def __init__(
        self,
        frames: list[av.VideoFrame],
        size: tuple[int, int],
        num_threads: int,
        count: Callable[[], None],
    ) -> None:
        self.size = size
        self._frames = frames
        self._num_threads = num_threads
        self._count = count
        self._reformatter = VideoReformatter()

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def interlaced(self) -> bool:
        """Whether the first frame is interlaced."""
        return bool(self._frames[0].interlaced_frame)

    def __getitem__(self, index: int) -> np.ndarray:
        frame = self._frames[index]
        turns = _quarter_turns(frame)
        height, width = self.size[::-1] if turns % 2 else self.size
        # By default every reformatter starts a thread pool of its own, which takes many times
        # longer than the conversion of one frame.
        rgb = self._reformatter.reformat(
            frame, width=width, height=height, format="rgb24", threads=self._num_threads
        )
        self._count()
        array = rgb.to_ndarray()
        return np.ascontiguousarray(np.rot90(array, k=turns)) if turns else array


def _holds_idr(packet: bytes, extradata: bytes) -> bool:
    """Whether an h264 packet of mp4 or Matroska (length-prefixed NAL units) has an IDR slice."""
    if len(extradata) < 5 or extradata[0] != 1:
        return False
    size, position = (extradata[4] & 3) + 1, 0
    while position + size < len(packet):
        if packet[position + size] & 31 == 5:  # nal_unit_type
            return True
        position += size + int.from_bytes(packet[position : position + size], "big")
    return False


def _quarter_turns(frame: av.VideoFrame) -> int:
    """Quarter turns counter-clockwise, from the display matrix."""
    return round(frame.rotation / 90) % 4
