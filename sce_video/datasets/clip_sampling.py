"""The frames of a clip: index arithmetic on time stamps, without any decoding.

A video is described by ``timestamps``, (F,) float64, the start of every frame in seconds, ascending
from 0, and by ``duration``, the end of its last frame. A frame is displayed from its own time stamp
to the next one. A clip is a stretch ``[start, start + clip_duration)`` of the video, and its frames
are those that *begin* inside it; one at the very start is inside, one at the very end is not::

    timestamps   0.0   0.1   0.2   0.3   0.4   0.5   0.6          duration 0.7
    frame         |--0--|--1--|--2--|--3--|--4--|--5--|--6--|
    clip                     [start = 0.15, 0.3 seconds)          frames 2, 3, 4
    clip                      [start = 0.2, 0.3 seconds)          frames 2, 3, 4

Of the n frames of a clip, T are kept, at equal steps from its first to its last frame, rounded
down: position ``i * (n - 1) // (T - 1)``, computed in integers::

    n = 7, T = 4:   0 1 2 3 4 5 6        n = 8, T = 4:   0 1 2 3 4 5 6 7
                    ^   ^   ^   ^                        ^   ^   ^     ^      (0, 2.33, 4.67, 7)
    n = 3, T = 6:   0 0 0 1 1 2          n = 1, T = 3:   0 0 0

Everything here is a pure function: random numbers come in as arguments in [0, 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

# Time stamps and starts are sums and products of floats: times closer than this are equal.
_EPSILON = 1e-6
#: Seconds within which a frame that repeats finds another one to be compared with.
DIFFERENCE_SECONDS = 0.5


@dataclass(frozen=True)
class ClipIndices:
    """The frames of one clip."""

    #: (T,) int64, frames of the video in the order in which the clip plays.
    frames: np.ndarray
    #: (T,) int64 or None. If given, the clip consists of RGB differences: frame i is the difference
    #: of ``frames[i]`` and ``partners[i]``, the next frame of the full-rate clip; see
    #: :func:`differing_pair` for frames that repeat.
    partners: np.ndarray | None
    #: Start of the clip, seconds.
    start: float
    #: Length of the clip, seconds.
    clip_duration: float
    #: Whether the clip plays backwards.
    reversed: bool = False


def frames_of_clips(clips: Sequence[ClipIndices]) -> np.ndarray:
    """The frames that clips need, with their partners: int64, ascending."""
    partners = [clip.partners for clip in clips if clip.partners is not None]
    return np.unique(np.concatenate([*(clip.frames for clip in clips), *partners]))


def frames_between(timestamps: np.ndarray, start: float, end: float) -> tuple[int, int]:
    """First frame of ``[start, end)`` and one past the last; never empty.

    Where no frame begins in the stretch, it is the one frame that is displayed at ``start``::

        timestamps  0.0         1.0         2.0
        frame        |-----0-----|-----1-----|-----2-----|
        clip              [---)                              -> frame 0
    """
    first = int(np.searchsorted(timestamps, start - _EPSILON, side="left"))
    stop = int(np.searchsorted(timestamps, end - _EPSILON, side="left"))
    if stop > first:
        return first, stop
    shown = int(np.searchsorted(timestamps, start + _EPSILON, side="right")) - 1
    shown = min(max(shown, 0), len(timestamps) - 1)
    return shown, shown + 1


def uniform_positions(count: int, num_frames: int) -> np.ndarray:
    """T of ``count`` positions at equal steps, first and last included, rounded down: (T,) int64.

    The truncated ``linspace(0, count - 1, T)`` of pytorchvideo's UniformTemporalSubsample, in
    integers: an exact position is never rounded down to the one below. For T = 1 the first one.
    """
    if num_frames == 1:
        return np.zeros(1, dtype=np.int64)
    return np.arange(num_frames, dtype=np.int64) * (count - 1) // (num_frames - 1)


def segment_positions(count: int, num_frames: int, offsets: np.ndarray | float = 0.5) -> np.ndarray:
    """One of ``count`` positions from each of T equal segments: (T,) int64, ascending.

    ``offsets``, (T,) in [0, 1), are the positions within the segments; 0.5 takes the centres::

        count = 8, T = 4:   |0 1|2 3|4 5|6 7|     offsets 0.5 -> 1 3 5 7
                                                  offsets 0.0 -> 0 2 4 6
        count = 2, T = 4:   |0  .  |1  .  |       offsets 0.5 -> 0 0 1 1
    """
    positions = (np.arange(num_frames) + offsets) * count / num_frames
    return np.minimum(positions.astype(np.int64), count - 1)


def segment_clip(
    timestamps: np.ndarray, duration: float, num_frames: int, offsets: np.ndarray | float
) -> ClipIndices:
    """One frame of each of T equal segments of the whole video, see :func:`segment_positions`."""
    frames = segment_positions(len(timestamps), num_frames, offsets)
    return ClipIndices(frames, None, start=0.0, clip_duration=duration)


def shown_at(timestamps: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The frame displayed at each of T seconds, (T,) int64; the first or last one outside of it."""
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
    """The T frames of the clip ``[start, start + clip_duration)``, seconds.

    First the clip's n frames are put in playing order (``reverse`` reverses them), then each frame
    is paired with the next one (``difference``), then T positions are kept. The last position has
    no next frame and repeats the difference of the one before it::

        playing order        10 11 12 13 14            reversed    14 13 12 11 10
        T = 3 kept           10    12    14                        14    12    10
        frames, partners     (10,11) (12,13) (13,14)   (14,13) (12,11) (11,10)

    The frame of a clip of one frame is its own partner: the difference is constant.
    ``timestamps`` are (F,) float64, seconds, ascending from 0.
    """
    first, stop = frames_between(timestamps, start, start + clip_duration)
    count = stop - first
    positions = uniform_positions(count, num_frames)
    if difference:
        positions = np.minimum(positions, max(count - 2, 0))
    partners = np.minimum(positions + 1, count - 1)
    if reverse:  # a position counts from the last frame
        frames, partners = stop - 1 - positions, stop - 1 - partners
    else:
        frames, partners = first + positions, first + partners
    return ClipIndices(frames, partners if difference else None, start, clip_duration, reverse)


