"""A video file opened with PyAV: its container, best video stream and decoder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import av
from av.stream import Discard

from sce_video.datasets.readers.base import check_deadline
from sce_video.datasets.readers.errors import VideoDecodeError
from sce_video.datasets.readers.frame_table import FrameTable
from sce_video.datasets.readers.limits import DecodeLimits

#: FFmpeg's names of the containers that are read. Left out are playlists and descriptions that
#: refer to other files or hosts (concat, hls, dash, sdp, imf), numbered images, and text.
CONTAINERS = (
    "mov", "matroska", "avi", "asf", "flv", "live_flv", "gif", "mpeg", "mpegvideo", "mpegts", "ogg",
    "mxf", "nut", "rm", "dv", "ivf", "wtv", "dhav", "nsv", "h264", "hevc", "m4v", "h263", "obu",
    "av1", "mjpeg", "yuv4mpegpipe", "vc1", "vc1test", "apng",
)  # fmt: skip
_OPTIONS = {"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": "file"}


def file_url(path: str | os.PathLike[str]) -> str:
    """A path as FFmpeg takes it for a file: in ``cam:1/a.mp4`` it sees the protocol ``cam``."""
    return f"file:{os.fspath(path)}"


def open_video(
    path: str | os.PathLike[str],
    *,
    demuxer_options: dict[str, str] | None = None,
    decoder_options: dict[str, str] | None = None,
) -> Any:
    """Open a video file with PyAV, to read it.

    Args:
        path: The file.
        demuxer_options: Of the demuxer, beside those that keep to files.
        decoder_options: Of the decoders with which FFmpeg probes the file.

    Returns:
        ``av.container.InputContainer``.

    Raises:
        VideoDecodeError: It cannot be opened, or is no container of :data:`CONTAINERS`.
    """
    path = os.fspath(path)
    try:
        return av.open(
            file_url(path),
            options=decoder_options or {},
            container_options={**_OPTIONS, **(demuxer_options or {})},
            metadata_errors="ignore",
        )
    except av.ArgumentError as error:  # how FFmpeg refuses what is not on a whitelist
        reason = "cannot be opened: it is no container of videos that is read"
        raise VideoDecodeError(path, reason) from error
    except (av.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise VideoDecodeError(path, f"cannot be opened: {reason}") from error


# Codecs whose parameter sets in the container's header are all that the decoder needs.
_SELF_DESCRIBING = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "libdav1d"})
_MP4_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"})
# FFmpeg applies this list to its own probing only, not to a decoder that is opened afterwards.
_NO_PROBING = {"codec_whitelist": "none"}
_MATROSKA = b"\x1a\x45\xdf\xa3"


class AvFile:
    """An open container.

    FFmpeg decodes the first frames of a file it opens (``avformat_find_stream_info``) to find
    parameters that mp4 and Matroska files state in their headers. That takes longer than opening:
    0.7 of 0.9 ms at 340 x 256, 5.4 of 5.6 ms at 1080p. ``quick`` prevents it;
    :meth:`quick_was_enough` then says whether a parameter is missing.

    Args:
        path: A regular file.
        num_threads: Threads of the decoder.
        quick: Decode nothing while opening.
        limits: Of the frame size, which the decoder also checks before it allocates a frame.

    Raises:
        VideoDecodeError: The file cannot be opened, has no video stream with a decoder, or its
            frames are too large.
    """

    def __init__(self, path: str, num_threads: int, quick: bool, limits: DecodeLimits) -> None:
        self.path = path
        self.quick = quick
        bound = decoder_options(limits)
        if quick:
            self.container = open_video(path, demuxer_options=_NO_PROBING)
        else:
            self.container = open_video(path, decoder_options=bound)
        try:
            self._open_decoder(num_threads, bound)
            limits.check_frame(path, *self._frame_size())
        except BaseException:
            self.close()
            raise

    def _open_decoder(self, num_threads: int, options: dict[str, str]) -> None:
        stream = self.container.streams.best("video")
        if stream is None or stream.codec_context is None:
            raise VideoDecodeError(self.path, "has no video stream that can be decoded")
        for other in self.container.streams:
            if other.index != stream.index:
                other.discard = Discard.all  # audio is not even read
        self.stream = stream
        self.format = self.container.format.name
        self.codec = stream.codec_context
        self.codec.thread_count = num_threads
        if num_threads > 1:
            self.codec.thread_type = "AUTO"
        self.codec.options = options
        try:
            # Opened before skip_frame is ever set: libdav1d keeps the value it is opened with.
            self.codec.open(strict=False)
        except av.FFmpegError as error:
            raise VideoDecodeError(self.path, f"no decoder: {error.strerror}") from error

    def _frame_size(self) -> tuple[int, int]:
        """Height and width before anything is decoded; 0 where they are not known.

        A decoder that refuses a size while FFmpeg probes leaves none: then it is the header's.
        """
        height, width = self.codec.height or 0, self.codec.width or 0
        if height * width or self.quick:
            return height, width
        with open_video(self.path, demuxer_options=_NO_PROBING) as container:
            codec = container.streams[self.stream.index].codec_context
            return codec.height or 0, codec.width or 0

    @property
    def self_describing(self) -> bool:
        """Whether the container's header suffices to choose and decode the stream."""
        if len(self.container.streams.video) != 1:
            return False  # FFmpeg chooses the best one by what it decoded of them
        return self.codec.name in _SELF_DESCRIBING and (
            bool(self.codec.extradata) or self.codec.name in ("vp8", "vp9")
        )

    @property
    def stated_duration(self) -> float | None:
        """Seconds that the header states; None if it states none for this stream alone."""
        if self.stream.duration is not None and self.stream.time_base is not None:
            return float(self.stream.duration * self.stream.time_base)
        duration = self.container.duration
        alone = len(self.container.streams) == 1
        return duration / av.time_base if alone and duration is not None else None

    def quick_was_enough(self, table: FrameTable) -> bool:
        """Whether decoding returns the same frames as without ``quick``.

        Without probing, the reorder depth of a stream with B frames must be in the stream's header,
        and the last packet must have a duration.
        """
        if table.reordered and not self.codec.has_b_frames:
            return False
        return table.last_duration > 0

    def packets(self, deadline: float | Callable[[], float | None] | None) -> Iterator[av.Packet]:
        """All non-empty packets from the current position, in decoding order.

        Args:
            deadline: Value of ``time.monotonic()`` after which reading raises; or a function that
                returns it, since it may move while packets are read.
        """
        limit = deadline if callable(deadline) else lambda: deadline
        more = True
        while more:
            more = False
            packets = self.container.demux(self.stream)
            try:
                for packet in packets:
                    check_deadline(self.path, limit())
                    if packet.size:
                        yield packet
            except IndexError:
                # A packet of a stream that begins later (audio in FLV) and that PyAV does not know.
                check_deadline(self.path, limit())
                more = True
            except (av.FFmpegError, OSError):
                pass  # a truncated file: keep what was read so far
            finally:
                packets.close()  # PyAV 18 leaks 160 bytes per demuxer that is not exhausted

    def seek(self, pts: int) -> bool:
        """Seek to the key frame displayed at or before ``pts``; False if the container cannot."""
        try:
            self.container.seek(pts, stream=self.stream)
        except av.FFmpegError:
            return False
        return True

    def close(self) -> None:
        """Close the container; may be called more than once."""
        self.container.close()


