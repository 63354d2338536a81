"""All frames of a video in order, or those of a part of it."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import chain
from typing import Any

import av
import numpy as np
from av.stream import Discard

from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.av_file import decode_packets, decoder_options
from sce_video.datasets.readers.containers import open_video

#: Seconds that may be missing at the end of a part: annotated times are rounded.
_SLACK = 0.5
_USUAL_RATE = Fraction(30)

Span = tuple[float, float]


def decode_part(
    path: str, limits: DecodeLimits, span: Span | None, facts: dict[str, Any] | None = None
) -> Iterator[av.VideoFrame]:
    """The frames that begin in a part of a video; of a part between two frames the one before it.

    ::

        frames   |--0--|--1--|--2--|--3--|--4--|      each shown until the next begins
        span               [start     end)            gives 2 and 3

    Times are compared with half a tick of the container's clock to spare: annotated times are
    decimals, time stamps are whole ticks.

    Args:
        path: The file.
        limits: How large decoded frames may be.
        span: (start, end) in seconds, counted from the first frame; None for the whole video.
        facts: As of :func:`decode_frames`.

    Raises:
        VideoDecodeError: As :func:`decode_frames`; or a frame has no time stamp, or the video does
            not reach from start to end.
    """
    facts = {} if facts is None else facts
    if span is None:
        yield from decode_frames(path, limits, facts)
        return
    for start in (span[0], None):  # where seeking misses a key frame before it: from the beginning
        frames = decode_frames(path, limits, facts, start)
        first = next(frames, None)
        if start is None or (first is not None and _seconds(path, first, facts) <= start):
            begun = () if first is None else (first,)
            yield from _within(path, chain(begun, frames), span, facts)
            return
        frames.close()


def decode_frames(
    path: str, limits: DecodeLimits, facts: dict[str, Any], start: float | None = None
) -> Generator[av.VideoFrame, None, None]:
    """All frames of a video in the order they are shown, as :class:`AvReader` gives them.

    Between a packet that the decoder refuses and the next key frame there are none.

    Args:
        path: The file.
        limits: How large frames may be.
        facts: Gets ``tick`` (seconds), ``origin`` (ticks, of the first frame), ``rates``,
            ``pixel_aspect`` and, at the end, ``video_bytes`` of the packets that were read.
        start: Seconds from the first frame: begins at a key frame that the container has for it.

    Raises:
        VideoDecodeError: The file cannot be opened, or a frame is too large.
    """
    with open_video(path, decoder_options=decoder_options(limits)) as container:
        stream: Any = container.streams.best("video")
        if stream is None or stream.codec_context is None:
            raise VideoDecodeError(path, "has no video stream that can be decoded")
        for other in container.streams:
            if other.index != stream.index:
                other.discard = Discard.all
        codec = stream.codec_context
        codec.options = decoder_options(limits)
        codec.thread_count = 1
        rates = (stream.guessed_rate, stream.average_rate)
        facts["rates"] = [Fraction(rate).limit_denominator(10**6) for rate in rates if rate]
        facts["tick"] = Fraction(stream.time_base or Fraction(1, 1000))
        facts["origin"] = stream.start_time or 0
        facts["pixel_aspect"] = stream.sample_aspect_ratio
        facts["video_bytes"] = 0
        if start is not None:
            with suppress(av.FFmpegError):  # raw streams and files without an index
                ticks = math.floor(start / facts["tick"])
                container.seek(facts["origin"] + ticks, stream=stream, backward=True)
        for frames in decode_packets(_packets(container, stream, facts), lambda _: codec):
            for frame in frames:
                limits.check_frame(path, frame.height, frame.width)
                yield frame


def _packets(container: Any, stream: Any, facts: dict[str, Any]) -> Iterator[Any]:
    packets = container.demux(stream)
    try:
        for packet in packets:
            if packet.size and not packet.is_discard:
                facts["video_bytes"] += packet.size
                yield packet
    except (av.FFmpegError, OSError):
        return  # a file cut short: what was read so far counts
    finally:
        packets.close()  # see AvFile.packets


def _seconds(path: str, frame: av.VideoFrame, facts: dict[str, Any]) -> float:
    if frame.pts is None:
        raise VideoDecodeError(path, "has frames without time stamps: repack the whole file first")
    return float((frame.pts - facts["origin"]) * facts["tick"])


def _within(
    path: str, frames: Iterator[av.VideoFrame], span: Span, facts: dict[str, Any]
) -> Iterator[av.VideoFrame]:
    """The frames of a part, from frames that begin before it; see :func:`decode_part`."""
    begin, end = (seconds - float(facts["tick"]) / 2 for seconds in span)
    before: av.VideoFrame | None = None
    last, gap, given = -math.inf, 0.0, False
    for frame in frames:
        seconds = _seconds(path, frame, facts)
        last, gap = seconds, seconds - last
        if seconds >= end:
            break
        if seconds < begin:
            before = frame
        else:
            given = True
            yield frame
    else:
        last += 0.0 if math.isinf(gap) else gap
        if not last + _SLACK >= span[1]:
            raise VideoDecodeError(
                path,
                f"ends {max(last, 0):.3f} s after its start, the segment is {span[0]:g} to "
                f"{span[1]:g} s",
            )
    if not given:
        if before is None:
            raise VideoDecodeError(path, f"has no frame from {span[0]:g} to {span[1]:g} s")
        yield before


def expected_frames(span: Span, rates: Sequence[Fraction]) -> int:
    """About how many frames a part has, by the rate that the container states."""
    return max(1, math.ceil((span[1] - span[0]) * next(iter(rates), _USUAL_RATE)))


def times_of_part(
    pts: Sequence[int | None], tick: Fraction, rates: Sequence[Fraction]
) -> tuple[np.ndarray, float]:
    """(F,) seconds from the first frame of a part, and when the last one ends.

    The last frame is given the median duration of the others.

    Args:
        pts: Of the frames, ascending.
        tick: Seconds of one unit of them.
        rates: That the container states, for a part of one frame.
    """
    stamps = np.array(pts, dtype=np.int64)
    times = (stamps - stamps[0]) * tick.numerator / tick.denominator
    gaps = np.diff(times)
    last = float(np.median(gaps)) if len(gaps) else float(1 / next(iter(rates), _USUAL_RATE))
    return times, float(times[-1]) + last
