"""Bootstrap intervals, paired tests of two models on the same videos, correction for several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000
_BLOCK = 2_000_000  # numbers drawn at a time
#: Sign flips of the permutation test; the smallest p-value is one over this plus one.
PERMUTATIONS = 10_000
_FLIPS = 500  # at a time


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
        seed: Of the draws.

    Returns:
        (M, 2) lower and upper ends; None for fewer than two units, of which there is no interval.
    """
    outcomes = np.asarray(outcomes, dtype=np.float64)
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
    members = np.arange(len(outcomes))
    if units is not None:
        members = np.unique(units, return_inverse=True)[1].reshape(-1)
    count = int(members.max()) + 1
    if count < 2:
        return None
    parts: list = [slice(None)]
    if classes is not None:
        parts = [np.nonzero(classes == label)[0] for label in np.unique(classes)]
    random = np.random.default_rng(seed)
    means = []
    block = max(1, _BLOCK // len(outcomes))
    for start in range(0, resamples, block):
        draws = min(block, resamples - start)
        # Offsets of count for each draw: one bincount then counts all draws apart.
        drawn = random.integers(count, size=(draws, count)) + count * np.arange(draws)[:, None]
        times = np.bincount(drawn.reshape(-1), minlength=draws * count).reshape(draws, count)
        times = times[:, members].astype(np.float64)
        total, seen = np.zeros((draws, outcomes.shape[1])), np.zeros((draws, 1))
        # Where a class was not drawn, the mean is that of the others.
        for rows in parts:
            sizes = times[:, rows].sum(axis=1, keepdims=True)
            total += (times[:, rows] @ outcomes[rows]) / np.maximum(sizes, 1)
            seen += sizes > 0
        means.append(total / seen)
    tail = (1 - confidence) / 2
    return np.quantile(np.concatenate(means), [tail, 1 - tail], axis=0).T


def paired_differences(
    first: np.ndarray,
    second: np.ndarray,
    units: np.ndarray | None = None,
    classes: np.ndarray | None = None,
) -> np.ndarray:
    """What each video contributes to mean(second) - mean(first).

    Outcomes are (N,), of the same samples in the same order; units and classes are those of
    :func:`bootstrap_intervals`. Returns (number of units,): their sum is the difference of means.
    Raises ValueError: no rows, or sizes that differ.
    """
    first, second = (np.asarray(v, dtype=np.float64) for v in (first, second))
    if first.ndim != 1 or len(first) == 0 or first.shape != second.shape:
        raise ValueError(
            f"paired outcomes must be two vectors of one length, got {first.shape} and "
            f"{second.shape}"
        )
    return _by_unit(second - first, units, classes)


def _by_unit(
    values: np.ndarray,
    units: np.ndarray | None,
    classes: np.ndarray | None,
    centred: bool = False,
) -> np.ndarray:
    """What each unit adds to the mean of values (N,); ``centred``, less the mean of their class."""
    labels = np.zeros(len(values), dtype=np.int64)
    if classes is not None:
        labels = np.unique(classes, return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(labels)
    if centred:
        values = values - (np.bincount(labels, weights=values) / sizes)[labels]
    # A mean of class means gives each sample the weight 1 / (classes * size of its class).
    parts = values / (len(sizes) * sizes[labels])
    if units is None:
        return parts
    members = np.unique(units, return_inverse=True)[1].reshape(-1)
    return np.bincount(members, weights=parts)


def paired_p_value(differences: np.ndarray) -> float:
    """Two-sided p-value of "both models are equally good on each video".

    Under it each difference is as likely as its negative. Where all differences that are not 0
    have one size, as for accuracies, this is McNemar's exact test (McNemar 1947): the binomial
    distribution of the videos that only one of the two classifies rightly. Otherwise the signs are
    flipped at random (Fisher's permutation test), and the observed signs count as one flip.
    """
    changed = differences[differences != 0]
    if len(changed) == 0:
        return 1.0
    sizes = np.abs(changed)
    if np.ptp(sizes) <= 1e-9 * sizes.max():
        return mcnemar_p_value(int((changed > 0).sum()), int((changed < 0).sum()))
    observed = abs(changed.sum()) - 1e-9 * sizes.sum()  # sums in another order are as extreme
    random = np.random.default_rng(0)
    extreme = 0
    for _ in range(0, PERMUTATIONS, _FLIPS):
        signs = 2 * random.integers(2, size=(_FLIPS, len(changed)), dtype=np.int8) - 1
        extreme += int((np.abs(signs @ changed) >= observed).sum())
    return (1 + extreme) / (1 + PERMUTATIONS)


def seeds_test(
    first: np.ndarray,
    second: np.ndarray,
    units: np.ndarray | None = None,
    classes: np.ndarray | None = None,
    *,
    confidence: float = CONFIDENCE,
) -> tuple[tuple[float, float], float]:
    """Interval and two-sided p-value of the difference of two settings trained with several seeds.

    Both are about other seeds and other videos. Runs and videos are drawn at random, and all runs
    see the same videos: the readers and cases of Obuchowski and Rockette (1995), with readers
    nested in the treatment. The variance of the difference of the means over runs is ::

        spread / runs of both settings + max(0, variance over videos - noise / runs of both)

    where the noise, of single runs on single videos, is what both other terms contain. Student's t
    has the degrees of freedom of Satterthwaite (1946), nearly those of the runs where their spread
    decides. A setting of one run is taken to spread as the other does.

    Outcomes are (runs, N), of the same samples; one of the two settings has two runs or more, and
    there are two or more different units (as of :func:`bootstrap_intervals`).
    """
    from scipy.special import stdtr, stdtrit  # 0.4 s

    means, centres, spread, noise = [], [], [], []
    for runs in (first, second):
        values = np.asarray(runs, dtype=np.float64)
        means.append(np.array([_by_unit(run, units, classes).sum() for run in values]))
        own = np.stack([_by_unit(run, units, classes, centred=True) for run in values])
        scale = own.shape[1] / (own.shape[1] - 1)
        centres.append(own.mean(axis=0))
        if len(values) > 1:
            spread.append(means[-1].var(ddof=1))
            noise.append(scale * own.var(axis=0, ddof=1).sum())
    # A setting of one run borrows the spread of the other.
    counts = np.array([len(first), len(second)])
    terms = np.resize(spread, 2) / counts
    over_videos = scale * ((centres[1] - centres[0]) ** 2).sum()
    rest = max(0.0, over_videos - (np.resize(noise, 2) / counts).sum())
    change, variance = float(means[1].mean() - means[0].mean()), float(terms.sum() + rest)
    if variance <= 1e-18:  # no run and no video differs from another
        return (change, change), paired_p_value(
            paired_differences(np.mean(first, axis=0), np.mean(second, axis=0), units, classes)
        )
    known = counts[counts > 1] - 1
    if len(known) < 2:
        terms = terms.sum(keepdims=True)
    freedom = variance**2 / ((terms**2 / known).sum() + rest**2 / (len(centres[0]) - 1))
    width = float(stdtrit(freedom, (1 + confidence) / 2)) * variance**0.5
    p_value = 2 * float(stdtr(freedom, -abs(change) / variance**0.5))
    return (change - width, change + width), p_value


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """McNemar's exact two-sided p-value of the videos that only one model classifies rightly.

    Twice the binomial tail of the rarer case, at most 1.
    """
    count, term, tail = only_first + only_second, 1, 0
    for i in range(min(only_first, only_second) + 1):  # whole numbers: no rounding, no scipy
        tail += term
        term = term * (count - i) // (i + 1)
    return min(1.0, 2 * tail / 2**count)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for being several (Holm 1979), in the given order.

    Calling those below alpha differences is wrong once or more with a probability of alpha at most,
    whatever the dependence of the tests.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
