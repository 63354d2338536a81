"""Test whether two aligned videos show the same moment, based on what changes in them.

Frames of a fixed camera at two times correlate almost perfectly, because most of each frame is
background. Therefore only the differences from the common mean of both videos are compared. People
who walk elsewhere reduce the agreement, and so does a clock that shows another time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sce_video.curation.matching import FINE, WHOLE, Alignment, Part, Thumbnails, cut_part
from sce_video.datasets.clip_sampling import shown_at

#: Minimum agreement of changes in two copies (measured in docs/curate.md).
SAME_CHANGES = 0.78
#: Numbers of seconds by which each round may shift an alignment.
_SHIFTS = np.arange(-6, 7, 2) / 64


@dataclass(frozen=True)
class _MomentSettings:
    """Settings for comparing changes in two aligned videos. The values were chosen by hand."""

    #: Maximum number of frames to compare, at equal steps over the time that both videos show.
    frames: int = 32
    #: Maximum number of rounds, each of which aligns in time and place.
    rounds: int = 3
    #: If the agreement is below this value, another round cannot reach ``SAME_CHANGES``.
    promising: float = 0.5
    #: Number of seconds on either side of a frame for computing the time derivative. It is one
    #: frame at the highest rate of thumbnails.
    instant: float = 1 / 32
    #: A part counts as whole if its distance from the border is at most this fraction of the frame.
    border: float = 0.01
    #: Fraction of the difference between neighbouring pixels by which the means of the two videos
    #: may differ in a part. They differ, because the part's edges lie between the pixels of a
    #: thumbnail.
    tolerance: float = 0.25
    #: Maximum movement of a part in one round, as a fraction of its side.
    most_moved: float = 0.1
    #: Nothing moves if the frame difference's standard deviation in grey levels is below this.
    still: float = 0.5


_MOMENT = _MomentSettings()


@dataclass(frozen=True)
class _Agreement:
    """Agreement of two videos at an alignment."""

    value: float  # agreement of the differences from the common mean
    changes: float  # agreement of only the changes over time
    nearby: Part  # part in which the frames would correlate more


def same_moment(outer: Thumbnails, inner: Thumbnails, start: Alignment) -> Alignment:
    """Find the best agreement of the moving parts at or near an alignment, and add it there.

    With the differences a and b of the two videos from their common mean, and the residual r after
    explaining one video by the other, the agreement is 1 - |r|^2 / (|a|^2 + |b|^2). It is 1 for
    equal videos, about 0 for other movements before the same background, and less if something
    that does not move differs. It is 0 if nothing moves.

    Args:
        outer: Video that contains the other one.
        inner: The other video.
        start: Alignment of the inner video in the outer one.
    """
    offset, part = start.offset, start.part
    best = _agreement(outer, inner, offset, part)
    for _ in range(_MOMENT.rounds):
        tried = {
            offset + shift: _agreement(outer, inner, offset + shift, part) for shift in _SHIFTS
        }
        offset = max(tried, key=lambda moved: (tried[moved].changes, -abs(moved - offset)))
        best = max(best, tried[offset], key=lambda found: found.changes)
        moved = _agreement(outer, inner, offset, tried[offset].nearby)
        if best.changes < _MOMENT.promising or moved.changes <= best.changes:
            break
        best, part = moved, tried[offset].nearby
    return replace(start, changes=best.value)


def _agreement(outer: Thumbnails, inner: Thumbnails, offset: float, part: Part) -> _Agreement:
    """Compare up to 32 frames of two videos at a displacement in time and a part."""
    moments = (inner.times + np.append(inner.times[1:], inner.end)) / 2 + offset
    common = np.flatnonzero((moments >= 0) & (moments < outer.end))
    if len(common) < 2:
        return _Agreement(0.0, 0.0, part)
    steps = np.linspace(0, len(common) - 1, min(len(common), _MOMENT.frames))
    chosen = common[steps.round().astype(int)]
    times = moments[chosen] + np.array([[0.0], [-_MOMENT.instant], [_MOMENT.instant]])
    numbers = shown_at(outer.times, times.clip(0, outer.times[-1]).ravel())
    # Use float64, because the least-squares fit subtracts nearly equal numbers.
    shown = cut_part(outer.frames[numbers], part, FINE).astype(np.float64)
    theirs, before, after = np.split(shown, 3)
    ours = cut_part(inner.frames[chosen], WHOLE, FINE).astype(np.float64)
    fitted, nearby = _fitted(ours, theirs, after - before, part)
    mean = ours.mean(axis=0)
    differ = mean - fitted.mean(axis=0)
    left, top, wide, high = part
    if max(left, top, 1 - left - wide, 1 - top - high) > _MOMENT.border:
        # Tolerate differences at edges, because resampling moves them by a fraction of a pixel.
        wide_mean = np.pad(mean, 1, mode="edge")
        sides = wide_mean[2:, 1:-1], wide_mean[:-2, 1:-1], wide_mean[1:-1, 2:], wide_mean[1:-1, :-2]
        contrast = np.abs(np.stack(sides) - mean).max(axis=0)
        differ = np.maximum(np.abs(differ) - _MOMENT.tolerance * contrast, 0)
    a, b = ours - mean, fitted - fitted.mean(axis=0)
    product, energy = 2 * float((a * b).sum()), float((a**2).sum() + (b**2).sum())
    still = len(ours) * float((differ**2).sum()) / 2
    least = 2 * _MOMENT.still**2 * a.size
    value = (product - still) / max(energy + still, least)
    return _Agreement(value, product / max(energy, least), nearby)


def _fitted(
    ours: np.ndarray, theirs: np.ndarray, motion: np.ndarray, part: Part
) -> tuple[np.ndarray, Part]:
    """Explain the frames of one video by those of the other one, and move the part accordingly.

    Least squares fits contrast, brightness, displacement and scale along both axes, sharpness, and
    a displacement in time, with one value for all frames. These cannot explain other movements.
    """
    down, across = np.gradient(theirs, axis=(1, 2))
    place = (np.arange(FINE) + 0.5) / FINE - 0.5
    padded = np.pad(theirs, ((0, 0), (1, 1), (1, 1)), mode="edge")
    around = padded[:, 2:, 1:-1] + padded[:, :-2, 1:-1] + padded[:, 1:-1, 2:] + padded[:, 1:-1, :-2]
    terms = [theirs, np.ones_like(theirs), across, down, across * place, down * place[:, None]]
    rows = np.stack([term.ravel() for term in (*terms, around - 4 * theirs, motion)])
    square = rows @ rows.T
    square[np.diag_indices(len(square))] *= 1 + 1e-6
    square[np.diag_indices(len(square))] += 1e-6
    weights = np.linalg.solve(square, rows @ ours.ravel())
    most = _MOMENT.most_moved
    moves = (weights[2:6] / max(weights[0], 0.5) / FINE).clip(-most, most)
    size = np.array(part[2:]) * (1 + moves[2:])
    begin = np.array(part[:2]) + np.array(part[2:]) * (0.5 + moves[:2]) - size / 2
    end = np.minimum(begin + size, 1)
    begin = np.maximum(begin, 0)
    (left, top), (wide, high) = begin.tolist(), (end - begin).tolist()
    return (weights @ rows).reshape(ours.shape), (left, top, wide, high)
