"""Second comparison of two videos, between the frame times and parts of the first.

The first comparison samples both videos 16 times a second. Where a copy was trimmed, its samples
lie between those of the other video, and fast motion makes two such frames differ as much as two
videos do. So the copy's own frames are compared with the frames that the other one displays at the
same moments, at displacements in steps of 1/64 second and at parts of any size and place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sce_video.data_tools.copies.matching import FLAT, Alignment
from sce_video.data_tools.copies.thumbnails import SIDE, Thumbnails
from sce_video.datasets.clip_sampling import shown_at

Part = tuple[float, float, float, float]
#: Similarity from which an alignment is refined, first in time, then in place; and how many of one
#: pair are, in time and in place.
REFINED, MOST_STARTS, _MOST_CLIMBED = 0.5, 6, 2
#: Side of a compared part, pixels, and compared frames.
_FINE, _ANCHORS = 16, 16
#: Displacements on either side, in units of seconds: 3/32, half as much again as a sample lasts.
_SHIFTS = np.arange(-6, 7) / 64
_STEPS, _MOST_MOVES = (0.03, 0.015, 0.0075, 0.004), 6


def refined(outer: Thumbnails, inner: Thumbnails, starts: Sequence[Alignment]) -> Alignment:
    """The alignment near one of the given ones at which two videos are most similar.

    Args:
        outer: The video in which the other lies.
        inner: The other.
        starts: Of the first comparison. Those that are best in time are refined in place.

    Returns:
        With the mean correlation of up to 16 frames at 16 x 16 pixels: similar videos correlate at
        8 x 8 pixels nearly as much as copies do between two steps of the grid.
    """
    whole = _averaging(0.0, 1.0)
    own = _unit(whole @ inner.frames.astype(np.float32) @ whole.T)
    middles = (inner.times + np.append(inner.times[1:], inner.end)) / 2

    def similarity(offset: float, part: Part) -> float:
        left, top, wide, high = part
        common = np.flatnonzero((middles + offset >= 0) & (middles + offset < outer.end))
        if len(common) == 0 or min(left, top) < 0 or left + wide > 1 or top + high > 1:
            return -1.0
        steps = np.linspace(0, len(common) - 1, min(len(common), _ANCHORS))
        chosen = common[steps.round().astype(int)]
        shown = outer.frames[shown_at(outer.times, middles[chosen] + offset)]
        rows, columns = _averaging(top, high), _averaging(left, wide)
        cut = _unit(rows @ shown.astype(np.float32) @ columns.T)
        return float((cut * own[chosen]).sum(axis=1).mean())

    def displaced(offset: float, part: Part) -> tuple[float, float]:
        found = [(similarity(offset + d, part), -abs(d), offset + d) for d in _SHIFTS.tolist()]
        best = max(found)
        return best[0], best[2]

    def climbed(best: float, offset: float, part: Part) -> tuple[float, float, Part]:
        for step in _STEPS:
            for _ in range(_MOST_MOVES):
                value, moved = max((similarity(offset, p), p) for p in _moved(part, step))
                if value <= best:
                    break
                best, part = value, moved
            if step in _STEPS[::2]:
                best, offset = displaced(offset, part)
        return best, offset, part

    found = sorted(((*displaced(s.offset, s.part), s.part) for s in starts), reverse=True)
    best = [climbed(*f) for f in found[:_MOST_CLIMBED] if f[0] >= REFINED]
    return Alignment(*max(best or found))


def _moved(part: Part, step: float) -> list[Part]:
    """The parts beside a part, and those a little larger and smaller."""
    left, top, wide, high = part
    grown = [
        (left - d * wide * x, top - d * high * y, wide * (1 + d), high * (1 + d))
        for d in (-step, step)
        for x in (0.0, 0.5, 1.0)
        for y in (0.0, 0.5, 1.0)
    ]
    clipped = [
        (max(0.0, x), max(0.0, y), min(w, 1 - max(0.0, x)), min(h, 1 - max(0.0, y)))
        for x, y, w, h in grown
    ]
    return [
        (left - step, top, wide, high),
        (left + step, top, wide, high),
        (left, top - step, wide, high),
        (left, top + step, wide, high),
        *clipped,
    ]


def _averaging(start: float, length: float) -> np.ndarray:
    """Matrix (16, 32) that averages the pixels of an interval of the frame."""
    edges = (start + length * np.linspace(0, 1, _FINE + 1)) * SIDE
    pixels = np.arange(SIDE)
    low, high = edges[:-1, None], edges[1:, None]
    overlap = np.clip(np.minimum(high, pixels + 1) - np.maximum(low, pixels), 0, None)
    return (overlap / overlap.sum(axis=1, keepdims=True)).astype(np.float32)


def _unit(images: np.ndarray) -> np.ndarray:
    """Images (n, m, m) as unit vectors (n, m * m); flat ones stay shorter."""
    vectors = images.reshape(len(images), -1)
    vectors = vectors - vectors.mean(axis=1, keepdims=True)
    norms = np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    return vectors / np.maximum(norms, FLAT * images.shape[1])