def neighbours_within(
    timestamps: np.ndarray, clip: ClipIndices, frame: int
) -> tuple[np.ndarray, np.ndarray]:
    """The frames of a clip that play after a frame, and before it, each the nearest first.

    Only those within :data:`DIFFERENCE_SECONDS`. The frames before it are empty unless those after
    it reach the end of the clip.
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
    """A frame and the next frame of the clip that differs from it, of footage that repeats frames.

    ``differing`` holds the pairs (frame, another one) of frames that differ. As the paper's last
    frame, a frame without another one up to the end of the clip repeats the difference before it.
    The pair is in playing order; None if there is none within :data:`DIFFERENCE_SECONDS`::

        shown                A A A B B C C C          in playing order
        frame 0: (0, 3)      frame 3: (3, 5)          frame 6: nothing follows, (4, 6)
    """
    after, before = (part.tolist() for part in neighbours_within(timestamps, clip, frame))
    pairs = [((frame, other), (frame, other)) for other in after]
    pairs += [((frame, other), (other, frame)) for other in before]
    return next((shown for pair, shown in pairs if pair in differing), None)


def spaced_starts(duration: float, clip_duration: float, num_clips: int) -> np.ndarray:
    """K starts spaced equally from 0 to ``duration - clip_duration``, for testing: (K,) float64.

    A single clip is taken from the centre. In a video shorter than the clip all start at 0::

        duration 10, clip 4, K = 3:   [----)                starts 0, 3, 6
                                         [----)
                                            [----)
        K = 1:                           [----)             start 3
    """
    last = max(0.0, duration - clip_duration)
    if num_clips == 1:
        return np.array([last / 2])
    return last * np.arange(num_clips) / (num_clips - 1)
