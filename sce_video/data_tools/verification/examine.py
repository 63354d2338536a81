"""Decode one file completely and describe what was found, in plain values."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import av
import av.logging
import numpy as np

from sce_video.datasets.decode_limits import MAX_PIXELS, DecodeLimits
from sce_video.datasets.errors import FrameCountError, VideoDecodeError, VideoTimeoutError
from sce_video.datasets.readers import AvReader, VideoReader
from sce_video.datasets.readers.av_file import decoder_options
from sce_video.datasets.readers.base import check_deadline, check_regular_file
from sce_video.datasets.readers.containers import open_video


def examine_file(request: tuple[str, float], max_pixels: int = MAX_PIXELS) -> dict[str, Any]:
    """Decode a file from its first to its last frame, without keeping the frames.

    Args:
        request: Path, and the seconds it may take.
        max_pixels: Height x width of the largest frames that are decoded.

    Returns:
        Facts that JSON can hold. ``outcome``: ``decoded`` (at least some frames), ``unreadable``
        or ``timeout``; ``error``: the reason, or None. With ``decoded`` also:

        - ``frames``: usable frames, excluding those between a damaged packet and the next key
          frame (as :class:`AvReader` does); ``seconds``: their duration.
        - ``packets``: frames the file should have; ``refused``: packets the decoder rejects;
          ``damaged``: frames in which the decoder concealed errors.
        - ``header_frames``, ``header_seconds``: what the container states, or None;
          ``header_of_file``: whether these seconds are the duration of the container, which
          includes audio, and not that of the video stream.
        - ``container``, ``codec``, ``height``, ``width``.
    """
    path, seconds = request
    av.logging.set_libav_level(av.logging.FATAL)
    deadline = time.monotonic() + seconds
    try:
        check_regular_file(path)
        limits = DecodeLimits(max_pixels)
        with AvReader(path, deadline=deadline, limits=limits) as reader:
            facts = _decode_all(path, deadline, limits)
            facts["packets"] = len(reader.timestamps)
            facts["seconds"] = reader.duration
            if facts["frames"] != facts["packets"] or facts["refused"]:
                facts.update(_usable(reader))
    except VideoTimeoutError:
        return {"outcome": "timeout", "error": f"not done after {seconds:g} s"}
    except VideoDecodeError as error:
        return {"outcome": "unreadable", "error": error.reason}
    return {"outcome": "decoded", "error": None, **facts}


def _decode_all(path: str, deadline: float, limits: DecodeLimits) -> dict[str, Any]:
    frames = refused = damaged = 0
    with open_video(path, decoder_options=decoder_options(limits)) as container:
        stream = container.streams.best("video")
        facts = _header(container, stream)
        stream.codec_context.options = decoder_options(limits)
        stream.codec_context.thread_count = 1  # there is one process per core
        for packet in _packets(container, stream):
            check_deadline(path, deadline)
            try:
                decoded = packet.decode()
            except (av.FFmpegError, OSError):
                refused += 1
                continue
            for frame in decoded:
                limits.check_frame(path, frame.height, frame.width)
            frames += len(decoded)
            damaged += sum(frame.is_corrupt for frame in decoded)
    if frames == 0:
        raise VideoDecodeError(path, "no frame can be decoded")
    return {**facts, "frames": frames, "refused": refused, "damaged": damaged}


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    packets = container.demux(stream)
    try:
        yield from packets
    except (av.FFmpegError, OSError, IndexError):
        return  # truncated: the frame counts show it
    finally:
        packets.close()  # see AvFile.packets


def _header(container: Any, stream: Any) -> dict[str, Any]:
    """What the container states about its video stream."""
    seconds: float | None = None
    of_file = False
    if stream.duration and stream.time_base:
        seconds = float(stream.duration * stream.time_base)
    elif (tagged := _parse_clock(stream.metadata.get("DURATION", ""))) is not None:
        seconds = tagged
    elif container.duration:
        seconds, of_file = container.duration / 1e6, len(container.streams) > 1
    return {
        "container": container.format.name,
        "codec": stream.codec_context.name,
        "height": stream.codec_context.height,
        "width": stream.codec_context.width,
        "header_frames": stream.frames or None,
        "header_seconds": seconds,
        "header_of_file": of_file,
    }


def _parse_clock(text: str) -> float | None:
    """Seconds of ``00:00:10.333``, the form of Matroska's DURATION tags; None for other text."""
    parts = text.split(":")
    try:
        hours, minutes, seconds = (float(part) for part in parts)
    except ValueError:
        return None
    return 3600 * hours + 60 * minutes + seconds


def _usable(reader: VideoReader) -> dict[str, Any]:
    """Frames and seconds that :class:`AvReader` returns of a file that is not intact."""
    last = len(reader.timestamps) - 1
    try:
        reader.read(np.array([last]))
    except FrameCountError as error:
        left = reader.duration - float(reader.timestamps[-1])
        return {
            "frames": len(error.timestamps),
            "seconds": float(error.timestamps[-1]) + left,
        }
    return {}
