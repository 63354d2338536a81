"""Decoding with PyAV (FFmpeg): exact time stamps, every format FFmpeg knows. The default."""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import chain

import av
import numpy as np
from av.stream import Discard
from av.video.reformatter import VideoReformatter

from sce_video.datasets.errors import FrameCountError, VideoDecodeError
from sce_video.datasets.readers.base import (
    FALLBACK_FPS,
    VideoReader,
    check_deadline,
    check_regular_file,
    last_frame_duration,
)

# Packets of a file are kept in memory up to this size: then the file is read exactly once and a
# jump to a key frame needs no seeking. Larger files are read again from the key frame on.
_MAX_HELD_BYTES = 64 * 2**20


class AvReader(VideoReader):
    """Reads a video with PyAV.

    The table of time stamps comes from the packets, which are read without decoding them: header
    frame counts and average rates are not believed, a variable frame rate is right. A frame is
    found by its presentation time stamp. Decoding starts at the key frame at or before a wanted
    frame, jumps on when another key frame lies between two wanted frames, and stops when the last
    wanted frame has arrived. Frames nobody refers to (most B frames) are not decoded unless
    wanted, which changes no other frame and saves a third of the time on Kinetics files.

    In an AVI file with B frames the packets' time stamps are invented by the demuxer and do not
    belong to the frames; such a file is decoded from its start and frames are counted. So is one
    with two equal time stamps. Where packets have none at all, frames are spaced evenly.

    After a packet the decoder refuses, nothing is taken until the next key frame, because the
    pictures between are predicted from missing data.

    Args:
        path: A regular file.
        num_threads: Threads of the decoder. One is best when loader workers fill the cores.
        correction: ``FrameCountError.correction`` of an earlier attempt.
        deadline: Value of ``time.monotonic()`` after which reading gives up.

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
        self._reformatter = VideoReformatter()
        self._container: av.container.InputContainer | None = None
        try:
            self._open()
            self._read_table()
            if correction is not None:
                self._correct(correction)
        except BaseException:
            self.close()
            raise

    # -- opening ---------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            self._container = av.open(self.path, metadata_errors="ignore")
        except (av.FFmpegError, OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise VideoDecodeError(self.path, f"cannot be opened: {reason}") from error
        self._stream = self._container.streams.best("video")
        if self._stream is None or self._stream.codec_context is None:
            raise VideoDecodeError(self.path, "has no video stream that can be decoded")
        for other in self._container.streams:
            if other.index != self._stream.index:
                other.discard = Discard.all  # sound is not even read
        self._format = self._container.format.name
        self._codec = self._stream.codec_context
        self._codec.thread_count = self._num_threads
        if self._num_threads > 1:
            self._codec.thread_type = "AUTO"
        try:
            # Opened before skip_frame is ever touched: libdav1d keeps the value it is opened with.
            self._codec.open(strict=False)
        except av.FFmpegError as error:
            raise VideoDecodeError(self.path, f"no decoder: {error.strerror}") from error

    def _demux(self) -> Iterator[av.Packet]:
        """All packets that lead to frames, in the order of decoding."""
        assert self._container is not None
        try:
            for packet in self._container.demux(self._stream):
                check_deadline(self.path, self._deadline)
                if packet.size and not packet.is_discard:
                    yield packet
        except (av.FFmpegError, OSError):
            return  # a file cut short: what was read so far counts

    def _read_table(self) -> None:
        """Read all packets once and lay out the table of time stamps."""
        held: list[av.Packet] | None = []
        size, pts, keys, durations = 0, [], [], []
        for packet in self._demux():
            pts.append(packet.pts)
            keys.append(packet.is_keyframe)
            durations.append(packet.duration or 0)
            size += packet.size
            if held is not None:
                held.append(packet)
                held = None if size > _MAX_HELD_BYTES else held
        if not pts:
            raise VideoDecodeError(self.path, "holds no video packets")
        self._held = held
        self._packet_is_key = np.asarray(keys, dtype=bool)
        if None in pts:
            self._by_count = True
            self._table_from_scan()
            return
        invented = self._format == "avi" and self._codec.has_b_frames
        self._by_count = bool(invented) or len(set(pts)) < len(pts)
        self._packet_pts = np.asarray(pts, dtype=np.int64)
        order = np.argsort(self._packet_pts)
        self._set_table(self._packet_pts[order], durations[order[-1]])

    def _set_table(self, pts: np.ndarray, last_duration: int) -> None:
        base = self._stream.time_base
        numerator, denominator = (base.numerator, base.denominator) if base else (1, 1000)
        self._pts = pts
        # integer * integer / integer: correctly rounded, so frame 64 at 25 fps is exactly 2.56
        self.timestamps = (pts - pts[0]) * numerator / denominator
        self.duration = float(self.timestamps[-1]) + last_frame_duration(
            self.timestamps, last_duration * numerator / denominator, self._rate()
        )

    def _rate(self) -> float | None:
        rate = self._stream.average_rate or self._stream.guessed_rate
        return float(rate) if rate else None

    def _table_from_scan(self) -> None:
        """Packets without usable time stamps: decode to count, and space the frames evenly."""
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
        indices = self._check_indices(indices)
        if self._container is None:
            raise ValueError(f"the reader of {self.path} is closed")
        try:
            if self._by_count:
                return self._read_by_count(indices)
            pictures = self._read_by_pts(indices)
            return self._recount(indices) if pictures is None else pictures
        except (av.FFmpegError, OSError) as error:
            raise VideoDecodeError(self.path, f"cannot be decoded: {error}", False) from error

    def _read_by_pts(self, indices: np.ndarray) -> np.ndarray | None:
        """Frames found by their time stamps; None when that fails somewhere."""
        slots = {int(pts): slot for slot, pts in enumerate(self._pts[indices])}
        pictures: list[np.ndarray | None] = [None] * len(slots)
        feed: Iterator[av.VideoFrame] = iter(())
        self._position, previous = -1, None
        for pts, slot in slots.items():
            key = self._key_packet(pts)
            if key > self._position:
                feed, previous = self._frames_from(key, slots), None
            while pictures[slot] is None:
                frame = next(feed, None)
                if frame is None or frame.pts is None:
                    return None
                if previous is not None and frame.pts <= previous:
                    return None
                previous = frame.pts
                if frame.pts in slots:
                    pictures[slots[frame.pts]] = self._to_rgb(frame)
        return np.stack(pictures)  # type: ignore[arg-type]

    def _read_by_count(self, indices: np.ndarray) -> np.ndarray:
        """Frames found by counting from the start; FrameCountError when some are missing."""
        wanted = set(indices.tolist())
        pictures: list[np.ndarray] = []
        found: list[int | None] = []
        for frame in self._frames_from(0):
            if len(found) in wanted:
                pictures.append(self._to_rgb(frame))
                if len(pictures) == len(wanted):
                    return np.stack(pictures)
            found.append(frame.pts)
        raise self._frame_count_error(found)

    def _recount(self, indices: np.ndarray) -> np.ndarray:
        """After time stamps failed: count instead if all frames are there, else say how many."""
        found = [frame.pts for frame in self._frames_from(0)]
        if len(found) < len(self._pts):
            raise self._frame_count_error(found)
        self._by_count = True
        return self._read_by_count(indices)

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

    def _key_packet(self, pts: int) -> int:
        """Place, in the order of decoding, of the last key frame shown at or before ``pts``."""
        usable = np.flatnonzero(self._packet_is_key & (self._packet_pts <= pts))
        return int(usable[-1]) if usable.size else 0

    def _frames_from(self, first: int, wanted: Container | None = None) -> Iterator[av.VideoFrame]:
        """Decode from packet ``first`` to the end, frames in the order they are shown.

        With ``wanted`` (time stamps), frames nobody refers to are left out unless wanted.
        """
        self._codec.flush_buffers()
        damaged = False
        for position, packet in self._packets_from(first):
            self._position = position
            check_deadline(self.path, self._deadline)
            if damaged and not packet.is_keyframe:
                continue
            needed = wanted is None or packet.pts in wanted
            self._codec.skip_frame = "DEFAULT" if needed else "NONREF"
            try:
                frames = self._codec.decode(packet)
                damaged = False
            except av.FFmpegError:
                frames = self._drain()
                damaged = True
            self.frames_decoded += len(frames)
            yield from frames
        frames = self._drain()
        self.frames_decoded += len(frames)
        yield from frames

    def _drain(self) -> list[av.VideoFrame]:
        """The frames still inside the decoder; it is ready for a key frame afterwards."""
        try:
            frames = self._codec.decode(None)
        except av.FFmpegError:
            frames = []
        self._codec.flush_buffers()
        return frames

    def _packets_from(self, first: int) -> Iterator[tuple[int, av.Packet]]:
        """(place, packet) from packet ``first`` on, in the order of decoding."""
        if self._held is not None:
            yield from enumerate(self._held[first:], first)
            return
        for position, packet in self._seek(first) or self._rewind():
            if position >= first:
                yield position, packet

    def _seek(self, first: int) -> Iterator[tuple[int, av.Packet]] | None:
        """Let the container jump to packet ``first`` or before it; None when it cannot."""
        assert self._container is not None
        if first == 0:
            return None
        try:
            self._container.seek(int(self._packet_pts[first]), stream=self._stream)
        except av.FFmpegError:
            return None
        packets = self._demux()
        head = next(packets, None)
        if head is None:
            return None
        place = np.flatnonzero(self._packet_pts == head.pts)
        if len(place) != 1 or place[0] > first:
            return None
        return enumerate(chain([head], packets), int(place[0]))

    def _rewind(self) -> Iterator[tuple[int, av.Packet]]:
        self.close()
        self._open()
        return enumerate(self._demux())

    def _to_rgb(self, frame: av.VideoFrame) -> np.ndarray:
        """(H, W, 3) uint8, turned as the display matrix asks; all frames get the first's size."""
        turns = round(frame.rotation / 90) % 4
        if self._size is None:
            self._size = (frame.height, frame.width)
            if turns % 2:
                self._size = (frame.width, frame.height)
        height, width = self._size
        if turns % 2:
            height, width = width, height
        # Its default is a pool of threads of its own for every reader: for one frame at a time that
        # takes many times longer than the conversion.
        rgb = self._reformatter.reformat(
            frame, width=width, height=height, format="rgb24", threads=self._num_threads
        )
        self.frames_converted += 1
        return np.rot90(rgb.to_ndarray(), k=turns)

    def close(self) -> None:
        self._held = None
        if self._container is not None:
            self._container.close()
            self._container = None
