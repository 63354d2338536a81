"""An open video file: its container, and the packets and frames of its best video stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from io import FileIO
from itertools import chain
from typing import Any

import av
import numpy as np
from av.format import Flags
from av.stream import Discard, Disposition

from sce_video.datasets.readers.base import (
    DecodeLimits,
    VideoDecodeError,
    check_deadline,
    check_regular_file,
)
from sce_video.datasets.readers.frame_table import (
    Clock,
    FrameTable,
    is_restart_point,
    table_from_index,
    table_from_packets,
)
from sce_video.utils.files import regular_file

#: FFmpeg's names for the containers that can be read. They exclude numbered images, text, and
#: playlists, which refer to other files or hosts (concat, hls, dash, sdp, imf).
CONTAINERS = (
    "mov", "matroska", "avi", "asf", "flv", "live_flv", "gif", "mpeg", "mpegvideo", "mpegts", "ogg",
    "mxf", "nut", "rm", "dv", "ivf", "wtv", "dhav", "nsv", "h264", "hevc", "m4v", "h263", "obu",
    "av1", "mjpeg", "yuv4mpegpipe", "vc1", "vc1test", "apng",
)  # fmt: skip
_OPTIONS = {"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": "file"}
# Codecs whose decoders only need the parameter sets in the container's header.
_SELF_DESCRIBING = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "libdav1d"})
_MP4_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"})
_MATROSKA = b"\x1a\x45\xdf\xa3"
# Streams that players do not show as video, such as cover pictures and thumbnails of chapters.
_STILLS = Disposition.attached_pic | Disposition.timed_thumbnails
# FFmpeg uses this list only for its own probing. It does not affect decoders that are opened later.
_NO_PROBING = {"codec_whitelist": "none"}
# Files without an index are read once and kept in memory up to this size. Larger files are read
# again, starting at a key frame.
_MAX_HELD_BYTES = 64 * 2**20
# Frame tables of larger files, by path, size and modification time. They take nine bytes per frame.
# Tables from long indexes are kept, too, because reading the index of a one-hour video takes 50 ms
# per segment.
_tables: dict[tuple[str, int, int, int, str], FrameTable] = {}
_MAX_TABLES = 128
_LONG = 10_000  # minimum number of frames in a long index


def file_url(path: str | os.PathLike[str]) -> str:
    """Return the ``file:`` URL of a path, because FFmpeg takes ``cam:`` for a protocol."""
    return f"file:{os.fspath(path)}"


def open_container(
    path: str | os.PathLike[str],
    *,
    demuxer_options: dict[str, str] | None = None,
    decoder_options: dict[str, str] | None = None,
) -> Any:
    """Open a media file. No other function in the package opens one with FFmpeg.

    Args:
        path: Path of a local file. It is never read as a URL.
        demuxer_options: Options in addition to those that restrict FFmpeg to files.
        decoder_options: Options of the decoders with which FFmpeg probes the file.

    Returns:
        The ``av.container.InputContainer``.

    Raises:
        VideoDecodeError: If the file cannot be opened, is not a regular file, or is a container
            that is not in :data:`CONTAINERS`.
    """
    path = os.fspath(path)
    check_regular_file(path)
    try:
        return av.open(
            file_url(path),
            options=decoder_options or {},
            container_options={**_OPTIONS, **(demuxer_options or {})},
            metadata_errors="ignore",
        )
    except av.ArgumentError as error:  # the format is not on the whitelist
        reason = "cannot be opened: its format is not a supported video container"
        raise VideoDecodeError(path, reason) from error
    except (av.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise VideoDecodeError(path, f"cannot be opened: {reason}") from error


def best_video_stream(path: str, container: Any) -> Any:
    """Return the video stream that players show, which is never a cover picture.

    Raises:
        VideoDecodeError: If no video stream has a decoder.
    """
    best = container.streams.best("video")
    if best is not None and best.disposition & _STILLS:
        moving = (s for s in container.streams.video if not s.disposition & _STILLS)
        best = next(moving, None)
        if best is None:
            raise VideoDecodeError(path, "has no video stream, only a cover picture")
    if best is None or best.codec_context is None:
        raise VideoDecodeError(path, "has no video stream that can be decoded")
    return best


def stated_seconds(container: Any, stream: Any) -> float | None:
    """Return the duration that the header states for a stream, otherwise for the whole file."""
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return None if container.duration is None else container.duration / av.time_base


def decoder_options(limits: DecodeLimits) -> dict[str, str]:
    """Return options with which a decoder refuses frames that are much too large."""
    # Allow more pixels, because FFmpeg counts coded pixels, which may include rows and columns that
    # are not displayed.
    return {"max_pixels": str(limits.max_pixels * 5 // 4 + 2**16)}


def open_decoder(codec: Any, num_threads: int, limits: DecodeLimits) -> None:
    """Open a codec context whose parameters are set; av.FFmpegError if FFmpeg refuses them."""
    codec.thread_count = num_threads
    if num_threads > 1:
        codec.thread_type = "AUTO"
    codec.options = decoder_options(limits)
    codec.open(strict=False)


def can_be_quick(path: str) -> bool:
    """Return whether the first bytes belong to an mp4, mov, Matroska or WebM file."""
    try:
        with open(path, "rb", opener=regular_file) as file:
            head = file.read(8)
    except OSError as error:
        raise VideoDecodeError(path, f"cannot be opened: {error.strerror}") from error
    return head[4:8] in _MP4_BOXES or head[:4] == _MATROSKA


def holds_video(path: str) -> bool:
    """Return whether a file is a supported container with a video, whatever its name is.

    The cover picture of an audio file is not a video. Nothing is decoded.
    """
    if not os.path.isfile(path):  # a pipe or a device could block
        return False
    try:
        with open_container(path, demuxer_options=_NO_PROBING) as container:
            return any(
                not s.disposition & Disposition.attached_pic for s in container.streams.video
            )
    except VideoDecodeError:
        return False


def demux_packets(container: Any, stream: Any) -> Iterator[av.Packet | None]:
    """Yield the packets of a stream from the current position; a truncated file ends early.

    None stands for a packet of a stream that PyAV does not know, because it begins later, such as
    audio in FLV.
    """
    more = True
    while more:
        more = False
        packets = container.demux(stream)
        try:
            yield from packets
        except IndexError:  # PyAV raises this for a packet of an unknown stream
            more = True
        except (av.FFmpegError, OSError):
            pass  # the file is truncated, so keep what was read so far
        finally:
            packets.close()  # PyAV 18 leaks 160 bytes per unfinished demuxer
        if more:
            yield None


class AvFile:
    """An open container, with a decoder of ``num_threads`` threads for its best video stream.

    When FFmpeg opens a file, it decodes the first frames (``avformat_find_stream_info``) to find
    parameters that mp4 and Matroska files state in their headers. This takes 0.7 of 0.9 ms at 340 x
    256 and 5.4 of 5.6 ms at 1080p, and ``quick`` prevents it. :meth:`quick_was_enough` then checks
    that decoding still returns the same frames.

    Raises:
        VideoDecodeError: If the file cannot be opened, has no video stream with a decoder, or its
            frames exceed the ``limits``, which are checked before memory is allocated.
    """

    def __init__(self, path: str, num_threads: int, quick: bool, limits: DecodeLimits) -> None:
        self.path = path
        self.quick = quick
        bound = decoder_options(limits)
        probing = {"demuxer_options": _NO_PROBING} if quick else {"decoder_options": bound}
        self.container = open_container(path, **probing)
        try:
            self.format = self.container.format.name
            self.stream = best_video_stream(path, self.container)
            for other in self.container.streams:
                if other.index != self.stream.index:
                    other.discard = Discard.all  # audio is not read
            self.codec = self.stream.codec_context
            # Open the decoder before skip_frame is set, because libdav1d keeps its first value.
            open_decoder(self.codec, num_threads, limits)
            height, width = self.codec.height or 0, self.codec.width or 0
            if not height * width and not quick:
                # If the decoder refused the size during probing, read the size in the header.
                with open_container(path, demuxer_options=_NO_PROBING) as container:
                    codec = container.streams[self.stream.index].codec_context
                    height, width = codec.height or 0, codec.width or 0
            limits.check_frame(path, height, width)
        except av.FFmpegError as error:
            self.close()
            raise VideoDecodeError(path, f"no decoder: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    @property
    def self_describing(self) -> bool:
        """Return whether the container's header suffices to choose and decode the stream."""
        # If there are several streams, FFmpeg has to decode frames, because it chooses the stream
        # from which it decoded the most.
        name, alone = self.codec.name, len(self.container.streams.video) == 1
        described = bool(self.codec.extradata) or name in ("vp8", "vp9")
        return alone and name in _SELF_DESCRIBING and described

    @property
    def stated_duration(self) -> float | None:
        """Return the duration that the header states for the video stream, in seconds, or None."""
        if self.stream.duration is None and len(self.container.streams) > 1:
            return None
        return stated_seconds(self.container, self.stream)

    def quick_was_enough(self, table: FrameTable) -> bool:
        """Return whether decoding returns the same frames as without ``quick``."""
        # The header must contain the reorder depth of a stream with B frames, and the last packet
        # must have a duration.
        known_order = self.codec.has_b_frames or not (np.diff(table.pts) < 0).any()
        return table.last_duration > 0 and bool(known_order)

    def packets(self, deadline: float | Callable[[], float | None] | None) -> Iterator[av.Packet]:
        """Yield all non-empty packets from the current position, in decoding order.

        ``deadline`` is a value of ``time.monotonic()`` after which reading raises. It may be a
        function, because the deadline may change while packets are read.
        """
        limit = deadline if callable(deadline) else lambda: deadline
        for packet in demux_packets(self.container, self.stream):
            check_deadline(self.path, limit())
            if packet is not None and packet.size:
                yield packet

    def close(self) -> None:
        """Close the container; may be called more than once."""
        self.container.close()


