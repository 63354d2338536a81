"""The frames of clips and windows: index arithmetic on timestamps, without decoding.

A video is described by ``timestamps``, (F,) float64, the start of every frame in seconds, ascending
from 0, and by ``duration``, the end of its last frame. A frame is displayed from its own timestamp
to the next one. A clip is a stretch ``[start, start + clip_duration)`` of the video, and its frames
are the frames that *begin* inside it. A frame at the very start is inside, and a frame at the very
end is not::

    timestamps   0.0   0.1   0.2   0.3   0.4   0.5   0.6          duration 0.7
    frame         |--0--|--1--|--2--|--3--|--4--|--5--|--6--|
    clip                     [start = 0.15, 0.3 seconds)          frames 2, 3, 4
    clip                      [start = 0.2, 0.3 seconds)          frames 2, 3, 4

Of the n frames of a clip, T are kept, at equal steps from its first to its last frame, rounded
down: position ``i * (n - 1) // (T - 1)``, computed in integers::

    n = 7, T = 4:   0 1 2 3 4 5 6        n = 8, T = 4:   0 1 2 3 4 5 6 7
                    ^   ^   ^   ^                        ^   ^   ^     ^      (0, 2.33, 4.67, 7)
    n = 3, T = 6:   0 0 0 1 1 2          n = 1, T = 3:   0 0 0

Windows of ``seconds`` begin every ``stride`` seconds, and the last one ends with the video, so that
every frame is in at least one of them::

    duration 12, 5 s every 2.5 s      [---------)
                                          [---------)
                                              [---------)
                                                [---------)     7 to 12, not 7.5 to 12.5
    duration 3                        [-----)                   one window, shorter

The clips of a window equal the clips of a video with only its frames. Random numbers are passed as
arguments in [0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sce_video.utils.records import read_record
from sce_video.utils.seconds import parse_seconds

# Treat times as equal if they differ by less than this, because timestamps and starts are sums and
# products of floats.
_EPSILON = 1e-6
#: Maximum distance in seconds at which another partner is sought for a repeated frame.
DIFFERENCE_SECONDS = 0.5


@dataclass(frozen=True)
class ClipIndices:
    """The frames of one clip."""

    #: Indices of the frames in playing order, (T,) int64.
    frames: np.ndarray
    #: Index of the frame that follows each of ``frames`` at the full frame rate, (T,) int64. If it
    #: is given, the clip consists of the RGB differences of ``frames`` and ``partners``. For frames
    #: that repeat, see :func:`differing_pair`.
    partners: np.ndarray | None
    #: Start of the clip in seconds.
    start: float
    #: Duration of the clip in seconds.
    clip_duration: float
    #: Whether the clip plays backwards.
    reversed: bool = False


def frames_of_clips(clips: Sequence[ClipIndices]) -> np.ndarray:
    """Return all frames of clips and their partners, int64, ascending."""
    partners = [clip.partners for clip in clips if clip.partners is not None]
    return np.unique(np.concatenate([*(clip.frames for clip in clips), *partners]))


def frames_between(timestamps: np.ndarray, start: float, end: float) -> tuple[int, int]:
    """Return the first frame that begins in ``[start, end)`` and one past the last frame.

    If no frame begins there, the result is the frame that is displayed at ``start``::

        timestamps  0.0         1.0         2.0
        frame        |-----0-----|-----1-----|-----2-----|
        clip              [---)                              -> frame 0
    """
    first = int(np.searchsorted(timestamps, start - _EPSILON, side="left"))
    stop = int(np.searchsorted(timestamps, end - _EPSILON, side="left"))
    if stop > first:
        return first, stop
    shown = int(shown_at(timestamps, np.array(start)))
    return shown, shown + 1


def uniform_positions(count: int, num_frames: int) -> np.ndarray:
    """Choose T of ``count`` positions at equal steps from the first to the last: (T,) int64.

    Positions are rounded down. This is the truncated ``linspace`` of pytorchvideo's
    UniformTemporalSubsample, but computed in integers, so that an exact position is never rounded
    down. For T = 1, the first position is chosen.
    """
    if num_frames == 1:
        return np.zeros(1, dtype=np.int64)
    return np.arange(num_frames, dtype=np.int64) * (count - 1) // (num_frames - 1)


def segment_positions(count: int, num_frames: int, offsets: np.ndarray | float = 0.5) -> np.ndarray:
    """Choose one of ``count`` positions from each of T equal segments: (T,) int64, ascending.

    ``offsets``, (T,) in [0, 1), are the positions within the segments. 0.5 chooses the centres::

        count = 8, T = 4:   |0 1|2 3|4 5|6 7|     offsets 0.5 -> 1 3 5 7
                                                  offsets 0.0 -> 0 2 4 6
        count = 2, T = 4:   |0  .  |1  .  |       offsets 0.5 -> 0 0 1 1
    """
    positions = (np.arange(num_frames) + offsets) * count / num_frames
    return np.minimum(positions.astype(np.int64), count - 1)


def shared_segment_positions(
    count: int, num_frames: int, offsets: np.ndarray | None = None
) -> np.ndarray:
    """Choose a position from each of T segments that share their ends: (T,) int64.

    The segments divide the ``count - 1`` steps from the first to the last position. Their ends are
    rounded to even, and both ends belong to a segment (SlowFast, ``datasets/ssv2.py``). ``offsets``
    have the same meaning as in :func:`segment_positions`. None chooses the centres, rounded down::

        count = 9, T = 4:   0 . 2 . 4 . 6 . 8     segments 0-2, 2-4, 4-6, 6-8, centres 1 3 5 7
    """
    ends = np.round(np.arange(num_frames + 1) * ((count - 1) / num_frames)).astype(np.int64)
    first, last = ends[:-1], ends[1:]
    if offsets is None:
        return (first + last) // 2
    return first + (offsets * (last - first + 1)).astype(np.int64)


def shown_at(timestamps: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the frame that is displayed at each of T times, (T,) int64, clamped to the video."""
    frames = np.searchsorted(timestamps, np.asarray(times) + _EPSILON, side="right") - 1
    return np.clip(frames, 0, len(timestamps) - 1)


