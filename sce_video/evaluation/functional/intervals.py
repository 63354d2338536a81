"""Confidence intervals of means over videos by the percentile bootstrap (Efron 1979).

Videos are drawn with replacement, a video always with all its rows (clips, windows), and the mean
is computed again for each draw; the interval ends at quantiles of these means. It tells how much
the number depends on which videos were tested, not on the seed of the training or of a probe.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000


def bootstrap_intervals(
    outcomes: np.ndarray,
    units: np.ndarray | None = None,
    classes: np.ndarray | None = None,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> np.ndarray | None:
    """Percentile bootstrap intervals of the mean of each column of ``outcomes``.

    scipy.stats.bootstrap draws rows, not units of several, and is an optional dependency here.

    Args:
        outcomes: (N, M), for example 1 where a sample is classified rightly, else 0.
        units: (N,) what is drawn: rows of equal values belong to one video. None: each row alone.
        classes: (N,) labels; the mean over rows becomes the mean of the class means, over the
            classes that occur in a draw.
        confidence: Between 0 and 1.
        resamples: Number of draws, the same ones for all columns.
        seed: Of the draws; the global random state is neither used nor changed.

    Returns:
        (M, 2) lower and upper ends; None for fewer than two units, of which there is no interval.

    Raises:
        ValueError: no rows, sizes that differ, values that are not finite, a confidence outside
            (0, 1), no resamples.
    """
    outcomes = np.asarray(outcomes, dtype=np.float64)
    _check(outcomes, units, classes, confidence, resamples)
    members = np.arange(len(outcomes))
    if units is not None:
        members = np.unique(units, return_inverse=True)[1].reshape(-1)
    count = int(members.max()) + 1
    if count < 2:
        return None
    mean = _row_mean(outcomes, members) if classes is None else _class_mean(outcomes, classes)
    random = np.random.default_rng(seed)
    means = np.empty((resamples, outcomes.shape[1]))
    for draw in range(resamples):
        times = np.bincount(random.integers(count, size=count), minlength=count)
        means[draw] = mean(times if classes is None else times[members])
    tail = (1 - confidence) / 2
    return np.quantile(means, [tail, 1 - tail], axis=0).T


def _row_mean(outcomes: np.ndarray, members: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The mean over all rows as a function of how often each unit was drawn."""
    sizes = np.bincount(members)
    sums = np.stack([np.bincount(members, weights=column) for column in outcomes.T], axis=1)
    return lambda times: (times @ sums) / (times @ sizes)


def _class_mean(outcomes: np.ndarray, classes: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The mean of the class means as a function of how often each row was drawn."""
    labels = np.unique(classes, return_inverse=True)[1].reshape(-1)

    def mean(times: np.ndarray) -> np.ndarray:
        sizes = np.bincount(labels, weights=times)
        drawn = sizes > 0
        sums = [np.bincount(labels, weights=times * column)[drawn] for column in outcomes.T]
        return (np.stack(sums) / sizes[drawn]).mean(axis=1)

    return mean


def _check(
    outcomes: np.ndarray,
    units: np.ndarray | None,
    classes: np.ndarray | None,
    confidence: float,
    resamples: int,
) -> None:
    if outcomes.ndim != 2 or outcomes.size == 0:
        raise ValueError(f"an interval needs outcomes (N, M), got shape {outcomes.shape}")
    for name, values in (("units", units), ("classes", classes)):
        if values is not None and np.shape(values) != (len(outcomes),):
            raise ValueError(f"{name} of shape {np.shape(values)} for {len(outcomes)} outcomes")
    if not np.isfinite(outcomes).all():
        row = int(np.nonzero(~np.isfinite(outcomes).all(axis=1))[0][0])
        raise ValueError(f"outcomes must be finite, those of row {row} are {outcomes[row]}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    if resamples < 1:
        raise ValueError(f"resamples must be 1 or more, got {resamples}")
