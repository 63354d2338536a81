"""A video file opened with PyAV: its container, its best video stream, its decoder."""

from __future__ import annotations

from collections.abc import Iterator

import av
from av.stream import Discard

from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.base import check_deadline
from sce_video.datasets.readers.frame_table import FrameTable

# Codecs whose parameter sets in the container's header tell the decoder all it must know.
_SELF_DESCRIBING = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "libdav1d"})
_MP4_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"})
_MATROSKA = b"\x1a\x45\xdf\xa3"


class AvFile:
    """An open container.

    FFmpeg decodes the first frames of a file it opens, to learn things that mp4 and Matroska files
    state in their headers. That takes longer than opening: 0.7 of 0.9 ms at 340 x 256, 5.4 of
    5.6 ms at 1080p. With ``quick`` no decoder is allowed to do so; :meth:`quick_was_enough` tells
    whether anything is missing then.

    Args:
        path: A regular file.
        num_threads: Threads of the decoder.
        quick: Do not decode anything while opening.

    Raises:
        VideoDecodeError: The file cannot be opened or has no video stream with a decoder.
    """

    def __init__(self, path: str, num_threads: int, quick: bool) -> None:
        self.path = path
        self.quick = quick
        # The list is asked by FFmpeg's own probing only, not for the decoder opened below.
        options = {"codec_whitelist": "none"} if quick else {}
        try:
            self.container = av.open(path, options=options, metadata_errors="ignore")
        except (av.FFmpegError, OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise VideoDecodeError(path, f"cannot be opened: {reason}") from error
        try:
            self._open_decoder(num_threads)
        except BaseException:
            self.close()
            raise

    def _open_decoder(self, num_threads: int) -> None:
        stream = self.container.streams.best("video")
        if stream is None or stream.codec_context is None:
            raise VideoDecodeError(self.path, "has no video stream that can be decoded")
        for other in self.container.streams:
            if other.index != stream.index:
                other.discard = Discard.all  # sound is not even read
        self.stream = stream
        self.format = self.container.format.name
        self.codec = stream.codec_context
        self.codec.thread_count = num_threads
        if num_threads > 1:
            self.codec.thread_type = "AUTO"
        try:
            # Opened before skip_frame is ever touched: libdav1d keeps the value it is opened with.
            self.codec.open(strict=False)
        except av.FFmpegError as error:
            raise VideoDecodeError(self.path, f"no decoder: {error.strerror}") from error

    @property
    def self_describing(self) -> bool:
        """Whether choosing and decoding the stream needs nothing but the container's header."""
        if len(self.container.streams.video) != 1:
            return False  # FFmpeg chooses the best one by what it saw of them
        return self.codec.name in _SELF_DESCRIBING and (
            bool(self.codec.extradata) or self.codec.name in ("vp8", "vp9")
        )

    def quick_was_enough(self, table: FrameTable) -> bool:
        """Whether decoding gives what it would have given without ``quick``.

        Without probing, the decoder of a stream whose frames are reordered must know the depth
        from the stream's header, and the last frame must say how long it is shown.
        """
        if table.reordered and not self.codec.has_b_frames:
            return False
        return table.last_duration > 0

    def packets(self, deadline: float | None) -> Iterator[av.Packet]:
        """All packets from here on that hold something, in the order of decoding."""
        more = True
        while more:
            more = False
            packets = self.container.demux(self.stream)
            try:
                for packet in packets:
                    check_deadline(self.path, deadline)
                    if packet.size:
                        yield packet
            except IndexError:
                # Of a stream that begins on the way (sound, in FLV), which PyAV does not know.
                check_deadline(self.path, deadline)
                more = True
            except (av.FFmpegError, OSError):
                pass  # a file cut short: what was read so far counts
            finally:
                packets.close()  # PyAV 18 loses 160 bytes of each demuxer dropped on its way

    def seek(self, pts: int) -> bool:
        """Go to the key frame shown at or before ``pts``; False when the container cannot."""
        try:
            self.container.seek(pts, stream=self.stream)
        except av.FFmpegError:
            return False
        return True

    def close(self) -> None:
        """Close the container; more than once is fine."""
        self.container.close()


def can_be_quick(path: str) -> bool:
    """Whether the first bytes are those of an mp4, mov, Matroska or WebM file."""
    try:
        with open(path, "rb") as file:
            head = file.read(8)
    except OSError as error:
        raise VideoDecodeError(path, f"cannot be opened: {error.strerror}") from error
    return head[4:8] in _MP4_BOXES or head[:4] == _MATROSKA
