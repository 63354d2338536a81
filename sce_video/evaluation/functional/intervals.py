"""Confidence intervals of means over videos by the percentile bootstrap (Efron 1979).

Videos are drawn with replacement, a video always with all its rows (clips, windows), and the mean
is computed again for each draw; the interval ends at quantiles of these means. It tells how much
the number depends on which videos were tested, not on the seed of the training or of a probe.
"""

from __future__ import annotations

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000
_BLOCK = 2_000_000  # numbers drawn at a time


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
    random = np.random.default_rng(seed)
    means = []
    block = max(1, _BLOCK // len(outcomes))
    for start in range(0, resamples, block):
        draws = min(block, resamples - start)
        drawn = random.integers(count, size=(draws, count)) + count * np.arange(draws)[:, None]
        times = np.bincount(drawn.reshape(-1), minlength=draws * count).reshape(draws, count)
        means.append(_means(outcomes, classes, times[:, members].astype(np.float64)))
    tail = (1 - confidence) / 2
    return np.quantile(np.concatenate(means), [tail, 1 - tail], axis=0).T


def _means(outcomes: np.ndarray, classes: np.ndarray | None, times: np.ndarray) -> np.ndarray:
    """The mean of the class means (draws, M) where row i was drawn ``times[:, i]`` times."""
    parts: list = [slice(None)]
    if classes is not None:
        parts = [np.nonzero(classes == label)[0] for label in np.unique(classes)]
    total, seen = np.zeros((len(times), outcomes.shape[1])), np.zeros((len(times), 1))
    for rows in parts:
        sizes = times[:, rows].sum(axis=1, keepdims=True)
        total += (times[:, rows] @ outcomes[rows]) / np.maximum(sizes, 1)  # 0 of a class not drawn
        seen += sizes > 0
    return total / seen


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
