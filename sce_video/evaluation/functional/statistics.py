"""Accuracies of class scores, their bootstrap intervals, and paired tests of two models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

#: Confidence level of all intervals.
CONFIDENCE = 0.95
#: Significance level of all tests.
ALPHA = 0.05
#: Default number of bootstrap resamples.
RESAMPLES = 2000
_BLOCK = 2_000_000  # number of values drawn at a time
#: Number of sign flips in the permutation test. The smallest p-value is 1 / (PERMUTATIONS + 1).
PERMUTATIONS = 10_000
_FLIPS = 500  # number of sign flips in memory at a time


def check_class_numbers(
    labels: Tensor, count: int, name: str, num_classes: int | None = None
) -> None:
    """Raise ValueError unless ``labels`` is (count,) integers in 0 to ``num_classes`` - 1."""
    if labels.shape != (count,) or labels.is_floating_point():
        raise ValueError(
            f"{name} must be {count} integers, got shape {tuple(labels.shape)} of {labels.dtype}"
        )
    wrong = labels < 0
    if num_classes is not None:
        wrong = wrong | (labels >= num_classes)
    if bool(wrong.any()):
        first = int(torch.nonzero(wrong)[0])
        limit = "" if num_classes is None else f" and below {num_classes}"
        raise ValueError(
            f"{name}: {int(wrong.sum())} labels are out of range, the first is "
            f"{int(labels[first])} at row {first}; labels must be from 0{limit} (-1 means none)"
        )


def check_ranks(ks: Sequence[int]) -> None:
    """Raise ValueError unless ``ks`` contains ranks and all of them are at least 1."""
    if not ks or min(ks) < 1:
        raise ValueError(f"ks must be ranks of 1 or more, got {tuple(ks)}")


def top_k_hits(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    """Return whether the true class is among the k classes with the highest scores, (N,) bool.

    ``scores`` are (N, number of classes) and ``labels`` (N,). If classes have equal scores, the one
    with the lowest index ranks first. A class with a score of -inf is never a hit. ValueError is
    raised if ``k < 1`` or a label is not an integer below the number of classes.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    check_class_numbers(labels, len(scores), "labels", scores.shape[1])
    own = scores.gather(1, labels[:, None])
    classes = torch.arange(scores.shape[1], device=scores.device)
    before = (scores > own) | ((scores == own) & (classes < labels[:, None]))
    return (before.sum(dim=1) < k) & (own[:, 0] > float("-inf"))


def top_k_accuracy(scores: Tensor, labels: Tensor, ks: Sequence[int] = (1, 5)) -> dict[int, float]:
    """Compute the top-k accuracy (0 to 1) for every k in ``ks`` (see :func:`top_k_hits`)."""
    return {k: float(top_k_hits(scores, labels, k).double().mean()) for k in ks}


def mean_class_accuracy(scores: Tensor, labels: Tensor) -> float:
    """Average the classes' top-1 accuracies (0 to 1) over the classes that occur in ``labels``."""
    hits = top_k_hits(scores, labels, 1).double()
    return float(torch.stack([hits[labels == c].mean() for c in labels.unique()]).mean())


def group_ids(paths: Sequence[str], pattern: str) -> tuple[Tensor, list[str]]:
    r"""Extract the group of every path, for leave-one-group-out evaluation.

    The pattern is a regular expression with one group, which is searched in the path:
    ``r"person(\d+)"``. Return group numbers (N,) int64 and the groups' names in order of their
    numbers.

    Raises:
        ValueError: If the pattern does not have exactly one group, a path does not match, or there
            are fewer than two groups.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"group_pattern {pattern!r} is not a valid regular expression: {error}"
        ) from None
    if compiled.groups != 1:
        raise ValueError(
            f"group_pattern {pattern!r} must contain one group, but contains {compiled.groups}"
        )
    found = [compiled.search(path) for path in paths]
    unmatched = [path for path, match in zip(paths, found, strict=True) if match is None]
    if unmatched:
        raise ValueError(
            f"group_pattern {pattern!r} matches nothing in {len(unmatched)} of {len(paths)} "
            f"paths, the first is {unmatched[0]!r}"
        )
    values = [match.group(1) for match in found if match is not None]
    names = sorted(set(values))
    if len(names) < 2:
        raise ValueError(
            f"group_pattern {pattern!r} finds only the group {names}, but two are needed"
        )
    number = {name: i for i, name in enumerate(names)}
    return torch.tensor([number[value] for value in values]), names


def pair_accuracy(scores: Tensor, labels: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Compute how accurately scores decide between the two classes of each pair.

    For samples of both classes, the class of the pair with the higher score is predicted, and equal
    scores count half. A pair's accuracy is the mean of its classes' accuracies. It is therefore 0.5
    for a classifier that always predicts the same class, regardless of the numbers of samples.

    ``scores`` are (N, number of classes). Return (P,) float64, from 0 to 1, for P pairs of labels.
    ValueError is raised if a label is out of range or a class of a pair has no samples.
    """
    check_class_numbers(labels, len(scores), "labels", scores.shape[1])
    accuracies = []
    for pair in pairs:
        sides = []
        for own, other in (pair, pair[::-1]):
            rows = scores[labels == own]
            if len(rows) == 0:
                raise ValueError(f"class {own} of the pair {tuple(pair)} has no samples")
            hits = (rows[:, own] > rows[:, other]).double()
            sides.append((hits + 0.5 * (rows[:, own] == rows[:, other])).mean())
        accuracies.append(torch.stack(sides).mean())
    return torch.stack(accuracies) if accuracies else torch.empty(0, dtype=torch.float64)


