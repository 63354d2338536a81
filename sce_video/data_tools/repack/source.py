"""A source video as the frames that its output shows: upright, scaled, 8 bit yuv420p."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter

from sce_video.data_tools.repack.decoding import decode_part, expected_frames, times_of_part
from sce_video.data_tools.repack.settings import Settings
from sce_video.data_tools.repack.timing import Schedule, make_schedule
from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers import AvReader

#: A video of this size is decoded once and kept: 2,000 frames of 340 x 256, 67 seconds.
HELD_BYTES = 256 * 2**20
#: Of a longer one this much is kept to compare with, and it is decoded a second time.
SAMPLE_BYTES = 32 * 2**20
_SAMPLE_FRAMES = 240
_RGB, _UNSPECIFIED = 0, 2  # of the colour matrix


@dataclass
class Source:
    """What is known of a source after it was decoded once.

    Attributes:
        path: The file.
        size: (H, W) of the output.
        schedule: Rate of the output, and the source's frame for each of its frames.
        duration: Seconds the source lasts.
        frames: Number that decode.
        promised: Number that the container holds packets for.
        video_bytes: Of the packets of its video.
        tags: Attributes of the encoder that say how colours and pixels are meant.
        held: Prepared frames by their number in the source, see :class:`Preparation`; all of
            them, or for a long video a sample.
        preparation: Makes them of decoded frames.
        limits: How large decoded frames may be.
        span: (start, end) in seconds of the part that is shown; None for the whole file.
    """

    path: str
    size: tuple[int, int]
    schedule: Schedule
    duration: float
    frames: int
    promised: int
    video_bytes: int
    tags: dict[str, Any]
    held: dict[int, np.ndarray]
    preparation: Preparation
    limits: DecodeLimits
    span: tuple[float, float] | None = None

    def prepared_frames(self) -> Iterator[np.ndarray]:
        """The frames of the output in order, (3 H / 2, W) uint8 each: Y, then U, then V.

        Raises:
            VideoDecodeError: The file has changed meanwhile.
        """
        shown = self.schedule.shown
        if len(self.held) == self.frames:
            yield from (self.held[int(number)] for number in shown)
            return
        position = 0
        for number, frame in enumerate(decode_part(self.path, self.limits, self.span)):
            if position < len(shown) and shown[position] == number:
                prepared = self.preparation(frame)
                while position < len(shown) and shown[position] == number:
                    yield prepared
                    position += 1
        if position < len(shown):
            raise VideoDecodeError(self.path, "changed while it was being read")


def read_source(
    path: str,
    settings: Settings,
    limits: DecodeLimits | None = None,
    span: tuple[float, float] | None = None,
) -> Source:
    """Decode a video, or a part of it, once.

    Args:
        path: A regular file.
        settings: Size, and the run length of a sample.
        limits: How large frames may be; None for the defaults.
        span: (start, end) in seconds of the part; None for the whole file.

    Raises:
        VideoDecodeError: No frame can be decoded, frames are too large, or the part is not there.
    """
    limits = limits or DecodeLimits()
    table, table_duration = np.empty(0), 0.0
    if span is None:  # of an hour-long file all packets would be read for each of its segments
        with AvReader(path, limits=limits) as reader:
            table, table_duration = reader.timestamps, reader.duration
    facts: dict[str, Any] = {}
    preparation: Preparation | None = None
    held: dict[int, np.ndarray] = {}
    pts: list[int | None] = []
    keep: Callable[[int], bool] = bool
    for number, frame in enumerate(decode_part(path, limits, span, facts)):
        if preparation is None:
            preparation = Preparation(frame, settings)
            tags = colour_tags(frame, facts["pixel_aspect"], preparation.turns)
            count = len(table) if span is None else expected_frames(span, facts["rates"])
            keep = _choose(count, preparation.frame_bytes, settings.keyint)
        if keep(number):
            held[number] = preparation(frame)
        pts.append(frame.pts)
    if preparation is None:
        raise VideoDecodeError(path, "no frame can be decoded")
    if span is None:
        times, duration = _true_times(pts, facts["tick"], table, table_duration)
    else:
        times, duration = times_of_part(pts, facts["tick"], facts["rates"])
    held = {number: frame for number, frame in held.items() if number < len(times)}
    return Source(
        path=path,
        size=preparation.size,
        schedule=make_schedule(times, duration, facts["rates"], float(facts["tick"])),
        duration=duration,
        frames=len(times),
        promised=len(table) if span is None else len(times),
        video_bytes=facts["video_bytes"],
        tags=tags,
        held=held,
        preparation=preparation,
        limits=limits,
        span=span,
    )


def _true_times(
    pts: list[int | None], tick: Fraction, table: np.ndarray, duration: float
) -> tuple[np.ndarray, float]:
    """(F,) seconds of the frames that decode, and when the last one ends.

    Args:
        pts: Of the decoded frames.
        tick: Seconds of one unit of them.
        table: (P,) seconds of all frames that the packets promise.
        duration: Seconds to the end of the last promised one.
    """
    last = duration - float(table[-1])
    if len(pts) >= len(table):
        return table, duration
    known = [value for value in pts if value is not None]
    if len(known) == len(pts) and all(np.diff(known) > 0):
        times = (np.asarray(known, dtype=np.int64) - known[0]) * tick.numerator / tick.denominator
    else:
        times = table[: len(pts)]
    return times, float(times[-1]) + last


def _choose(count: int, frame_bytes: int, run: int) -> Callable[[int], bool]:
    """Which of about ``count`` frames are kept: all, or evenly spread runs of ``run``.

    A run that alone passes the memory for a sample is cut to it.
    """
    if count * frame_bytes <= HELD_BYTES:
        limit = 2 * HELD_BYTES // frame_bytes  # should far more decode than promised
        return lambda number: number < limit
    run = min(run, max(1, SAMPLE_BYTES // frame_bytes))
    runs = max(1, min(SAMPLE_BYTES // frame_bytes, _SAMPLE_FRAMES) // run)
    every = max(run, count // runs)
    return lambda number: number % every < run and number // every < runs


def colour_tags(frame: av.VideoFrame, pixel_aspect: Any, turns: int) -> dict[str, Any]:
    """What the encoder notes: how the source's colours are meant, and the shape of its pixels.

    Values are always of limited range. Pixels that are not square stay as they are, tagged: every
    reader hands out the stored pixels, of the source as of the output.
    """
    matrix = int(frame.colorspace)
    tags: dict[str, Any] = {
        "colorspace": _UNSPECIFIED if matrix == _RGB or _is_rgb(frame) else matrix,
        "color_primaries": int(frame.color_primaries),
        "color_trc": int(frame.color_trc),
        "color_range": int(ColorRange.MPEG),
    }
    if pixel_aspect and pixel_aspect > 0:
        tags["sample_aspect_ratio"] = 1 / pixel_aspect if turns % 2 else pixel_aspect
    return tags


def _is_rgb(frame: av.VideoFrame) -> bool:
    return bool(frame.format.is_rgb or frame.format.name.startswith(("pal", "gray", "mono")))


class Preparation:
    """Makes a decoded frame what the encoder gets.

    It is turned as the file asks, scaled (bicubic, which averages when it makes a frame smaller)
    and made 8 bit yuv420p of limited range; transparency is dropped. All frames get the first
    one's size.

    Args:
        first: The first frame of the video.
        settings: The size.

    Attributes:
        turns: Quarters of a turn, counter-clockwise.
        size: (H, W) of the output.
        scaled: The size is not the source's, up to an odd row or column.
    """

    def __init__(self, first: av.VideoFrame, settings: Settings) -> None:
        self.turns = round(first.rotation / 90) % 4
        shown = (first.height, first.width) if self.turns % 2 == 0 else (first.width, first.height)
        self.size = settings.target_size(*shown)
        # Cropped by a row or column, not scaled, where that is all that is missing.
        cropped = all(0 <= a - b <= 1 for a, b in zip(shown, self.size, strict=True))
        self.scaled = not cropped
        self._scaled_size = shown if cropped else self.size
        self._reformatter = VideoReformatter()

    @property
    def frame_bytes(self) -> int:
        """Of a prepared frame."""
        return self.size[0] * self.size[1] * 3 // 2

    def __call__(self, frame: av.VideoFrame) -> np.ndarray:
        """(3 H / 2, W) uint8, the planes Y, U, V behind each other, contiguous."""
        turns = round(frame.rotation / 90) % 4
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
        prepared = np.empty(self.frame_bytes, dtype=np.uint8)
        begin = 0
        for number, plane in enumerate(yuv.planes):
            half = 1 if number == 0 else 2
            rows = np.frombuffer(memoryview(plane), dtype=np.uint8).reshape(-1, plane.line_size)
            upright = np.rot90(rows[: plane.height, : plane.width], k=turns)
            part = upright[: height // half, : width // half]
            prepared[begin : begin + part.size].reshape(part.shape)[:] = part
            begin += part.size
        return prepared.reshape(height * 3 // 2, width)