def make_clip(
    timestamps: np.ndarray,
    *,
    start: float,
    clip_duration: float,
    num_frames: int,
    reverse: bool = False,
    difference: bool = False,
) -> ClipIndices:
    """Return the T frames of the clip ``[start, start + clip_duration)``, seconds.

    The clip's n frames are put in playing order, which ``reverse`` reverses. With ``difference``,
    each frame is paired with the next frame. Then T positions are kept. The last position has no
    next frame, so it repeats the previous difference::

        playing order        10 11 12 13 14            reversed    14 13 12 11 10
        T = 3 kept           10    12    14                        14    12    10
        frames, partners     (10,11) (12,13) (13,14)   (14,13) (12,11) (11,10)

    In a clip of one frame, the frame is its own partner, so the difference is constant.
    ``timestamps`` are (F,) float64, seconds, ascending from 0.
    """
    first, stop = frames_between(timestamps, start, start + clip_duration)
    count = stop - first
    positions = uniform_positions(count, num_frames)
    if difference:
        positions = np.minimum(positions, max(count - 2, 0))
    partners = np.minimum(positions + 1, count - 1)
    if reverse:  # positions count backwards from the last frame
        frames, partners = stop - 1 - positions, stop - 1 - partners
    else:
        frames, partners = first + positions, first + partners
    return ClipIndices(frames, partners if difference else None, start, clip_duration, reverse)