# -- intervals and tests ---------------------------------------------------------------------------


def times_drawn(random: np.random.Generator, draws: int, count: int) -> np.ndarray:
    """Return how often each of ``count`` units is drawn in each resample, (draws, count)."""
    # Offset each draw by its own multiple of count, so that one bincount counts them separately.
    drawn = random.integers(count, size=(draws, count)) + count * np.arange(draws)[:, None]
    return np.bincount(drawn.reshape(-1), minlength=draws * count).reshape(draws, count)


def percentile_ends(means: np.ndarray) -> np.ndarray:
    """Return the lower and upper ends (2, ...) of the intervals of means (draws, ...)."""
    tail = (1 - CONFIDENCE) / 2
    return np.quantile(means, [tail, 1 - tail], axis=0)


def bootstrap_intervals(
    outcomes: np.ndarray,
    units: np.ndarray | None = None,
    classes: np.ndarray | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> np.ndarray | None:
    """Compute percentile bootstrap intervals of the mean of each column of ``outcomes``.

    scipy.stats.bootstrap resamples single rows instead of units, and is an optional dependency.

    Args:
        outcomes: (N, M), for example 1 if a sample is classified correctly, else 0.
        units: (N,) resampled units. Rows with equal values belong to one unit, such as a video.
            None resamples single rows.
        classes: (N,) labels. The statistic becomes the mean of the class means over the classes
            that occur in a draw. None averages over rows.
        resamples: Number of draws, which all columns share.
        seed: Random seed of the draws.

    Returns:
        (M, 2) lower and upper ends; None if there are fewer than two units.
    """
    outcomes = np.asarray(outcomes, dtype=np.float64)
    if not np.isfinite(outcomes).all():
        row = int(np.nonzero(~np.isfinite(outcomes).all(axis=1))[0][0])
        raise ValueError(f"outcomes must be finite, but row {row} has {outcomes[row]}")
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
        times = times_drawn(random, draws, count)[:, members].astype(np.float64)
        total, seen = np.zeros((draws, outcomes.shape[1])), np.zeros((draws, 1))
        # If a class was not drawn, average over the other classes.
        for rows in parts:
            sizes = times[:, rows].sum(axis=1, keepdims=True)
            total += (times[:, rows] @ outcomes[rows]) / np.maximum(sizes, 1)
            seen += sizes > 0
        means.append(total / seen)
    return percentile_ends(np.concatenate(means)).T


def mean_interval(
    values: np.ndarray, units: np.ndarray | None = None, classes: np.ndarray | None = None
) -> tuple[float, float] | None:
    """Return the ends of :func:`bootstrap_intervals` for a single column (N,)."""
    ends = bootstrap_intervals(values[:, None], units, classes)
    return None if ends is None else (float(ends[0, 0]), float(ends[0, 1]))


def paired_differences(
    first: np.ndarray,
    second: np.ndarray,
    units: np.ndarray | None = None,
    classes: np.ndarray | None = None,
    *,
    centred: bool = False,
) -> np.ndarray:
    """Return each unit's contribution to mean(second) - mean(first).

    ``first`` and ``second`` (N,) are outcomes of the same samples in the same order. ``units`` and
    ``classes`` have the same meaning as in :func:`bootstrap_intervals`. The contributions (number
    of units,) sum to the difference of means. With ``centred``, the mean difference of a class is
    subtracted from the differences of its samples.
    """
    values = np.subtract(second, first, dtype=np.float64)
    labels = np.zeros(len(values), dtype=np.int64)
    if classes is not None:
        labels = np.unique(classes, return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(labels)
    if centred:
        values = values - (np.bincount(labels, weights=values) / sizes)[labels]
    # In a mean of class means, a sample's weight is 1 / (classes * size of its class).
    parts = values / (len(sizes) * sizes[labels])
    if units is None:
        return parts
    members = np.unique(units, return_inverse=True)[1].reshape(-1)
    return np.bincount(members, weights=parts)


def paired_p_value(differences: np.ndarray) -> float:
    """Return the two-sided p-value of the hypothesis that both models are equal on each unit.

    Under this hypothesis, each difference is as likely as its negative. If all nonzero differences
    have the same size, as for accuracies, this is McNemar's exact test (McNemar 1947). It uses the
    binomial distribution of the units that only one model classifies correctly. Otherwise the
    signs are flipped at random (Fisher's permutation test), and the observed signs count as one
    flip.
    """
    changed = differences[differences != 0]
    if len(changed) == 0:
        return 1.0
    sizes = np.abs(changed)
    if np.ptp(sizes) <= 1e-9 * sizes.max():
        return mcnemar_p_value(int((changed > 0).sum()), int((changed < 0).sum()))
    observed = abs(changed.sum()) - 1e-9 * sizes.sum()  # tolerate rounding errors of the sums
    random = np.random.default_rng(0)
    extreme = 0
    for _ in range(0, PERMUTATIONS, _FLIPS):
        signs = 2 * random.integers(2, size=(_FLIPS, len(changed)), dtype=np.int8) - 1
        extreme += int((np.abs(signs @ changed) >= observed).sum())
    return (1 + extreme) / (1 + PERMUTATIONS)


@dataclass(frozen=True)
class PairedChange:
    """Change of a mean from one model to another on the same samples.

    Attributes:
        change: Mean of the second model minus mean of the first.
        interval: 95 % interval of the change; None with fewer than two units.
        p_value: p-value of the hypothesis that both models are equal on each unit.
    """

    change: float
    interval: tuple[float, float] | None
    p_value: float

    @property
    def shown(self) -> bool:
        """Whether the interval does not contain 0, and the test rejects equality.

        The interval alone is not enough. With few units, or few samples that only one model
        classifies correctly, resampling them underestimates the spread.
        """
        apart = self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]
        return apart and self.p_value < ALPHA


def paired_change(
    first: np.ndarray,
    second: np.ndarray,
    units: np.ndarray | None = None,
    classes: np.ndarray | None = None,
) -> PairedChange:
    """Compare two models, with the arguments of :func:`paired_differences`."""
    parts = paired_differences(first, second, units, classes)
    interval = mean_interval(np.subtract(second, first, dtype=np.float64), units, classes)
    return PairedChange(float(parts.sum()), interval, paired_p_value(parts))


def seeds_test(
    first: np.ndarray,
    second: np.ndarray,
    units: np.ndarray | None = None,
    classes: np.ndarray | None = None,
) -> PairedChange:
    """Compare two settings trained with several seeds.

    The 95 % interval of the difference and the two-sided p-value generalise to other seeds and
    other videos. Runs and videos are random draws, and all runs use the same videos. This is the
    model of readers and cases by Obuchowski and Rockette (1995), with readers nested in the
    treatment. The difference of the means over runs has the variance ::

        spread / runs of both settings + max(0, variance over videos - noise / runs of both)

    The noise of single runs on single videos is part of the spread and of the variance over videos,
    so it is subtracted once. Student's t has the degrees of freedom of Satterthwaite (1946), which
    are close to the number of runs if the spread of the runs dominates. A setting with one run is
    assumed to spread like the other setting.

    ``first`` and ``second`` are outcomes (runs, N) of the same samples. At least one setting must
    have two or more runs, and there must be two or more units (see :func:`bootstrap_intervals`).
    """
    from scipy.special import stdtr, stdtrit  # imported here because it takes 0.4 s

    means, centres, spread, noise = [], [], [], []
    videos = units, classes
    for runs in (first, second):
        none = np.zeros(runs.shape[1])
        means.append(np.array([paired_differences(none, run, *videos).sum() for run in runs]))
        own = np.stack([paired_differences(none, run, *videos, centred=True) for run in runs])
        scale = own.shape[1] / (own.shape[1] - 1)
        centres.append(own.mean(axis=0))
        if len(runs) > 1:
            spread.append(means[-1].var(ddof=1))
            noise.append(scale * own.var(axis=0, ddof=1).sum())
    # For a setting with only one run, use the other setting's spread.
    counts = np.array([len(first), len(second)])
    terms = np.resize(spread, 2) / counts
    over_videos = scale * ((centres[1] - centres[0]) ** 2).sum()
    rest = max(0.0, over_videos - (np.resize(noise, 2) / counts).sum())
    change, variance = float(means[1].mean() - means[0].mean()), float(terms.sum() + rest)
    if variance <= 1e-18:  # no spread over runs, and the same difference in all videos
        parts = paired_differences(first.mean(axis=0), second.mean(axis=0), *videos)
        return PairedChange(change, (change, change), paired_p_value(parts))
    known = counts[counts > 1] - 1
    if len(known) < 2:
        terms = terms.sum(keepdims=True)
    freedom = variance**2 / ((terms**2 / known).sum() + rest**2 / (len(centres[0]) - 1))
    width = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * variance**0.5
    p_value = 2 * float(stdtr(freedom, -abs(change) / variance**0.5))
    return PairedChange(change, (change - width, change + width), p_value)


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Return McNemar's exact two-sided p-value.

    ``only_first`` and ``only_second`` count the videos that only one model classifies correctly.
    The p-value is twice the binomial tail of the rarer case, at most 1.
    """
    count, term, tail = only_first + only_second, 1, 0
    for i in range(min(only_first, only_second) + 1):  # integers need no rounding or SciPy
        tail += term
        term = term * (count - i) // (i + 1)
    return min(1.0, 2 * tail / 2**count)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple tests (Holm 1979), in the given order.

    If all tests with an adjusted p-value below alpha are called significant, the probability of one
    or more false positives is at most alpha, even if the tests depend on each other.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
