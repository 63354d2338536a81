"""A source video, and its frames as the output shows them: upright, scaled, 8-bit yuv420p."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter

from sce_video.data_tools.repack.plan import Settings
from sce_video.datasets.clip_sampling import frames_between
from sce_video.datasets.readers import AvReader
from sce_video.datasets.readers.av_reader import orientation_of, upright
from sce_video.datasets.readers.base import DecodeLimits, VideoDecodeError, check_damage

#: Seconds that may be missing at the end of a segment, because annotated times are rounded.
_SLACK = 0.5
_USUAL_RATE = Fraction(30)

Span = tuple[float, float]


def frames_of_span(reader: AvReader, span: Span | None) -> np.ndarray:
    """Return the numbers (n,) of the frames that begin in a segment, ascending.

    A segment between two frames shows the frame before it::

        frames   |--0--|--1--|--2--|--3--|--4--|      each shown until the next begins
        span               [start     end)            contains 2 and 3

    Times are compared with a tolerance of half a tick of the container's clock, because annotated
    times are decimals and timestamps are whole ticks.

    Args:
        reader: Reader of the video.
        span: Start and end in seconds from the first frame; None for the whole video.

    Raises:
        VideoDecodeError: If the video ends before the segment does.
    """
    if span is None:
        return np.arange(len(reader.timestamps))
    if reader.duration + _SLACK < span[1]:
        raise VideoDecodeError(
            reader.path,
            f"ends {reader.duration:.3f} s after its start, but the segment goes from "
            f"{span[0]:g} to {span[1]:g} s",
        )
    start, end = (seconds - float(reader.tick) / 2 for seconds in span)
    return np.arange(*frames_between(reader.timestamps, start, end))


_COMMON = tuple(
    rate for whole in range(1, 241) for rate in (Fraction(whole), Fraction(whole * 1000, 1001))
)
#: Largest number of output frames per source frame. It matters if a video has a burst of frames at
#: a high rate and then a long still.
MOST_REPEATS = 8
_JITTER = 0.1  # deviation of timestamps that still counts as a constant rate, in frames


@dataclass(frozen=True)
class Schedule:
    """Constant rate of an output, and the source frame for each of its N frames."""

    rate: Fraction  # frames per second
    shown: np.ndarray  # (N,) int64, ascending: source frame of each output frame
    constant: bool  # whether the source has this rate, so that ``shown`` is 0, 1, ..., N - 1


def make_schedule(
    timestamps: np.ndarray, duration: float, stated: Sequence[Fraction], tick: float
) -> Schedule:
    """Choose a constant rate and the source frame for each output frame.

    A source with a constant rate keeps its rate and all its frames. Its timestamps may be rounded
    and deviate by a tenth of a frame. Otherwise the rate is the median rate of the frames, but at
    most so high that the output has 8 times as many frames. Each output frame is the source frame
    that is displayed at this time. If source frames are closer together than output frames, some
    are left out::

        source   |--0--|--1--|--------2--------|--3--|      (0.1 s, 0.1 s, 0.3 s, 0.1 s)
        output   |--0--|--1--|--2--|--2--|--2--|--3--|      10 per second

    Args:
        timestamps: (F,) seconds of the source's frames, ascending from 0.
        duration: End of the last frame in seconds.
        stated: Rates that the container states, the most reliable first.
        tick: Seconds of one unit of the container's time base.
    """
    count = len(timestamps)
    rate = _constant_rate(timestamps, stated, tick)
    if rate is not None and abs(duration - float(count / rate)) <= float(1 / rate) + 1e-6:
        return Schedule(rate, np.arange(count), True)
    duration = max(duration, float(timestamps[-1]), 1e-3)
    nominal = rate or _usual_rate(timestamps, stated, tick) or Fraction(25)
    most = MOST_REPEATS * count / duration  # below, this is rounded down to a small denominator
    small = (
        Fraction(math.floor(most * 1000), 1000) if most >= 1 else Fraction(1, math.ceil(1 / most))
    )
    nominal = min(nominal, small)
    number = max(1, round(duration * nominal))
    times = np.arange(number) * nominal.denominator / nominal.numerator
    # The source's timestamps are rounded to ticks, but the output's timestamps are exact.
    slack = min(tick, float(_JITTER / nominal)) + 1e-9
    shown = np.searchsorted(timestamps, times + slack, side="right") - 1
    return Schedule(nominal, np.maximum(shown, 0), False)


def _constant_rate(
    timestamps: np.ndarray, stated: Sequence[Fraction], tick: float
) -> Fraction | None:
    """Return the constant rate of the timestamps; None if the rate varies."""
    count = len(timestamps)
    candidates = list(stated)
    if count > 1 and timestamps[-1] > 0:
        measured = (count - 1) / float(timestamps[-1])
        candidates += sorted(_COMMON, key=lambda rate: abs(float(rate) - measured))[:2]
        candidates.append(Fraction(measured).limit_denominator(1001))
    for rate in [rate for rate in candidates if rate > 0]:
        frame = rate.denominator / rate.numerator
        error = np.abs(timestamps - np.arange(count) * frame).max()
        # In AVI, a tick may last as long as a frame, but a gap of a frame is not a rounding error.
        if error <= max(_JITTER * frame, min(tick, 0.4 * frame)) + 1e-9:
            return rate
    return None


def _usual_rate(timestamps: np.ndarray, stated: Sequence[Fraction], tick: float) -> Fraction | None:
    """Return the median rate, or a stated or common rate that equals it up to rounding."""
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


#: Frames of a video up to this size in bytes are kept in memory, for example 2,000 frames of
#: 340 x 256 (67 s).
HELD_BYTES = 256 * 2**20
#: Maximum size in bytes of the frames of a longer video that are kept, so that they can be compared
#: with the output.
SAMPLE_BYTES = 32 * 2**20
#: Maximum number of frames that are kept for this comparison.
_SAMPLE_FRAMES = 240
#: FFmpeg's colour matrix for RGB (AVCOL_SPC_RGB).
_RGB = 0
#: FFmpeg's value for an unknown colour matrix (AVCOL_SPC_UNSPECIFIED).
_UNSPECIFIED = 2


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """Facts about a source that were found by decoding it.

    Attributes:
        frames: Number of frames that decode.
        promised: Number of frames for which the container has packets.
        damaged: Number of frames in which the decoder concealed errors.
        seconds: Duration.
        video_bytes: Size in bytes of the packets that were decoded.
    """

    frames: int
    promised: int
    damaged: int
    seconds: float
    video_bytes: int


@dataclass
class VideoSource:
    """A source after it was decoded once.

    Attributes:
        path: Path of the file.
        schedule: Rate of the output, and the source frame for each output frame.
        facts: Facts about the source.
        tags: Attributes of the encoder that define the meaning of colours and pixels.
        held: Prepared frames by their number in the source. Of a long video, only a sample is held.
        preparation: Conversion of decoded frames to prepared frames.
        limits: Limits on the size of decoded frames.
        span: Start and end of the segment in seconds; None for the whole file.
    """

    path: str
    schedule: Schedule
    facts: SourceFacts
    tags: dict[str, Any]
    held: dict[int, np.ndarray]
    preparation: Preparation
    limits: DecodeLimits
    span: Span | None = None

    def prepared_frames(self) -> Iterator[np.ndarray]:
        """Yield the output frames in order, (3 H / 2, W) uint8 each, with the planes Y, U and V.

        Raises:
            VideoDecodeError: If the file has changed since it was read.
        """
        shown = self.schedule.shown
        if len(self.held) == self.facts.frames:
            yield from (self.held[int(number)] for number in shown)
            return
        counts = deque(np.bincount(shown).tolist())  # how often each frame is shown
        with AvReader(self.path, limits=self.limits) as reader:
            for _, frame in reader.frames(frames_of_span(reader, self.span)):
                if not counts:
                    return
                count = counts.popleft()
                if count:
                    yield from [self.preparation(frame)] * count
        if counts:
            raise VideoDecodeError(self.path, "changed while it was being read")


def read_source(
    path: str, settings: Settings, limits: DecodeLimits | None = None, span: Span | None = None
) -> VideoSource:
    """Decode a video, or a segment of it, once.

    Args:
        path: Path of the file.
        settings: Settings that contain the size of the output and the run length of a sample.
        limits: Limits on the size of decoded frames. None uses the defaults.
        span: Start and end of the segment in seconds; None for the whole video.

    Raises:
        VideoDecodeError: If no frame can be decoded, frames are too large, too many of them are
            damaged, or the video ends before the segment.
    """
    limits = limits or DecodeLimits()
    preparation: Preparation | None = None
    held: dict[int, np.ndarray] = {}
    numbers: list[int] = []
    keep: Callable[[int], bool] = bool
    damaged = 0
    with AvReader(path, limits=limits) as reader:
        wanted, times, end = frames_of_span(reader, span), reader.timestamps, reader.duration
        stream = reader.file.stream
        for position, (number, frame) in enumerate(reader.frames(wanted)):
            if preparation is None:
                preparation = Preparation(frame, settings)
                # Some files state the aspect ratio of pixels only in their frames.
                aspect = stream.sample_aspect_ratio or reader.file.codec.sample_aspect_ratio
                tags = colour_tags(frame, aspect, preparation.turns)
                keep = _choose(len(wanted), preparation.frame_bytes, settings.keyint)
            if keep(position):
                held[position] = preparation(frame)
            damaged += frame.is_corrupt
            numbers.append(number)
        rates = [  # the most reliable first
            Fraction(rate).limit_denominator(10**6)
            for rate in (stream.guessed_rate, stream.average_rate)
            if rate
        ]
        tick, video_bytes = float(reader.tick), reader.decoded_bytes
    check_damage(path, damaged, len(numbers))
    if preparation is None:
        raise VideoDecodeError(path, "no frame can be decoded")
    shown = times[numbers] - times[numbers[0]]
    last = end - float(times[-1])
    if span is not None:  # the last frame may be shown for much longer than the segment
        last = float(np.median(np.diff(shown)) if len(shown) > 1 else 1 / [*rates, _USUAL_RATE][0])
    duration = float(shown[-1]) + last
    found = SourceFacts(
        frames=len(numbers),
        promised=len(wanted),
        damaged=damaged,
        seconds=round(duration, 6),
        video_bytes=video_bytes,
    )
    schedule = make_schedule(shown, duration, rates, tick)
    return VideoSource(path, schedule, found, tags, held, preparation, limits, span)


def _choose(count: int, frame_bytes: int, run: int) -> Callable[[int], bool]:
    """Return a function that decides which of ``count`` frames are kept.

    These are all frames or, if memory is too small, evenly spread runs of ``run`` frames.
    """
    if count * frame_bytes <= HELD_BYTES:
        return lambda number: True
    run = min(run, max(1, SAMPLE_BYTES // frame_bytes))
    runs = max(1, min(SAMPLE_BYTES // frame_bytes, _SAMPLE_FRAMES) // run)
    every = max(run, count // runs)
    return lambda number: number % every < run and number // every < runs


def colour_tags(frame: av.VideoFrame, pixel_aspect: Any, turns: int) -> dict[str, Any]:
    """Return attributes of the encoder that define the meaning of colours and the shape of pixels.

    Values always have limited range. Pixels that are not square are tagged and not resampled,
    because all readers return pixels as they are stored, for the source and for the output.
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

    A frame is rotated as the file's metadata says, scaled (bicubic with antialiasing) and converted
    to 8-bit yuv420p of limited range. Transparency is dropped. All frames get the size of the
    ``first`` frame.

    Attributes:
        turns: Number of quarter turns counter-clockwise, plus 4 if frames are mirrored first.
        size: Height and width of the output.
        scaled: Whether frames are scaled. Cutting off an odd row or column is not scaling.
        frame_bytes: Size of a prepared frame in bytes.
    """

    def __init__(self, first: av.VideoFrame, settings: Settings) -> None:
        self.turns = orientation_of(first)
        shown = (first.height, first.width) if self.turns % 2 == 0 else (first.width, first.height)
        self.size = settings.target_size(*shown)
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
