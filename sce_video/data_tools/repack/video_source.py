"""A source video as the frames that its output shows: upright, scaled, 8 bit yuv420p."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import Any

import av
import numpy as np
from av.stream import Discard
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter

from sce_video.data_tools.examination import demux_packets
from sce_video.data_tools.repack.plan import Settings
from sce_video.datasets.readers import AvReader
from sce_video.datasets.readers.av_file import (
    best_video_stream,
    continuous_table,
    decode_packets,
    decoder_options,
    on_table,
    open_container,
)
from sce_video.datasets.readers.av_reader import orientation_of, upright
from sce_video.datasets.readers.base import DecodeLimits, VideoDecodeError, check_damage

#: Seconds that may be missing at the end of a part, because annotated times are rounded.
_SLACK = 0.5
_USUAL_RATE = Fraction(30)

Span = tuple[float, float]


@dataclass
class StreamFacts:
    """Facts that the decoding of a stream has found so far.

    Attributes:
        tick: Seconds of one unit of the container's time base.
        origin: Start of the first frame, ticks.
        rates: Stated frames per second, the most reliable first.
        pixel_aspect: Width of a pixel relative to its height; None or 0 if it is not stated.
        video_bytes: Bytes of the packets that were read; complete at the end.
    """

    tick: Fraction = Fraction(1, 1000)
    origin: int = 0
    rates: list[Fraction] = field(default_factory=list)
    pixel_aspect: Fraction | None = None
    video_bytes: int = 0


def decode_part(
    path: str, limits: DecodeLimits, span: Span | None, facts: StreamFacts | None = None
) -> Iterator[av.VideoFrame]:
    """Yield the frames that begin in a part of a video, or the frame before a shorter part.

    ::

        frames   |--0--|--1--|--2--|--3--|--4--|      each shown until the next begins
        span               [start     end)            gives 2 and 3

    Times are compared with a tolerance of half a tick of the container's clock, because annotated
    times are decimals and timestamps are whole ticks.

    Args:
        path: Path of the file.
        limits: Limits on the size of decoded frames.
        span: (start, end) in seconds, counted from the first frame; None for the whole video.
        facts: Facts that :func:`decode_frames` fills in.

    Raises:
        VideoDecodeError: If :func:`decode_frames` raises it, a frame has no timestamp, or the video
            does not reach from start to end.
    """
    facts = facts or StreamFacts()
    if span is None:
        yield from decode_frames(path, limits, facts)
        return
    for start in (span[0], None):  # if seeking misses a key frame before it, start at the beginning
        frames = decode_frames(path, limits, facts, start)
        first = next(frames, None)
        if start is None or (first is not None and _seconds(path, first, facts) <= start):
            begun = () if first is None else (first,)
            yield from _within(path, chain(begun, frames), span, facts)
            return
        frames.close()


def decode_frames(
    path: str, limits: DecodeLimits, facts: StreamFacts, start: float | None = None
) -> Generator[av.VideoFrame, None, None]:
    """Yield all frames of a video in the order they are shown, as :class:`AvReader` does.

    Frames between a packet that the decoder refuses and the next key frame are skipped.

    Args:
        path: Path of the file.
        limits: Limits on the size of frames.
        facts: Facts that are filled in before the first frame. ``video_bytes`` grows until the last
            one.
        start: Seconds from the first frame. Decoding begins at the container's key frame for this
            time. None begins at the first frame.

    Raises:
        VideoDecodeError: If the file cannot be opened, or a frame is too large.
    """
    table = continuous_table(path, limits)
    with open_container(path, decoder_options=decoder_options(limits)) as container:
        stream = best_video_stream(path, container)
        for other in container.streams:
            if other.index != stream.index:
                other.discard = Discard.all
        codec = stream.codec_context
        codec.options = decoder_options(limits)
        codec.thread_count = 1
        rates = (stream.guessed_rate, stream.average_rate)
        facts.rates = [Fraction(rate).limit_denominator(10**6) for rate in rates if rate]
        facts.tick = Fraction(stream.time_base or Fraction(1, 1000))
        first = stream.start_time or 0
        facts.origin = first if table is None else int(table.pts[table.display_order[0]])
        facts.pixel_aspect = stream.sample_aspect_ratio
        facts.video_bytes = 0
        if start is not None and table is None:  # if the clock restarts, a time is ambiguous
            with suppress(av.FFmpegError):  # raw streams and files without an index
                ticks = math.floor(start / facts.tick)
                container.seek(facts.origin + ticks, stream=stream, backward=True)

        def packets() -> Iterator[Any]:
            for packet in on_table(demux_packets(container, stream), table):
                if packet.size:  # hidden ones, too: others refer to them, and FFmpeg drops them
                    facts.video_bytes += packet.size
                    yield packet

        for frames in decode_packets(packets(), lambda _: codec):
            for frame in frames:
                limits.check_frame(path, frame.height, frame.width)
                yield frame


def _seconds(path: str, frame: av.VideoFrame, facts: StreamFacts) -> float:
    if frame.pts is None:
        raise VideoDecodeError(path, "has frames without timestamps: repack the whole file first")
    return float((frame.pts - facts.origin) * facts.tick)


def _within(
    path: str, frames: Iterator[av.VideoFrame], span: Span, facts: StreamFacts
) -> Iterator[av.VideoFrame]:
    """Yield the frames of a part, from frames that begin before it; see :func:`decode_part`."""
    begin, end = (seconds - float(facts.tick) / 2 for seconds in span)
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
                f"ends {max(last, 0):.3f} s after its start, but the segment goes from "
                f"{span[0]:g} to {span[1]:g} s",
            )
    if not given:
        if before is None:
            raise VideoDecodeError(path, f"has no frame from {span[0]:g} to {span[1]:g} s")
        yield before


_COMMON = tuple(
    rate for whole in range(1, 241) for rate in (Fraction(whole), Fraction(whole * 1000, 1001))
)
#: Limit on output frames per source frame, for a long still after a burst at a high rate.
MOST_REPEATS = 8
_JITTER = 0.1  # frames by which timestamps at a constant rate may deviate


@dataclass(frozen=True)
class Schedule:
    """Constant rate and source frames of an output of N frames."""

    rate: Fraction  # frames per second
    shown: np.ndarray  # (N,) int64, ascending: source frame of output frame 0, 1,
    constant: bool  # whether the source has this rate, so that ``shown`` is 0, 1, ..., N - 1


def make_schedule(
    timestamps: np.ndarray, duration: float, stated: Sequence[Fraction], tick: float
) -> Schedule:
    """Choose a constant rate and the source frame for each output frame.

    A source of constant rate, up to the rounding of its timestamps and a tenth of a frame, keeps
    its rate and all its frames. Otherwise the rate is the median rate of its frames or, if that
    gives more than 8 times the source's frames, the highest rate that does not. Each output frame
    is the frame that the source shows at its time. Source frames closer together than the output's
    may not be shown at all. ::

        source   |--0--|--1--|--------2--------|--3--|      (0.1 s, 0.1 s, 0.3 s, 0.1 s)
        output   |--0--|--1--|--2--|--2--|--2--|--3--|      10 per second

    Args:
        timestamps: (F,) seconds of the source's frames, ascending from 0.
        duration: Seconds to the end of the last frame.
        stated: Rates that the container states, the most reliable first.
        tick: Seconds of one unit of the container's time base.
    """
    count = len(timestamps)
    rate = _constant_rate(timestamps, stated, tick)
    if rate is not None and abs(duration - float(count / rate)) <= float(1 / rate) + 1e-6:
        return Schedule(rate, np.arange(count), True)
    duration = max(duration, float(timestamps[-1]), 1e-3)
    nominal = rate or _usual_rate(timestamps, stated, tick) or Fraction(25)
    most = MOST_REPEATS * count / duration  # rounded down to a small denominator
    small = (
        Fraction(math.floor(most * 1000), 1000) if most >= 1 else Fraction(1, math.ceil(1 / most))
    )
    nominal = min(nominal, small)
    number = max(1, round(duration * nominal))
    times = np.arange(number) * nominal.denominator / nominal.numerator
    # The timestamps of the source are rounded to ticks, but the timestamps of the output are exact.
    slack = min(tick, float(_JITTER / nominal)) + 1e-9
    shown = np.searchsorted(timestamps, times + slack, side="right") - 1
    return Schedule(nominal, np.maximum(shown, 0), False)


def _constant_rate(
    timestamps: np.ndarray, stated: Sequence[Fraction], tick: float
) -> Fraction | None:
    """Return the rate whose grid all timestamps lie on; None without one."""
    count = len(timestamps)
    candidates = list(stated)
    if count > 1 and timestamps[-1] > 0:
        measured = (count - 1) / float(timestamps[-1])
        candidates += sorted(_COMMON, key=lambda rate: abs(float(rate) - measured))[:2]
        candidates.append(Fraction(measured).limit_denominator(1001))
    for rate in [rate for rate in candidates if rate > 0]:
        frame = rate.denominator / rate.numerator
        error = np.abs(timestamps - np.arange(count) * frame).max()
        # A tick may be as long as a frame (AVI). Then a gap of one frame is not caused by rounding.
        if error <= max(_JITTER * frame, min(tick, 0.4 * frame)) + 1e-9:
            return rate
    return None


def _usual_rate(timestamps: np.ndarray, stated: Sequence[Fraction], tick: float) -> Fraction | None:
    """Return the median rate of the frames, snapped to a stated or common rate within rounding."""
    gaps = np.diff(timestamps)
    gaps = gaps[gaps > 0]
    if not gaps.size:
        return next((rate for rate in stated if rate > 0), None)
    gap = float(np.median(gaps))
    nearest = min(_COMMON, key=lambda rate: abs(float(1 / rate) - gap))
    for rate in [*(rate for rate in stated if rate > 0), nearest]:
        if abs(float(1 / rate) - gap) <= min(tick, _JITTER * gap) + 1e-9:
            return rate
    return Fraction(1 / gap).limit_denominator(1001)


#: A video up to this size is decoded once and kept in memory, such as 2,000 frames of 340 x 256 (67
#: seconds).
HELD_BYTES = 256 * 2**20
#: Maximum bytes kept of a longer video, to compare with when it is decoded a second time.
SAMPLE_BYTES = 32 * 2**20
#: Maximum number of frames kept of a longer video, whatever their size is.
_SAMPLE_FRAMES = 240
#: FFmpeg's number of the colour matrix of RGB, which has none (AVCOL_SPC_RGB).
_RGB = 0
#: FFmpeg's number of an unknown colour matrix (AVCOL_SPC_UNSPECIFIED).
_UNSPECIFIED = 2


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """Facts that decoding the source has found.

    Attributes:
        frames: Frames that decode.
        promised: Frames for which the container has packets.
        damaged: Frames in which the decoder concealed errors.
        seconds: Duration.
        video_bytes: Bytes of the packets of the video.
    """

    frames: int
    promised: int
    damaged: int
    seconds: float
    video_bytes: int


@dataclass
class VideoSource:
    """A source and the facts from decoding it once."""

    path: str  # the file
    schedule: Schedule  # rate of the output, and the source's frame for each of its frames
    facts: SourceFacts
    tags: dict[str, Any]  # encoder attributes that define the meaning of colours and pixels
    # Prepared frames by their number in the source, see :class:`Preparation`; all of them, or for a
    # long video a sample.
    held: dict[int, np.ndarray]
    preparation: Preparation  # makes them of decoded frames
    limits: DecodeLimits  # how large decoded frames may be
    # (start, end) in seconds of the part that is shown; None for the whole file.
    span: tuple[float, float] | None = None

    def prepared_frames(self) -> Iterator[np.ndarray]:
        """Yield the frames of the output in order, (3 H / 2, W) uint8 each: Y, then U, then V.

        Raises:
            VideoDecodeError: If the file has changed meanwhile.
        """
        shown = self.schedule.shown
        if len(self.held) == self.facts.frames:
            yield from (self.held[int(number)] for number in shown)
            return
        counts = deque(np.bincount(shown).tolist())  # how often each frame is shown
        for frame in decode_part(self.path, self.limits, self.span):
            if not counts:
                return
            count = counts.popleft()
            if count:
                yield from [self.preparation(frame)] * count
        if counts:
            raise VideoDecodeError(self.path, "changed while it was being read")


def read_source(
    path: str,
    settings: Settings,
    limits: DecodeLimits | None = None,
    span: tuple[float, float] | None = None,
) -> VideoSource:
    """Decode a video, or the part of it from ``span[0]`` to ``span[1]`` seconds, once.

    ``settings`` contains the size and the run length of a sample.

    Raises:
        VideoDecodeError: If no frame can be decoded, frames are too large, too many of them are
            damaged, or the part does not exist.
    """
    limits = limits or DecodeLimits()
    table: np.ndarray | None = None
    end = 0.0
    if span is None:  # each segment of an hour-long file would read all its packets
        with AvReader(path, limits=limits) as reader:
            table, end = reader.timestamps, reader.duration
    facts = StreamFacts()
    preparation: Preparation | None = None
    held: dict[int, np.ndarray] = {}
    pts: list[int | None] = []
    keep: Callable[[int], bool] = bool
    damaged = 0
    for number, frame in enumerate(decode_part(path, limits, span, facts)):
        if preparation is None:
            preparation = Preparation(frame, settings)
            tags = colour_tags(frame, facts.pixel_aspect, preparation.turns)
            seconds = span[1] - span[0] if span else end
            rate = next(iter(facts.rates), _USUAL_RATE)  # as the container states
            about = max(1, math.ceil(seconds * rate))
            count = about if table is None else len(table)
            keep = _choose(count, preparation.frame_bytes, settings.keyint)
        if keep(number):
            held[number] = preparation(frame)
        damaged += frame.is_corrupt
        pts.append(frame.pts)
    check_damage(path, damaged, len(pts))
    if preparation is None:
        raise VideoDecodeError(path, "no frame can be decoded")
    times, duration = _frame_times(pts, facts, table, end)
    # More frames may decode than the packets promise.
    held = {number: frame for number, frame in held.items() if number < len(times)}
    schedule = make_schedule(times, duration, facts.rates, float(facts.tick))
    found = SourceFacts(
        frames=len(times),
        promised=len(times) if table is None else len(table),
        damaged=damaged,
        seconds=round(duration, 6),
        video_bytes=facts.video_bytes,
    )
    return VideoSource(path, schedule, found, tags, held, preparation, limits, span)


def _frame_times(
    pts: list[int | None], facts: StreamFacts, table: np.ndarray | None, end: float
) -> tuple[np.ndarray, float]:
    """Return (F,) seconds of the frames that decode, and the end of the last one.

    ``table`` contains (P,) seconds of all frames that the packets promise, and the last of them
    ends at ``end``. A part has no table. Its last frame gets the median duration of the others.
    """
    if table is not None and len(pts) >= len(table):
        return table, end
    known = np.array([value for value in pts if value is not None], dtype=np.int64)
    times = (known - known[:1]) * facts.tick.numerator / facts.tick.denominator
    if table is not None:
        if len(known) < len(pts) or not all(np.diff(known) > 0):
            times = table[: len(pts)]
        return times, float(times[-1]) + (end - float(table[-1]))
    gaps = np.diff(times)
    usual = next(iter(facts.rates), _USUAL_RATE)
    return times, float(times[-1]) + float(np.median(gaps) if len(gaps) else 1 / usual)


def _choose(count: int, frame_bytes: int, run: int) -> Callable[[int], bool]:
    """Return which of about ``count`` frames are kept: all, or evenly spread runs of ``run``.

    A run that exceeds the memory for a sample is shortened to fit.
    """
    if count * frame_bytes <= HELD_BYTES:
        limit = 2 * HELD_BYTES // frame_bytes  # should far more decode than promised
        return lambda number: number < limit
    run = min(run, max(1, SAMPLE_BYTES // frame_bytes))
    runs = max(1, min(SAMPLE_BYTES // frame_bytes, _SAMPLE_FRAMES) // run)
    every = max(run, count // runs)
    return lambda number: number % every < run and number // every < runs


def colour_tags(frame: av.VideoFrame, pixel_aspect: Any, turns: int) -> dict[str, Any]:
    """Return encoder settings for the meaning of the source's colours and its pixel shape.

    Values always have limited range. Pixels that are not square stay as they are and are tagged,
    because every reader returns the stored pixels, both for the source and for the output.
    """
    matrix, pixels = int(frame.colorspace), frame.format
    is_rgb = pixels.is_rgb or pixels.name.startswith(("pal", "gray", "mono"))
    tags: dict[str, Any] = {
        "colorspace": _UNSPECIFIED if matrix == _RGB or is_rgb else matrix,
        "color_primaries": int(frame.color_primaries),
        "color_trc": int(frame.color_trc),
        "color_range": int(ColorRange.MPEG),
    }
    if pixel_aspect and pixel_aspect > 0:
        tags["sample_aspect_ratio"] = 1 / pixel_aspect if turns % 2 else pixel_aspect
    return tags


class Preparation:
    """Conversion of decoded frames to the encoder's input.

    A frame is rotated as the file says, scaled (bicubic, which averages when it makes a frame
    smaller) and converted to 8-bit yuv420p of limited range. Transparency is dropped. All frames
    get the size of the ``first`` one.

    Attributes:
        turns: Quarter turns counter-clockwise, plus 4 if the frame is mirrored before it is turned.
        size: (H, W) of the output.
        scaled: Whether the size differs from the source's by more than an odd row or column.
        frame_bytes: Size of a prepared frame, bytes.
    """

    def __init__(self, first: av.VideoFrame, settings: Settings) -> None:
        self.turns = orientation_of(first)
        shown = (first.height, first.width) if self.turns % 2 == 0 else (first.width, first.height)
        self.size = settings.target_size(*shown)
        # Cropped by a row or column, not scaled, if nothing else is missing.
        cropped = all(0 <= a - b <= 1 for a, b in zip(shown, self.size, strict=True))
        self.scaled = not cropped
        self._scaled_size = shown if cropped else self.size
        self.frame_bytes = self.size[0] * self.size[1] * 3 // 2
        self._reformatter = VideoReformatter()

    def __call__(self, frame: av.VideoFrame) -> np.ndarray:
        """Convert a frame to (3 H / 2, W) uint8, contiguous, with the planes Y, U and V."""
        turns = orientation_of(frame)
        height, width = self._scaled_size[:: -1 if turns % 2 else 1]
        full_range = frame.format.name.startswith("yuvj") or frame.color_range == ColorRange.JPEG
        yuv = self._reformatter.reformat(
            frame,
            width=width,
            height=height,
            format="yuv420p",
            interpolation=Interpolation.BICUBIC,
            src_color_range=ColorRange.JPEG if full_range else None,
            dst_color_range=ColorRange.MPEG if full_range else None,
            threads=1,
        )
        height, width = self.size
        parts = []
        for number, plane in enumerate(yuv.planes):
            half = 1 if number == 0 else 2
            rows = np.frombuffer(memoryview(plane), dtype=np.uint8).reshape(-1, plane.line_size)
            shown = upright(rows[: plane.height, : plane.width], turns)
            parts.append(shown[: height // half, : width // half].ravel())
        return np.concatenate(parts).reshape(height * 3 // 2, width)