def decoder_options(limits: DecodeLimits) -> dict[str, str]:
    """Options with which a decoder refuses frames that are much too large.

    It counts coded pixels, which may be some rows and columns more than are displayed.
    """
    return {"max_pixels": str(limits.max_pixels * 5 // 4 + 2**16)}


def decode_packets(
    packets: Iterable[av.Packet], decoder_for: Callable[[av.Packet], av.VideoCodecContext]
) -> Iterator[list[av.VideoFrame]]:
    """Decode packets; after one that the decoder refuses, continue at the next key frame.

    The frames in between are predicted from missing data, so their packets are skipped. At a
    refused packet and at the end the decoder is drained: frames it still holds back are returned.

    Args:
        packets: In decoding order.
        decoder_for: Called before each packet that is decoded; returns the decoder.

    Yields:
        The frames the decoder returned at once, in the order they are displayed.
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
    """The frames still inside the decoder; it is ready for a key frame afterwards."""
    try:
        frames = codec.decode(None)
    except av.FFmpegError:
        frames = []
    codec.flush_buffers()
    return frames


def can_be_quick(path: str) -> bool:
    """Whether the first bytes are those of an mp4, mov, Matroska or WebM file."""
    try:
        with open(path, "rb") as file:
            head = file.read(8)
    except OSError as error:
        raise VideoDecodeError(path, f"cannot be opened: {error.strerror}") from error
    return head[4:8] in _MP4_BOXES or head[:4] == _MATROSKA
