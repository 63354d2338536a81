"""Long curves reduced to what a screen can show, spikes included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Bins of a long curve: more than a wide screen has pixels for.
MAX_BINS = 1000
#: Curves with at most this many points are kept as they are.
MAX_POINTS = 2 * MAX_BINS


@dataclass(frozen=True)
class Points:
    """A curve.

    Attributes:
        x: (n,) iterations.
        y: (n,) values, of a reduced curve the mean of each bin; NaN where none is finite.
        low: (n,) smallest value of each bin; None of a curve that was not reduced.
        high: (n,) largest value, likewise.
        not_finite: Values that were NaN or infinite.
    """

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    not_finite: int = 0


def reduced(
    x: Sequence[float], y: Sequence[float], span: tuple[float, float] | None = None
) -> Points:
    """The points of a curve, or of a long one the mean, minimum and maximum of each bin.

    Bins are equally wide on ``span``, so that curves of one log share their x: the middle of each
    bin that holds a point.

    Args:
        x: n iterations in increasing order.
        y: n values.
        span: First and last iteration of all curves of the log; None for those of ``x``.
    """
    at, values = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    finite = np.isfinite(values)
    wrong = int((~finite).sum())
    if len(at) <= MAX_POINTS:
        return Points(at, np.where(finite, values, np.nan), not_finite=wrong)
    first, last = span or (at[0], at[-1])
    width = (last - first) / MAX_BINS or 1.0
    bins = np.clip(((at - first) / width).astype(np.int64), 0, MAX_BINS - 1)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    counts = np.add.reduceat(finite.astype(np.float64), starts)
    sums = np.add.reduceat(np.where(finite, values, 0.0), starts)
    low = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
    high = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
    some = counts > 0
    middle = first + (bins[starts] + 0.5) * width
    mean = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=some)
    low, high = np.where(some, low, np.nan), np.where(some, high, np.nan)
    return Points(middle, mean, low, high, wrong)
