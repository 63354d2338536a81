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
_EDGES = np.linspace(0, 1, _FINE + 1)
#: Displacements on either side, in units of seconds: 3/32, half as much again as a sample lasts.
_SHIFTS = np.arange(-6, 7) / 64
_STEPS, _MOST_MOVES = (0.03, 0.015, 0.0075, 0.004), 6
#: What similarity may still gain after a move, and after all moves of each step: about twice the
#: most that 355 alignments at 0.93 or more gained (0.24; 0.10, 0.08, 0.01).
_FIRST_GAIN, _GAINS = 0.4, (0.2, 0.15, 0.04, 0.0)
_MIDDLE = 128  # grey level, subtracted so that sums of squares are small


def refined(
    outer: Thumbnails, inner: Thumbnails, starts: Sequence[Alignment], threshold: float = 0.0
) -> Alignment:
    """The alignment near one of the given ones at which two videos are most similar.

    Args:
        outer: The video in which the other lies.
        inner: The other.
        starts: Of the first comparison. Those that are best in time are refined in place.
        threshold: Similarity that matters: an alignment that is further below it than refinement
            gains is not refined to the end.

    Returns:
        With the mean correlation of up to 16 frames at 16 x 16 pixels: similar videos correlate at
        8 x 8 pixels nearly as much as copies do between two steps of the grid.
    """
    pair = _Frames(outer, inner)
    found = sorted(((*_displaced(pair, s.offset, s.part), s.part) for s in starts), reverse=True)
    best = [_climbed(pair, *f, threshold) for f in found[:_MOST_CLIMBED] if f[0] >= REFINED]
    return Alignment(*max(best or found))


class _Frames:
    """Frames of two videos, which are compared at displacements in time and parts.

    Args:
        outer: The video of which parts are compared.
        inner: The video of which whole frames are.
    """

    def __init__(self, outer: Thumbnails, inner: Thumbnails) -> None:
        self._times, self._end = outer.times, outer.end
        self._frames = outer.frames.astype(np.float32) - _MIDDLE
        self._middles = (inner.times + np.append(inner.times[1:], inner.end)) / 2
        whole = _averaging(np.zeros(1), np.ones(1))
        own, norms = _cut(inner.frames.astype(np.float32) - _MIDDLE, whole, whole)
        own = own - own.mean(axis=(1, 3), keepdims=True)
        self._own = (own / norms[:, None, :, None])[0]  # (16, T', 16)

    def at_parts(self, offset: float, parts: Sequence[Part]) -> np.ndarray:
        """Similarity (P,) at each of some parts; -1 for those that exceed the frame."""
        left, top, wide, high = np.asarray(parts).T
        inside = np.flatnonzero(
            (np.minimum(left, top) >= 0) & (left + wide <= 1) & (top + high <= 1)
        )
        values = np.full(len(parts), -1.0)
        own, shown = self._compared(offset)
        if len(own) and len(inside):
            rows = _averaging(top[inside], high[inside])
            columns = _averaging(left[inside], wide[inside])
            cut, norms = _cut(self._frames[shown], rows, columns)
            # The mean of ``own`` is zero, so that of the part need not be subtracted.
            products = np.einsum("pinj,inj->pn", cut, self._own[:, own], optimize=True)
            values[inside] = (products / norms).mean(axis=1)
        return values

    def at_offsets(self, offsets: Sequence[float], part: Part) -> list[float]:
        """Similarity at each of some displacements; -1 for those without common frames."""
        compared = [self._compared(offset) for offset in offsets]
        shown, place = np.unique(np.concatenate([c[1] for c in compared]), return_inverse=True)
        if len(shown) == 0:
            return [-1.0] * len(offsets)
        left, top, wide, high = np.asarray(part)[:, None]
        cut, norms = _cut(self._frames[shown], _averaging(top, high), _averaging(left, wide))
        unit = cut[0] / norms[0][None, :, None]
        places = np.split(place, np.cumsum([len(c[1]) for c in compared])[:-1])
        return [
            float((unit[:, at] * self._own[:, own]).sum(axis=(0, 2)).mean()) if len(own) else -1.0
            for (own, _), at in zip(compared, places, strict=True)
        ]

    def _compared(self, offset: float) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of up to 16 frames of the inner video, and of those the other one displays."""
        moments = self._middles + offset
        common = np.flatnonzero((moments >= 0) & (moments < self._end))
        if len(common) == 0:
            return common, common
        steps = np.linspace(0, len(common) - 1, min(len(common), _ANCHORS))
        chosen = common[steps.round().astype(int)]
        return chosen, shown_at(self._times, moments[chosen])


def _displaced(pair: _Frames, offset: float, part: Part) -> tuple[float, float]:
    """The highest similarity near a displacement, and where."""
    values = pair.at_offsets((offset + _SHIFTS).tolist(), part)
    best = max(zip(values, -np.abs(_SHIFTS), offset + _SHIFTS, strict=True))
    return best[0], float(best[2])


def _climbed(
    pair: _Frames, best: float, offset: float, part: Part, threshold: float
) -> tuple[float, float, Part]:
    """Hill climbing from a part, by smaller and smaller steps."""
    for step, gain in zip(_STEPS, _GAINS, strict=True):
        for _ in range(_MOST_MOVES):
            parts = _moved(part, step)
            value, moved = max(zip(pair.at_parts(offset, parts).tolist(), parts, strict=True))
            if value <= best:
                break
            best, part = value, moved
            if best + _FIRST_GAIN < threshold:
                return best, offset, part
        if step in _STEPS[::2]:
            best, offset = _displaced(pair, offset, part)
        if best + gain < threshold:
            break
    return best, offset, part


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


def _averaging(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Matrices (n, 16, 32) that average the pixels of intervals of the frame."""
    edges = (starts[:, None] + lengths[:, None] * _EDGES) * SIDE
    pixels = np.arange(SIDE)
    low, high = edges[:, :-1, None], edges[:, 1:, None]
    overlap = np.clip(np.minimum(high, pixels + 1) - np.maximum(low, pixels), 0, None)
    return (overlap / overlap.sum(axis=2, keepdims=True)).astype(np.float32)


def _cut(
    frames: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Parts of frames (T, 32, 32): pixels (P, 16, T, 16), and norms (P, T) without their mean.

    The order of the axes makes it two matrix products. Norms are at least those of flat parts.
    """
    count = len(frames)
    lines = frames.transpose(1, 0, 2).reshape(SIDE, -1)
    tall = (rows.reshape(-1, SIDE) @ lines).reshape(len(rows), -1, SIDE)  # (P, 16 * T, 32)
    cut = np.matmul(tall, columns.transpose(0, 2, 1)).reshape(len(rows), _FINE, count, _FINE)
    total = cut.sum(axis=(1, 3))
    squares = np.einsum("pinj,pinj->pn", cut, cut)
    norms = np.sqrt(np.maximum(squares - total**2 / _FINE**2, 0))
    return cut, np.maximum(norms, FLAT * _FINE)