def make_packet(data: bytes | memoryview) -> av.Packet:
    """Make a packet in FFmpeg's own memory, which is padded with zeros.

    ``av.Packet(data)`` refers to Python's memory. Decoders read beyond the end of damaged data, so
    its frames would depend on what the process has done before.
    """
    packet = av.Packet(len(data))
    packet.update(data)
    return packet


def decode_packets(
    packets: Iterable[av.Packet], decoder_for: Callable[[av.Packet], av.VideoCodecContext]
) -> Iterator[list[av.VideoFrame]]:
    """Decode packets. After a packet that the decoder refuses, continue at the next key frame.

    The frames in between would be predicted from missing data. ``decoder_for`` is called before
    each packet and returns its decoder, which is drained after a refused packet and at the end.

    Yields:
        Frames that the decoder returned together, in display order.
    """
    codec = None
    damaged = False
    for packet in packets:
        if damaged and not packet.is_keyframe:
            continue
        codec = decoder_for(packet)
        try:
            frames, damaged = codec.decode(packet), False
        except av.FFmpegError:
            frames, damaged = _drain(codec), True
        yield frames
    if codec is not None:
        yield _drain(codec)


def _drain(codec: av.VideoCodecContext) -> list[av.VideoFrame]:
    """Return the frames that a decoder still holds, and prepare it for a key frame."""
    try:
        return codec.decode(None)
    except av.FFmpegError:
        return []
    finally:
        codec.flush_buffers()


