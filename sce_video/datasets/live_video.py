"""Frames of a video that is still being made: a camera, a pipe, a file that another program writes.

Such a video has no end that is known and no table of frames; it is decoded once, as it comes.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

import av

from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.av_file import decode_packets, decoder_options
from sce_video.datasets.readers.av_frames import AvFrames, displayed_size
from sce_video.datasets.readers.base import FALLBACK_FPS
from sce_video.datasets.readers.containers import CONTAINERS
from sce_video.datasets.source_names import is_camera

#: What FFmpeg may open for a network stream: no file.
_PROTOCOLS = "rtsp,rtsps,rtp,rtmp,rtmps,srt,udp,tcp,tls,crypto"
_LOOK_AGAIN = 0.1  # seconds between two looks at a growing file


class GrowingFile(io.RawIOBase):
    """Reads a file that is being written: at its end, waits for more.

    Args:
        path: The file.
        patience: Seconds without new bytes after which the file is taken to be complete.
    """

    def __init__(self, path: str, patience: float) -> None:
        self._file = open(path, "rb", buffering=0)
        self._patience = patience
        self._complete = False

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Bytes read; 0 once nothing was added for ``patience`` seconds."""
        limit = time.monotonic() + self._patience
        while not (count := self._file.readinto(buffer)) and not self._complete:
            self._complete = time.monotonic() > limit  # FFmpeg asks again at the end
            time.sleep(_LOOK_AGAIN)
        return count or 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def live_frames(
    source: str, timeout: float, follow: bool = False, limits: DecodeLimits | None = None
) -> Iterator[tuple[float, AvFrames]]:
    """Time (seconds, from 0 on) and content of each frame, as it comes.

    Time stamps that jump, as after a camera has started again, are continued one frame later.

    Args:
        source: Address of a camera, a path, or ``-``.
        timeout: Seconds that opening a camera, or its next packet, may take; of a growing file, the
            seconds after which it is complete.
        follow: The path is that of a growing file.
        limits: How large frames may be.

    Raises:
        VideoDecodeError: It cannot be opened or holds no video, or a camera stops.
    """
    limits = limits or DecodeLimits()
    try:
        with _open(source, timeout, follow, limits) as container:
            stream = container.streams.best("video")
            if stream is None or stream.codec_context is None:
                raise VideoDecodeError(source, "has no video stream that can be decoded")
            rate = float(stream.average_rate or stream.guessed_rate or FALLBACK_FPS)
            clock = _Clock(1 / rate)
            packets = (packet for packet in container.demux(stream) if packet.size)
            for frames in decode_packets(packets, lambda _: stream.codec_context):
                for frame in frames:
                    limits.check_frame(source, frame.height, frame.width)
                    size = displayed_size(frame)
                    yield clock.time(frame.time), AvFrames([frame], size, 1, lambda: None)
    except (av.FFmpegError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, av.ExitError | TimeoutError):
            reason = f"nothing came for {timeout:g} s"
        raise VideoDecodeError(source, f"the stream cannot be read: {reason}", False) from error


class _Clock:
    """Ascending times from the time stamps of frames, which may be missing or jump.

    Args:
        period: Seconds of a frame.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._offset: float | None = None
        self._last = 0.0

    def time(self, stamp: float | None) -> float:
        if self._offset is None:
            self._offset = -(stamp or 0.0)
            return self._last
        now = self._last + self._period if stamp is None else stamp + self._offset
        if not self._last < now < self._last + 10.0 and stamp is not None:
            now = self._last + self._period
            self._offset = now - stamp
        self._last = now
        return now


def _open(source: str, timeout: float, follow: bool, limits: DecodeLimits) -> Any:
    options: dict[str, Any] = {
        "options": decoder_options(limits),
        "metadata_errors": "ignore",
    }
    formats = ",".join(CONTAINERS)
    if is_camera(source):
        rules = {"format_whitelist": f"{formats},rtsp,rtp", "protocol_whitelist": _PROTOCOLS}
        if source.lower().startswith("rtsp"):
            rules["rtsp_transport"] = "tcp"  # packets lost by UDP damage frames
        return av.open(source, container_options=rules, timeout=timeout, **options)
    file: BinaryIO | GrowingFile
    if source == "-":
        file = sys.stdin.buffer
    else:
        file = GrowingFile(source, timeout) if follow else open(source, "rb", buffering=0)
    return av.open(file, container_options={"format_whitelist": formats}, **options)
