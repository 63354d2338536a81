"""Facts about a file that are known only after it was decoded completely."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import Any

import av
import av.logging
import numpy as np

from sce_video.datasets.readers import AvReader
from sce_video.datasets.readers.av_file import (
    best_video_stream,
    decoder_options,
    demux_packets,
    open_container,
)
from sce_video.datasets.readers.base import (
    DecodeLimits,
    FrameCountError,
    VideoDecodeError,
    VideoTimeoutError,
    check_deadline,
    check_regular_file,
    too_damaged,
)
from sce_video.options.shared import MAX_PIXELS


@dataclass(frozen=True)
class _ToleranceSettings:
    """Deviations of a header that are not reported. The larger tolerance applies."""

    #: Tolerance as a share of the stated value. Long durations may be rounded.
    share: float = 0.1
    #: Tolerance in frames. A writer may count one or two frames that it does not write.
    frames: int = 2
    #: Tolerance in seconds. Durations may be rounded.
    seconds: float = 0.5


_TOLERANCE = _ToleranceSettings()
#: Largest size in bytes of an MPEG-4 picture that is "not coded". It stands for a repetition of the
#: previous frame, and decoding it returns no frame.
_NOT_CODED = 19


@dataclass(frozen=True, kw_only=True)
class VideoFacts:
    """Facts about a video stream that were found by decoding it, or that its container states.

    Attributes:
        frames: Number of usable frames. As in :class:`AvReader`, frames between a damaged packet
            and the next key frame are not usable.
        seconds: Duration of the usable frames.
        packets: Number of frames that the file should contain.
        refused: Number of packets that the decoder rejects.
        damaged: Number of frames in which the decoder concealed errors.
        hidden: Number of samples without a frame, because an edit list hides it or the recorder
            dropped it.
        restarts: Number of places where the timestamps restart or jump.
        container: FFmpeg's names for the container, separated by commas.
        codec: FFmpeg's name for the codec.
        height: Height of the frames, pixels.
        width: Width of the frames, pixels.
        header_frames: Stated number of frames, without hidden samples; None if it is not stated.
        header_seconds: Stated duration; None if it is not stated.
        header_of_file: Whether the stated duration is the duration of the whole file, which
            includes audio, and not the duration of the video stream.
    """

    frames: int
    seconds: float
    packets: int
    refused: int
    damaged: int
    hidden: int
    restarts: int
    container: str
    codec: str
    height: int
    width: int
    header_frames: int | None
    header_seconds: float | None
    header_of_file: bool

    @property
    def incomplete(self) -> str | None:
        """Return why the stream does not decode completely; None if it does."""
        # A truncated file has fewer packets than its header states.
        expected = max(self.packets, self.header_frames or 0)
        if self.refused:
            packets = f"{self.refused} packet{'s' if self.refused != 1 else ''}"
            return f"{packets} cannot be decoded: {self.frames} of {expected} frames are usable"
        if _less(self.frames, expected, _TOLERANCE.frames):
            return f"is truncated: {self.frames} of {expected} frames decode"
        if too_damaged(self.damaged, self.frames):
            return f"{self.damaged} of {self.frames} frames are damaged"
        stated = self.header_seconds
        if not self.header_frames and stated is not None and not self.header_of_file:
            if _less(self.seconds, stated, _TOLERANCE.seconds):
                return f"is truncated: {self.seconds:.2f} of {stated:.2f} s decode"
        return None

    @property
    def wrong_header(self) -> str | None:
        """Return how the header differs from the frames of a complete file; None if they agree."""
        counted, stated, seconds = self.header_frames, self.header_seconds, self.seconds
        if counted and _less(counted, self.frames, _TOLERANCE.frames):
            return f"the header states {counted} frames, but {self.frames} decode"
        tolerance = _TOLERANCE.seconds
        if stated and (_less(stated, seconds, tolerance) or _less(seconds, stated, tolerance)):
            whose = f"{stated:.2f} s for {'the file' if self.header_of_file else 'the video'}"
            return f"the header states {whose}, but its frames last {seconds:.2f} s"
        return None


def _less(value: float, other: float, tolerance: float) -> bool:
    """Return whether a value is below another by more than the tolerance and a tenth."""
    return other - value > max(tolerance, _TOLERANCE.share * other)


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """Facts about a file, whether or not it could be decoded.

    Attributes:
        outcome: ``decoded`` (at least some frames), ``unreadable``, ``timeout``, ``missing`` or
            ``crash``. Other failures of the process count as crashes.
        error: Reason of the failure; None if the file was decoded.
        video: Facts about the video; None unless it was decoded.
        max_pixels: Largest number of pixels that a frame could have to be decoded.
    """

    outcome: str
    error: str | None = None
    video: VideoFacts | None = None
    max_pixels: int = 0


def examine_file(path: str, seconds: float, max_pixels: int = MAX_PIXELS) -> FileFacts:
    """Decode a file from its first to its last frame, without keeping the frames.

    Args:
        path: Path of the file.
        seconds: Time limit in seconds.
        max_pixels: Largest number of pixels (height x width) that a frame may have.
    """
    av.logging.set_libav_level(av.logging.FATAL)
    deadline = time.monotonic() + seconds
    try:
        check_regular_file(path)
        limits = DecodeLimits(max_pixels)
        with AvReader(path, deadline=deadline, limits=limits) as reader:
            video = _decode_all(path, deadline, limits, reader)
            # Frames between a damaged packet and the next key frame decode, but show garbage. If
            # the file is damaged, count only the frames that the reader returns.
            if video.frames != video.packets or video.refused:
                try:
                    reader.read(np.array([len(reader.timestamps) - 1]))
                except FrameCountError as error:
                    end = reader.duration - float(reader.timestamps[-1])
                    video = replace(
                        video,
                        frames=len(error.timestamps),
                        seconds=float(error.timestamps[-1]) + end,
                    )
    except VideoTimeoutError:
        why = f"not done after {seconds:g} s"
        return FileFacts(outcome="timeout", error=why, max_pixels=max_pixels)
    except VideoDecodeError as error:
        return FileFacts(outcome="unreadable", error=error.reason, max_pixels=max_pixels)
    return FileFacts(outcome="decoded", video=video, max_pixels=max_pixels)


def _decode_all(path: str, deadline: float, limits: DecodeLimits, reader: AvReader) -> VideoFacts:
    frames = refused = damaged = samples = hidden = skipped = 0
    end = None  # end of the last packet, in ticks of the container
    with open_container(path, decoder_options=decoder_options(limits)) as container:
        stream = best_video_stream(path, container)
        codec = stream.codec_context
        name, height, width = codec.name, codec.height, codec.width
        stated, of_file = _stated_seconds(container, stream)
        container_name, counted = container.format.name, stream.frames
        codec.options = decoder_options(limits)
        codec.thread_count = 1  # there is one process per core
        for packet in demux_packets(container, stream):
            check_deadline(path, deadline)
            if packet is None:
                continue
            if packet.dts is not None:
                samples, end = samples + 1, max(end or 0, packet.dts + 1)
                hidden += packet.is_discard or not packet.size
                if not packet.size:  # decoding an empty packet would end the stream
                    continue
            try:
                decoded = packet.decode()
            except (av.FFmpegError, OSError):
                refused += 1
                continue
            if not decoded and 0 < packet.size <= _NOT_CODED and name == "mpeg4":
                skipped += 1
            for frame in decoded:
                limits.check_frame(path, frame.height, frame.width)
            frames += len(decoded)
            damaged += sum(frame.is_corrupt for frame in decoded)
        if container.format.name == "avi":
            hidden = (end or 0) - samples  # every frame has a tick, even if dropped or empty
        hidden = _hidden_samples(container, stream, hidden, samples) + skipped
    if frames == 0:
        raise VideoDecodeError(path, "no frame can be decoded")
    return VideoFacts(
        frames=frames,
        seconds=reader.duration,
        packets=len(reader.timestamps) - skipped,
        refused=refused,
        damaged=damaged,
        hidden=hidden,
        restarts=reader.restarts,
        container=container_name,
        codec=name,
        height=height,
        width=width,
        header_frames=max(0, counted - hidden) or None if counted else None,
        # If the clock restarts, FFmpeg computes a wrong duration from the first and the last
        # timestamp.
        header_seconds=None if reader.restarts else stated,
        header_of_file=of_file,
    )


def _hidden_samples(container: Any, stream: Any, found: int, samples: int) -> int:
    """Return the number of samples that the header counts although they have no frame.

    Args:
        container: Container that was demuxed to its end.
        stream: Video stream of the container.
        found: Number of hidden and empty packets. For an AVI file, number of ticks without a
            packet.
        samples: Number of all packets.
    """
    # FFmpeg's index (PyAV 18) lists the samples that the packets must contain.
    entries = list(getattr(stream, "index_entries", ()))
    stored = [entry for entry in entries if entry.size]
    if container.format.name == "avi":
        found -= max(0, len(stored) - samples)  # these are damaged, not dropped
    elif stored and container.format.name.startswith("mov,"):
        # If the index is not damaged, it ends where the edit list and the stated duration end.
        ends = entries[-1].timestamp >= (1 - _TOLERANCE.share) * (stream.duration or np.inf)
        if found or ends or len(stored) < len(entries):
            shown = sum(not entry.is_discard for entry in stored)
            found = max(found, stream.frames - shown)
    return max(0, found)


#: A DURATION tag of Matroska, such as 00:00:10.333.
_CLOCK = re.compile(r"(\d+):(\d+):(\d+(?:\.\d*)?)")


def _stated_seconds(container: Any, stream: Any) -> tuple[float | None, bool]:
    """Return the stated duration in seconds, and whether it belongs to the whole file."""
    clock = _CLOCK.fullmatch(stream.metadata.get("DURATION", ""))
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base), False
    if clock is not None:
        return 3600 * float(clock[1]) + 60 * float(clock[2]) + float(clock[3]), False
    if container.duration:
        return container.duration / 1e6, len(container.streams) > 1
    return None, False
