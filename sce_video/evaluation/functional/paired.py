"""Paired tests of two models on the same videos, and the correction for several of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Sign flips of the permutation test; the smallest p-value is one over this plus one.
PERMUTATIONS = 10_000
_BLOCK = 500


def paired_differences(
    first: np.ndarray,
    second: np.ndarray,
    units: np.ndarray | None = None,
    classes: np.ndarray | None = None,
) -> np.ndarray:
    """What each video contributes to mean(second) - mean(first).

    Args:
        first: (N,) outcomes of one model.
        second: (N,) of the other, of the same samples in the same order.
        units: (N,) rows of equal values belong to one video. None: each row alone.
        classes: (N,) labels, where the means are means of class means.

    Returns:
        (number of units,), their sum is the difference of the means.

    Raises:
        ValueError: no rows, or sizes that differ.
    """
    first, second = (np.asarray(v, dtype=np.float64) for v in (first, second))
    if first.ndim != 1 or len(first) == 0 or first.shape != second.shape:
        raise ValueError(
            f"paired outcomes must be two vectors of one length, got {first.shape} and "
            f"{second.shape}"
        )
    weights = np.full(len(first), 1 / len(first))
    if classes is not None:
        _, labels, sizes = np.unique(classes, return_inverse=True, return_counts=True)
        weights = 1 / (len(sizes) * sizes[labels.reshape(-1)])
    change = (second - first) * weights
    if units is None:
        return change
    members = np.unique(units, return_inverse=True)[1].reshape(-1)
    return np.bincount(members, weights=change)


def paired_p_value(
    differences: np.ndarray, *, permutations: int = PERMUTATIONS, seed: int = 0
) -> float:
    """Two-sided p-value of "both models are equally good on each video".

    Under it each difference is as likely as its negative. Where all differences that are not 0
    have one size, as for accuracies, this is McNemar's exact test (McNemar 1947): the binomial
    distribution of the videos that only one of the two classifies rightly. Otherwise the signs are
    flipped at random (Fisher's permutation test), and the observed signs count as one flip.

    Args:
        differences: See :func:`paired_differences`.
        permutations: Number of random flips.
        seed: Of the flips; the global random state is neither used nor changed.
    """
    changed = differences[differences != 0]
    if len(changed) == 0:
        return 1.0
    sizes = np.abs(changed)
    if np.ptp(sizes) <= 1e-9 * sizes.max():
        return mcnemar_p_value(int((changed > 0).sum()), int((changed < 0).sum()))
    observed = abs(changed.sum()) - 1e-9 * sizes.sum()  # sums in another order are as extreme
    random = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, permutations, _BLOCK):
        shape = min(_BLOCK, permutations - start), len(changed)
        signs = 2 * random.integers(2, size=shape, dtype=np.int8) - 1
        extreme += int((np.abs(signs @ changed) >= observed).sum())
    return (1 + extreme) / (1 + permutations)


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """McNemar's exact two-sided p-value: twice the binomial tail of the rarer case, at most 1.

    Args:
        only_first: Videos that only the first model classifies rightly.
        only_second: Videos that only the second classifies rightly.
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