class WrongIndexError(Exception):
    """A packet differs from the index, or a frame's timestamp belongs to no packet."""


def _keep_table(identity: tuple[str, int, int, int, str], table: FrameTable) -> None:
    _tables[identity] = table
    if len(_tables) > _MAX_TABLES:
        del _tables[next(iter(_tables))]


class NoRestartPointError(Exception):
    """Decoding cannot start at a packet that the file's index flags as a key frame."""


class AvStream:
    """Packets and frames of the best video stream of an open ``file``, and their ``table``.

    ``deadline``, a value of ``time.monotonic()``, may change while frames are decoded.
    """

    def __init__(
        self, path: str, num_threads: int, deadline: float | None, limits: DecodeLimits
    ) -> None:
        self.path = path
        self.deadline = deadline
        self._num_threads, self._limits = num_threads, limits
        self._held: list[av.Packet] | None = None
        self._indexed = False
        self._direct: FileIO | None = None  # file from which packets are read without the demuxer
        self._checked = False  # whether all keys of the index are known restart points
        self.decoded_bytes = 0  # size of the packets that the last call of frames_from decoded
        self.table = table_from_packets([])
        self.file = AvFile(path, num_threads, can_be_quick(path), limits)
        self.extradata = self.file.codec.extradata or b""

    def reopen(self, quick: bool | None = None) -> None:
        """Open the file again with a new decoder. None keeps the present value of ``quick``."""
        self._close_direct()
        self.file.close()
        quick = self.file.quick if quick is None else quick
        self.file = AvFile(self.path, self._num_threads, quick, self._limits)
        self.extradata = self.file.codec.extradata or b""

    def close(self) -> None:
        """Close the file; may be called more than once."""
        self._held = None
        self._close_direct()
        self.file.close()

    def _close_direct(self) -> None:
        if self._direct is not None:
            self._direct.close()
            self._direct = None

    def read_table(self, use_index: bool) -> bool:
        """Read :attr:`table`. If packets have no timestamps, it is empty; then return False."""
        if self.file.quick and not self.file.self_describing:
            self.reopen(quick=False)
        while True:
            self._held = None
            table = self._table_of_index() if use_index else None
            self._indexed = table is not None
            self._checked = not self._indexed
            table = table or self._table_of_packets()
            self.table = table or table_from_packets([])
            if table is None or not self.file.quick or self.file.quick_was_enough(table):
                return table is not None
            self.reopen(quick=False)  # reopen the file with FFmpeg's probing

    def _table_of_index(self) -> FrameTable | None:
        """Return the table in the file's index, if it is valid and agrees with the first packet."""
        identity = self._identity(f"index of {self.file.stream.index}")
        table = _tables.get(identity) or table_from_index(self.path, self.file.stream)
        if table is None:
            return None
        if len(table.pts) > _LONG:
            _keep_table(identity, table)
        first = next(self._packets(), None)
        if first is None or first.pts is None or not first.is_keyframe:
            self.reopen()
            return None
        if table.stored is not None:
            self._close_direct()
            self._direct = open(self.path, "rb", buffering=0, opener=regular_file)  # noqa: SIM115  closed by close()
            stored = bytes(self._stored(table, 0))
            if stored != bytes(first):  # the demuxer decrypts or changes packets
                self._close_direct()
        return replace(table, pts=table.pts + (first.pts - table.pts[0]))

    def _stored(self, table: FrameTable, position: int) -> av.Packet:
        """Read a packet from the file; WrongIndexError if the file has become shorter."""
        assert self._direct is not None and table.stored is not None
        offset, size = table.stored[position].tolist()
        self._direct.seek(offset)
        packet = av.Packet(size)  # memory allocated by FFmpeg (see make_packet)
        if self._direct.readinto(packet) != size:
            raise WrongIndexError
        return packet

    def _identity(self, what: str) -> tuple[str, int, int, int, str]:
        status = os.stat(self.path)
        facts = status.st_size, status.st_mtime_ns, status.st_ino
        return os.path.abspath(self.path), *facts, what

    def _table_of_packets(self) -> FrameTable | None:
        """Return the table of all packets, which are kept if small; None without timestamps."""
        identity = self._identity("packets")
        if identity in _tables:
            return _tables[identity]
        held: list[av.Packet] = []
        size, rows, false_keys, dts = 0, [], False, []
        for packet in self._packets():
            is_key = packet.is_keyframe and self._can_start_at(packet)
            false_keys |= packet.is_keyframe and not is_key
            rows.append((packet.pts, is_key, packet.duration or 0, packet.is_discard))
            dts.append(packet.dts)
            size += packet.size
            if size > _MAX_HELD_BYTES:
                held.clear()
            else:
                held.append(packet)
        if all(hidden for *_, hidden in rows):
            raise VideoDecodeError(self.path, "contains no video packets")
        self._held = held or None
        if any(pts is None for pts, *_ in rows):
            return None
        table = table_from_packets(rows, false_keys, self._clock(dts))
        if table.shifts is not None:
            for packet, pts in zip(held, table.pts.tolist(), strict=False):  # empty for large files
                packet.pts = pts
        if not held:
            _keep_table(identity, table)
        return table

    def _clock(self, dts: list[int | None]) -> Clock | None:
        if self.file.format == "avi":  # its timestamps are only frame numbers
            return None
        tick = Fraction(self.file.stream.time_base or Fraction(1, 1000))
        free = bool(self.file.container.format.flags & Flags.ts_discont.value)
        return Clock(np.array(dts, dtype=np.float64), tick, free)

    def _can_start_at(self, packet: av.Packet) -> bool:
        return is_restart_point(self.file.codec.name, self.extradata, memoryview(packet))

    def drop_false_keys(self) -> None:
        """Clear ``table.is_key`` of the packets at which decoding cannot start."""
        if self._checked:
            return
        # The key-frame flags of an index do not show whether decoding can start there, so read the
        # packets once.
        is_key = self.table.is_key.copy()
        for position in np.flatnonzero(is_key).tolist()[1:]:
            check_deadline(self.path, self.deadline)
            is_key[position] = self._can_start_at(self.packet(position))
        dropped = not np.array_equal(is_key, self.table.is_key)
        self.table = replace(self.table, is_key=is_key, false_keys=dropped)
        self._checked = True

    def frames_from(
        self, first: int, last: int | None = None, wanted: Container[int] | None = None
    ) -> Iterator[av.VideoFrame]:
        """Decode packets ``first`` to ``last`` (None for the end), in display order.

        If ``wanted`` contains timestamps, other frames are decoded only if frames refer to them.

        Raises:
            WrongIndexError: If the packets differ from the table.
            NoRestartPointError: If decoding cannot start at ``first``; see :meth:`drop_false_keys`.
        """
        self.file.codec.flush_buffers()
        self.decoded_bytes = 0

        def decoder_for(packet: av.Packet) -> av.VideoCodecContext:
            codec = self.file.codec  # get it here, because seeking may have opened a new decoder
            skip = wanted is not None and packet.pts not in wanted
            codec.skip_frame = "NONREF" if skip else "DEFAULT"
            return codec

        for frames in decode_packets(self._packets_between(first, last), decoder_for):
            yield from frames

    def packet(self, position: int) -> av.Packet:
        """Return one packet; raise VideoDecodeError if it can no longer be read."""
        for _, packet in self._packets_from(position):
            return packet
        raise VideoDecodeError(self.path, "changed while it was being read")

    def _packets(self) -> Iterator[av.Packet]:
        return self.file.packets(lambda: self.deadline)

    def _packets_between(self, first: int, last: int | None) -> Iterator[av.Packet]:
        for position, packet in self._packets_from(first):
            check_deadline(self.path, self.deadline)
            if position == first > 0 and not self._checked and not self._can_start_at(packet):
                raise NoRestartPointError
            self.decoded_bytes += packet.size
            yield packet
            if position == last:
                return

    def _packets_from(self, first: int) -> Iterator[tuple[int, av.Packet]]:
        """Yield position and packet from packet ``first`` on, in decoding order."""
        if self._held is not None:
            yield from enumerate(self._held[first:], first)
            return
        if self._direct is not None:
            # Read packets directly, because after each seek, a demuxer reads 32 KiB, which takes a
            # sixth of the time for decoding a small intra frame.
            for position in range(first, len(self.table.pts)):
                packet = self._stored(self.table, position)
                packet.pts = int(self.table.pts[position])
                packet.is_keyframe = bool(self.table.is_key[position])
                yield position, packet
            return
        packets = self._seek(first)
        if packets is None:  # the container cannot seek, so read from the start
            self.reopen()
            packets = enumerate(self._packets())
        for position, packet in packets:
            if self._indexed and packet.pts != self.table.pts[position]:
                raise WrongIndexError
            if self.table.shifts is not None and position < len(self.table.pts):
                packet.pts = int(self.table.pts[position])
            if position >= first:
                yield position, packet

    def _seek(self, first: int) -> Iterator[tuple[int, av.Packet]] | None:
        """Seek to packet ``first`` or an earlier packet; None if the container cannot seek."""
        if first == 0 and not self._indexed:
            return None  # some containers cannot seek to their start
        stamps = self.table.stored_pts
        try:  # seek to the last key frame displayed at or before this time
            self.file.container.seek(int(stamps[first]), stream=self.file.stream)
        except av.FFmpegError:
            return None
        packets = self._packets()
        head = next(packets, None)
        if head is None:
            return None
        position = np.flatnonzero(stamps == head.pts)
        if len(position) != 1 or position[0] > first or not head.is_keyframe:
            return None
        return enumerate(chain([head], packets), int(position[0]))


def continuous_table(path: str, limits: DecodeLimits) -> FrameTable | None:
    """Return the table of a file whose clock restarts or jumps; None for any other file."""
    stream = AvStream(path, 1, None, limits)
    try:
        stream.read_table(use_index=True)
        return None if stream.table.restarts is None else stream.table
    finally:
        stream.close()
