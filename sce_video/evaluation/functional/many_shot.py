"""Many-shot linear transfer: logistic regression whose C is chosen on a validation split.

The protocol of SimCLR (arXiv 2002.05709, appendix B.8.1) as in linusericsson/ssl-transfer,
``linear.py``, by which tab:many-shot of the paper was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sce_video.evaluation.functional.average_precision import average_precisions
from sce_video.evaluation.functional.scikit_learn import (
    check_matrix,
    convergence_is_not_expected,
    logistic_regression,
)

#: Values of C tried, strongest fit first: 1/w for 45 weights w from 1e-6 to 1e5.
C_GRID = tuple((1.0 / np.logspace(-6, 5, 45)).tolist())
#: top-1 accuracy; mean over classes of the accuracy; mean over classes of 11-point AP.
METRICS = ("top1", "mean_class", "map11")


class Labelled(NamedTuple):
    """Features and labels of a part of a data set.

    Attributes:
        features: (N, D), neither l2-normalised nor standardised.
        labels: (N,) class numbers; for "map11" (N, C) bool, the classes that an image shows.
    """

    features: np.ndarray
    labels: np.ndarray


class ManyShotResult(NamedTuple):
    """Outcome of :func:`many_shot`.

    Attributes:
        score: The metric on the test part (0 to 1), fitted on training and validation part.
        c: The chosen C.
        validation: Metric on the validation part for every C tried.
    """

    score: float
    c: float
    validation: dict[float, float]


def random_holdout(count: int, fraction: float = 0.2, seed: int = 0) -> np.ndarray:
    """(count,) bool: the rows held out for validation, where a set has no official split.

    The first ``floor(fraction * count)`` of the row numbers after ``numpy.random.seed(seed)`` and
    ``numpy.random.shuffle``, as in ssl-transfer.

    Raises:
        ValueError: none would be held out, or all.
    """
    indices = list(range(count))
    np.random.RandomState(seed).shuffle(indices)  # the global generator is not touched
    held = indices[: int(np.floor(fraction * count))]
    if not 0 < len(held) < count:
        raise ValueError(f"{fraction} of {count} training images is no validation split")
    mask = np.zeros(count, dtype=bool)
    mask[held] = True
    return mask


def many_shot(
    train: Labelled,
    val: Labelled,
    test: Labelled,
    metric: str = "top1",
    grid: Sequence[float] = C_GRID,
    max_iter: int = 100,
) -> ManyShotResult:
    """Fit on train for every C, choose on val, fit on both, score on test.

    Every fit starts from the solution of the one before and takes at most ``max_iter`` iterations
    of L-BFGS; on large sets that is not to convergence. Of equal validation scores the first C of
    the grid counts. The bias is not penalised. Test data are used for the last score only.

    Args:
        train: Training part.
        val: Validation part.
        test: Test part.
        metric: One of :data:`METRICS`.
        grid: Values of C in the order in which they are tried; with one there is no choice.
        max_iter: Maximum number of iterations per fit.

    Raises:
        ValueError: an unknown metric, an empty grid, parts that do not fit together.
        MissingPackageError: scikit-learn cannot be imported.
    """
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
    if not grid or min(grid) <= 0:
        raise ValueError(f"the grid of C must hold positive numbers, got {tuple(grid)}")
    parts = {"train": train, "validation": val, "test": test}
    train, val, test = (_checked(part, name, metric) for name, part in parts.items())
    classifier = logistic_regression(max_iter)
    validation: dict[float, float] = {}
    with convergence_is_not_expected():
        for c in grid if len(grid) > 1 else ():
            validation[c] = _fit_and_score(classifier, c, train, val, metric)
        best = max(validation, key=lambda c: validation[c]) if validation else grid[0]
        both = Labelled(*(np.concatenate(pair) for pair in zip(train, val, strict=True)))
        if not np.array_equal(np.unique(train.labels), np.unique(both.labels)):
            classifier = logistic_regression(max_iter)  # a start of another shape is refused
        score = _fit_and_score(classifier, best, both, test, metric)
    return ManyShotResult(score, best, validation)


def _checked(part: Labelled, name: str, metric: str) -> Labelled:
    """The part with features in float64, checked."""
    wanted = 2 if metric == "map11" else 1
    if part.labels.ndim != wanted:
        shape = "(N, C)" if wanted == 2 else "(N,)"
        raise ValueError(f"{name}: {metric} needs labels {shape}, got {part.labels.shape}")
    check_matrix(part.features, part.labels, name)
    return Labelled(part.features.astype(np.float64), part.labels)


def _fit_and_score(classifier: Any, c: float, fit: Labelled, part: Labelled, metric: str) -> float:
    if metric == "map11":
        scores = [
            _fit(classifier, c, fit.features, column).decision_function(part.features)
            for column in fit.labels.T
        ]
        return float(average_precisions(np.stack(scores, axis=1), part.labels).mean())
    predicted = _fit(classifier, c, fit.features, fit.labels).predict(part.features)
    hits = predicted == part.labels
    if metric == "top1":
        return float(hits.mean())
    classes = np.unique(part.labels)
    return float(np.mean([hits[part.labels == label].mean() for label in classes]))


def _fit(classifier: Any, c: float, features: np.ndarray, labels: np.ndarray) -> Any:
    """The classifier fitted with ``multi_class="multinomial"``, whatever scikit-learn's version.

    Of two classes ssl-transfer's multinomial model penalises a weight vector for each, which are
    w/2 and -w/2: the binary model, which newer versions fit, with 2 C.
    """
    count = len(np.unique(labels))
    if count < 2:
        raise ValueError("all training images are of one class, or none shows a class")
    return classifier.set_params(C=2 * c if count == 2 else c).fit(features, labels)