def neighbours_within(
    timestamps: np.ndarray, clip: ClipIndices, frame: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the frames of a clip that play after a frame, and before it, the nearest first.

    Only frames within :data:`DIFFERENCE_SECONDS` are returned. Frames that play before are returned
    only if the frames that play after reach the end of the clip.
    """
    first, stop = frames_between(timestamps, clip.start, clip.start + clip.clip_duration)
    reach = DIFFERENCE_SECONDS + _EPSILON
    low = max(first, int(np.searchsorted(timestamps, timestamps[frame] - reach, side="left")))
    high = min(stop, int(np.searchsorted(timestamps, timestamps[frame] + reach, side="right")))
    after, before, ends = np.arange(frame + 1, high), np.arange(low, frame)[::-1], high == stop
    if clip.reversed:
        after, before, ends = before, after, low == first
    return after, before if ends else before[:0]


def differing_pair(
    timestamps: np.ndarray, clip: ClipIndices, frame: int, differing: AbstractSet[tuple[int, int]]
) -> tuple[int, int] | None:
    """Return a frame and the next frame in playing order that differs from it.

    ``differing`` contains all pairs of different frames. If no different frame follows in the clip,
    the previous difference is repeated, as at the last frame of a clip. If no frame within
    :data:`DIFFERENCE_SECONDS` is different, the result is None::

        shown                A A A B B C C C          in playing order
        frame 0: (0, 3)      frame 3: (3, 5)          frame 6: nothing follows, (4, 6)
    """
    after, before = (part.tolist() for part in neighbours_within(timestamps, clip, frame))
    pairs = [((frame, other), (frame, other)) for other in after]
    pairs += [((frame, other), (other, frame)) for other in before]
    return next((shown for pair, shown in pairs if pair in differing), None)


def spaced_starts(duration: float, clip_duration: float, num_clips: int) -> np.ndarray:
    """Return K starts of test clips, spaced equally from 0 to ``duration - clip_duration``.

    The result is (K,) float64. A single clip is cut from the centre. If the video is shorter than a
    clip, all clips start at 0::

        duration 10, clip 4, K = 3:   [----)                starts 0, 3, 6
                                         [----)
                                            [----)
        K = 1:                           [----)             start 3
    """
    last = max(0.0, duration - clip_duration)
    if num_clips == 1:
        return np.array([last / 2])
    return last * np.arange(num_clips) / (num_clips - 1)


_MOST_WINDOWS = 1_000_000


@dataclass(frozen=True)
class Windows:
    """Division of a video into windows."""

    #: Duration of a window in seconds.
    seconds: float
    #: Time in seconds between the starts of two windows. None means the same as ``seconds``.
    stride: float | None = None
    #: Whether to divide each shot separately, so that windows never contain a cut.
    shots: bool = False

    def __post_init__(self) -> None:
        if self.stride is None:
            object.__setattr__(self, "stride", self.seconds)
        for name in ("seconds", "stride"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} of windows must be a number of seconds, got {value!r}")
            elif not 0 < value < math.inf:
                raise ValueError(
                    f"{name} of windows must be a positive number of seconds, got {value}"
                )

    @classmethod
    def of_texts(cls, seconds: str, stride: str | None = None, shots: bool = False) -> Windows:
        """Make windows of two times such as ``5s`` and ``0:02.5``."""
        step = None if stride is None else parse_seconds(stride)
        return cls(parse_seconds(seconds), step, shots)

    @property
    def step(self) -> float:
        """Return the time between the starts of two windows in seconds."""
        return self.seconds if self.stride is None else self.stride

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"seconds": float(self.seconds), "stride": float(self.step), "shots": self.shots}

    @classmethod
    def from_dict(cls, values: Any) -> Windows:
        """Make windows of the result of :meth:`to_dict`; ValueError for any other value."""
        return read_record(cls, values, "windows")

    def __str__(self) -> str:
        shots = ", within shots" if self.shots else ""
        return f"windows of {self.seconds:g} s every {self.step:g} s{shots}"


def check_span(what: str, start: float, end: float) -> None:
    """Raise ValueError, which begins with ``what``, unless a span ends after its start."""
    if end == start:
        raise ValueError(
            f"{what} has no length: it starts and ends at {start:g} s. Give a later end"
        )
    if end < start:
        raise ValueError(f"{what} ends at {end:g} s, before its start at {start:g} s")


def format_moment(start: float, end: float) -> str:
    """Format 12.5 and 17 as 0:12.5-0:17.0."""
    return f"{_clock(start, 1)}-{_clock(end, 1)}"


def _clock(seconds: float, digits: int) -> str:
    minutes, rest = divmod(round(seconds * 10**digits) / 10**digits, 60)
    hours, minutes = divmod(int(minutes), 60)
    shown = f"{rest:0{2 + 2 * digits}.{digits}f}"  # e.g. 05 or 05.0
    return f"{hours}:{minutes:02}:{shown}" if hours else f"{minutes}:{shown}"


def format_duration(seconds: float) -> str:
    """Format 4.25 as 4.2 s, 75 as 1:15."""
    return f"{seconds:.1f} s" if seconds < 60 else _clock(seconds, 0)


def window_spans(duration: float, windows: Windows, cuts: np.ndarray | None = None) -> np.ndarray:
    """Return start and end of every window of a video in seconds, (W, 2) float64, ascending.

    Args:
        duration: Length of the video in seconds.
        windows: Length and stride of the windows.
        cuts: Starts of all shots except the first, in ascending seconds. Each shot is divided
            separately.

    Raises:
        ValueError: If there would be more than a million windows.
    """
    if duration / windows.step > _MOST_WINDOWS:
        raise ValueError(
            f"a video of {duration:.0f} s would have more than {_MOST_WINDOWS} {windows}. Choose a "
            "longer stride"
        )
    inner = [] if cuts is None else [float(c) for c in cuts if _EPSILON < c < duration - _EPSILON]
    spans = []
    for begin, end in pairwise([0.0, *inner, duration]):
        room = end - begin - windows.seconds
        if room <= _EPSILON:
            spans.append(np.array([[begin, end]]))
            continue
        starts = begin + np.arange(math.floor(room / windows.step + _EPSILON) + 1) * windows.step
        if end - (starts[-1] + windows.seconds) > _EPSILON:
            starts = np.append(starts, end - windows.seconds)
        spans.append(np.stack([starts, np.minimum(starts + windows.seconds, end)], axis=1))
    return np.concatenate(spans)


def clips_of_span(
    timestamps: np.ndarray,
    start: float,
    end: float,
    *,
    clip_duration: float | None,
    num_frames: int,
    num_clips: int,
) -> list[ClipIndices]:
    """Return K clips of T frames that begin in ``[start, end)``, seconds.

    The starts of the clips are spaced equally. If ``clip_duration`` is None, there is one clip with
    a frame from each of T segments of the span. ``timestamps`` are (F,) float64 seconds, ascending
    from 0.
    """
    if clip_duration is None:
        first, stop = frames_between(timestamps, start, end)
        frames = first + segment_positions(stop - first, num_frames)
        return [ClipIndices(frames, None, start, end - start)]
    length = min(clip_duration, end - start)
    starts = [start + float(s) for s in spaced_starts(end - start, clip_duration, num_clips)]
    shape: dict[str, Any] = {"clip_duration": length, "num_frames": num_frames}
    return [make_clip(timestamps, start=begin, **shape) for begin in starts]
