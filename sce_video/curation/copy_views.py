"""The views of a video in which edited copies are searched: without borders, and its changes.

It also finds the rectangles of a video that may show another video.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from sce_video.curation.matching import FLAT, SIDE, Part, Thumbnails, cut_part

# The settings of each step stand before it. They were chosen by hand on the development sets of
# benchmarks/copy_queries.py, unless a reason for one value is given (docs/curate.md).


@dataclass(frozen=True)
class Views:
    """A video without borders, and what changes in it."""

    plain: Thumbnails
    changes: Thumbnails


def without_borders(video: Thumbnails) -> Thumbnails:
    """Cut off borders that stay black or of one grey level.

    The rest is squeezed to 32 x 32 pixels again, so that a moved or letterboxed copy shows a part
    of its original and nothing else. At least a third of each side stays. A video without borders,
    or of one grey level, is returned unchanged.
    """
    frames = video.frames[:: max(1, len(video.frames) // 64)].astype(np.float32)
    spread = frames.std(axis=0)
    box = []
    for axis in (0, 1):  # rows, columns
        # A border is still, and flat along its own direction.
        still = (spread.mean(axis=1 - axis) < 1.5) & (frames.mean(axis=0).std(axis=1 - axis) < FLAT)
        filled = np.flatnonzero(~still)
        low, high = (filled[0], filled[-1] + 1) if len(filled) else (0, SIDE)
        if high - low < SIDE // 3:
            low, high = 0, SIDE
        box.append((int(low), int(high)))
    if box == [(0, SIDE), (0, SIDE)]:
        return video
    (top, low), (left, right) = box
    part = left / SIDE, top / SIDE, (right - left) / SIDE, (low - top) / SIDE
    return replace(video, frames=cut_part(video.frames, part, SIDE).round().astype(np.uint8))


#: Seconds before and after a frame whose mean is subtracted from the frame.
_AROUND = 1.0
#: Factor by which the rest of a frame is multiplied, so that rounding to bytes keeps small changes.
_GAIN = 3.0
#: Number of frames that are processed together, because the sums of an hour would take gigabytes.
_CHANGED_AT_ONCE = 1024


def changes(video: Thumbnails) -> Thumbnails:
    """Return what changes: frames minus their mean over two seconds, times 3, around 128.

    Text, pictures and backgrounds that stand still vanish.
    """
    firsts = np.searchsorted(video.times, video.times - _AROUND)
    lasts = np.searchsorted(video.times, video.times + _AROUND, "right")
    found = np.empty_like(video.frames)
    for begin in range(0, len(found), _CHANGED_AT_ONCE):  # an hour would take gigabytes
        rows = slice(begin, begin + _CHANGED_AT_ONCE)
        first, last = firsts[rows] - firsts[begin], lasts[rows] - firsts[begin]
        near = video.frames[firsts[begin] : lasts[rows][-1]]
        total = np.zeros((len(near) + 1, SIDE, SIDE), dtype=np.int32)
        total[1:] = near
        for row in range(1, len(near)):  # np.cumsum over the first axis takes 16 times as long
            total[row + 1] += total[row]
        mean = np.subtract(total[last], total[first], dtype=np.float32)
        mean *= (-_GAIN / (last - first)).astype(np.float32)[:, None, None]
        mean += video.frames[rows] * np.float32(_GAIN) + 128.5  # rounded by the conversion
        found[rows] = mean.clip(0, 255)
    return replace(video, frames=found)


@dataclass(frozen=True)
class _RectangleSettings:
    """Settings for finding rectangles with still edges, in thumbnails of 32 x 32 pixels."""

    #: Maximum number of rectangles per video, because each one adds a searched part to every frame.
    most: int = 4
    #: Smallest side in pixels, almost a third of the frame.
    smallest: int = 10
    #: Smallest score of a rectangle, which is the mean of its sides plus its weakest side.
    least_score: float = 0.4
    #: Largest score of one pixel of an edge, so that a strong piece alone does not make a side.
    most_of_a_pixel: float = 0.7
    #: Number of frames, at equal steps, over which edges are averaged for a video of any length.
    frames: int = 40


_RECTANGLES = _RectangleSettings()


def rectangles(video: Thumbnails) -> list[Part]:
    """Find up to four rectangles that may show another video, the best first.

    Their sides are edges that stand still. At an edge, neighbouring pixels differ on average over
    time by more than the pixels two steps away, relative to the whole frame. A side counts by the
    mean of its edge, and a side at the border of the frame does not count. The weakest side of a
    rectangle counts twice.
    """
    frames = video.frames[:: max(1, len(video.frames) // _RECTANGLES.frames)].astype(np.float32)
    spans = _spans()
    low, high = spans.T
    lengths = (high - low).astype(np.float32)[:, None]
    sums, worst = [], []
    bound = _RECTANGLES.most_of_a_pixel
    for axis in (2, 1):  # edges between columns, between rows
        step = np.abs(np.diff(frames, axis=axis)).mean(axis=0)
        step = step if axis == 2 else step.T  # (along the edge, edges)
        wide = np.pad(step, ((0, 0), (2, 2)), mode="edge")
        edge = (step - (wide[:, :-4] + wide[:, 4:]) / 2) / (step.mean() + 2)
        # The bound keeps one strong piece from making a side. The frame's borders have no edge.
        total = np.cumsum(np.pad(edge.clip(-bound, bound), ((1, 0), (1, 1))), axis=0)
        mean = (total[high] - total[low]) / lengths
        sums.append(mean[:, low] + mean[:, high])
        mean[:, [0, SIDE]] = np.inf
        worst.append(np.minimum(mean[:, low], mean[:, high]))
    # Indexed by the spans of rows and columns.
    inside = (low > 0).astype(np.float32) + (high < SIDE)
    sides = inside[:, None] + inside
    score = (sums[0] + sums[1].T) / np.maximum(sides, 1)
    score += np.minimum(worst[0], worst[1].T)
    score[sides < 2] = -1.0
    found: list[Part] = []
    for _ in range(_RECTANGLES.most):
        row, column = divmod(int(score.argmax()), len(spans))
        if score[row, column] < _RECTANGLES.least_score:
            break
        (top, end), (left, right) = spans[row].tolist(), spans[column].tolist()
        found.append((left / SIDE, top / SIDE, (right - left) / SIDE, (end - top) / SIDE))
        near = [np.abs(spans - spans[n]).max(axis=1) <= 1 for n in (row, column)]
        score[np.ix_(*near)] = -1.0
    return found


@cache
def _spans() -> np.ndarray:
    """Return begin and end of every interval of pixels that a rectangle may fill, (n, 2)."""
    ends = [(a, b) for a in range(SIDE) for b in range(a + _RECTANGLES.smallest, SIDE + 1)]
    return np.array(ends)
