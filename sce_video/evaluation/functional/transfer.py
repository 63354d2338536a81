"""The two transfer protocols on frozen features, of scikit-learn's linear classifiers.

Many-shot: logistic regression whose C is chosen on a validation split; SimCLR (arXiv 2002.05709,
appendix B.8.1) as in linusericsson/ssl-transfer, ``linear.py``, by which tab:many-shot of the paper
was made. Low-shot: one SVM per class of VOC2007 (tab:low-shot-voc), salesforce/PCL,
``eval_svm_voc.py``.
"""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from sce_video.utils.errors import MissingPackageError

#: Values of C tried, strongest fit first: 1/w for 45 weights w from 1e-6 to 1e5.
C_GRID = tuple((1.0 / np.logspace(-6, 5, 45)).tolist())
#: top-1 accuracy; mean over classes of the accuracy; mean over classes of 11-point AP.
METRICS = ("top1", "mean_class", "map11")


def precision_recall(scores: np.ndarray, positives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Recall and the highest precision at that recall or more, one entry for each different score.

    Images of equal score enter together, so the result does not depend on their order; positives
    (N,) bool show the class. Raises ValueError: other shapes, no positive image, or a score that is
    not finite.
    """
    scores, positives = np.asarray(scores, dtype=np.float64), np.asarray(positives, dtype=bool)
    if scores.ndim != 1 or scores.shape != positives.shape:
        raise ValueError(
            f"scores and positives must be two vectors of one length, got {scores.shape} and "
            f"{positives.shape}"
        )
    if not np.isfinite(scores).all():
        raise ValueError(f"{(~np.isfinite(scores)).sum()} of {len(scores)} scores are not finite")
    if not positives.any():
        raise ValueError(f"none of the {len(scores)} images shows the class: it has no precision")
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(positives[order])
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # of images of one score
    precision = found[last] / (last + 1)
    return found[last] / found[-1], np.maximum.accumulate(precision[::-1])[::-1]


def eleven_point_ap(scores: np.ndarray, positives: np.ndarray) -> float:
    """Mean over recalls r = 0, 0.1, ..., 1 of the highest precision at a recall of r or more.

    The definition of VOC2007 (Everingham et al. 2010, section 4.2), on scikit-learn's
    ``precision_recall_curve`` as in ssl-transfer: it begins at recall 0 with precision 1, so the
    term at r = 0 is always 1.
    """
    recall, best = precision_recall(scores, positives)
    terms = best[np.searchsorted(recall, np.linspace(0, 1, 11), side="left")]
    terms[0] = 1.0
    return float(terms.mean())


def all_points_ap(scores: np.ndarray, positives: np.ndarray) -> float:
    """Area under the curve of the highest precision at a recall of r or more, over all r.

    The definition of VOC since 2010, and of PCL.
    """
    recall, best = precision_recall(scores, positives)
    return float(np.sum(np.diff(recall, prepend=0.0) * best))


def mean_average_precision(
    scores: np.ndarray,
    positives: np.ndarray,
    definition: Callable[[np.ndarray, np.ndarray], float],
) -> float:
    """Mean over the classes of the average precision of scores (N, C) and positives (N, C) bool.

    Raises ValueError: see :func:`precision_recall`; the message names the column.
    """
    values = []
    for column, pair in enumerate(zip(scores.T, positives.T, strict=True)):
        try:
            values.append(definition(*pair))
        except ValueError as error:
            raise ValueError(f"class {column}: {error}") from error
    return float(np.array(values).mean())


def _estimator(module: str, name: str) -> Any:
    """A class of estimators of scikit-learn, which is an extra."""
    try:
        return getattr(importlib.import_module(f"sklearn.{module}"), name)
    except ImportError as error:
        raise MissingPackageError(
            "the transfer protocols are those of scikit-learn, which cannot be imported "
            f"({error}): pip install -c requirements/constraints.txt -e '.[transfer]'"
        ) from error


@contextmanager
def _convergence_is_not_expected() -> Iterator[None]:
    """Silence scikit-learn's warning that the given number of iterations was not enough."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(converge|TOTAL NO. OF|ITERATIONS REACHED).*")
        yield


def _check_matrix(features: np.ndarray, labels: np.ndarray, name: str) -> None:
    """Raise ValueError unless features are a finite matrix (N, D) with N >= 1 rows of labels."""
    if features.ndim != 2 or len(features) != len(labels) or len(features) == 0:
        raise ValueError(
            f"{name}: features {features.shape} and labels {labels.shape} must be (N, D) and "
            "(N, ...) with one row or more"
        )
    if not np.isfinite(features).all():
        raise ValueError(f"{name}: some features are not finite")


# -- many-shot -----------------------------------------------------------------------------------


class Labelled(NamedTuple):
    """Features (N, D) of a part of a data set, neither l2-normalised nor standardised, and labels.

    Labels are (N,) class numbers; for "map11" (N, C) bool, the classes that an image shows.
    """

    features: np.ndarray
    labels: np.ndarray


class ManyShotResult(NamedTuple):
    """The metric on the test part (0 to 1), the chosen C, the metric on validation by C tried."""

    score: float
    c: float
    validation: dict[float, float]


def random_holdout(count: int, fraction: float = 0.2, seed: int = 0) -> np.ndarray:
    """(count,) bool: the rows held out for validation, where a set has no official split.

    The first ``floor(fraction * count)`` of the row numbers after ``numpy.random.seed(seed)`` and
    ``numpy.random.shuffle``, as in ssl-transfer. Raises ValueError: none would be held out, or all.
    """
    indices = list(range(count))
    np.random.RandomState(seed).shuffle(indices)  # the global generator is not touched
    held = indices[: int(np.floor(fraction * count))]
    if not 0 < len(held) < count:
        raise ValueError(f"{fraction} of {count} training images is no validation split")
    return np.isin(np.arange(count), held)


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
    The values of C are tried in the order of the grid; with one there is no choice.

    Raises:
        ValueError: an unknown metric, an empty grid, parts that do not fit together.
        MissingPackageError: scikit-learn cannot be imported.
    """
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
    if not grid or min(grid) <= 0:
        raise ValueError(f"the grid of C must hold positive numbers, got {tuple(grid)}")
    wanted, shape = (2, "(N, C)") if metric == "map11" else (1, "(N,)")
    parts = []
    for name, part in (("train", train), ("validation", val), ("test", test)):
        if part.labels.ndim != wanted:
            raise ValueError(f"{name}: {metric} needs labels {shape}, got {part.labels.shape}")
        _check_matrix(part.features, part.labels, name)
        parts.append(Labelled(part.features.astype(np.float64), part.labels))
    train, val, test = parts

    def classifier() -> Any:
        kind = _estimator("linear_model", "LogisticRegression")
        return kind(solver="lbfgs", warm_start=True, max_iter=max_iter)

    model = classifier()
    validation: dict[float, float] = {}
    with _convergence_is_not_expected():
        # warm_start: the order of the grid is part of the protocol.
        for c in grid if len(grid) > 1 else ():
            validation[c] = _fit_and_score(model, c, train, val, metric)
        best = max(validation, key=lambda c: validation[c]) if validation else grid[0]
        # The chosen C is fitted again on all but the test.
        both = Labelled(*(np.concatenate(pair) for pair in zip(train, val, strict=True)))
        if not np.array_equal(np.unique(train.labels), np.unique(both.labels)):
            model = classifier()  # a start of another shape is refused
        score = _fit_and_score(model, best, both, test, metric)
    return ManyShotResult(score, best, validation)


def _fit_and_score(model: Any, c: float, fit: Labelled, part: Labelled, metric: str) -> float:
    if metric == "map11":
        scores = [
            _fit(model, c, fit.features, column).decision_function(part.features)
            for column in fit.labels.T
        ]
        return mean_average_precision(np.stack(scores, axis=1), part.labels, eleven_point_ap)
    hits = _fit(model, c, fit.features, fit.labels).predict(part.features) == part.labels
    if metric == "top1":
        return float(hits.mean())
    classes = np.unique(part.labels)
    return float(np.mean([hits[part.labels == label].mean() for label in classes]))


def _fit(model: Any, c: float, features: np.ndarray, labels: np.ndarray) -> Any:
    """The classifier fitted with ``multi_class="multinomial"``, whatever scikit-learn's version.

    Of two classes ssl-transfer's multinomial model penalises a weight vector for each, which are
    w/2 and -w/2: the binary model, which newer versions fit, with 2 C.
    """
    count = len(np.unique(labels))
    if count < 2:
        raise ValueError("all training images are of one class, or none shows a class")
    return model.set_params(C=2 * c if count == 2 else c).fit(features, labels)


# -- low-shot ------------------------------------------------------------------------------------


def svm_features(features: np.ndarray) -> np.ndarray:
    """Features (N, D) divided by their l2 norm plus 1e-5."""
    return features / (np.linalg.norm(features, axis=1, keepdims=True) + 1e-5)


def draw_image_shots(positives: np.ndarray, shots: int, generator: random.Random) -> np.ndarray:
    """Row numbers of a K-shot training set: K images that show each class, for all classes.

    Of positives (N, C) bool. An image drawn for several classes is in it as often. A class of fewer
    images gives all. The generator shuffles the images of every class, in their order.
    """
    if shots < 1:
        raise ValueError(f"the number of images per class must be at least 1, got {shots}")
    chosen: list[int] = []
    for column in positives.T:
        images = np.flatnonzero(column).tolist()
        generator.shuffle(images)
        chosen += images[:shots]
    return np.array(chosen, dtype=np.int64)


def svm_scores(train: np.ndarray, positives: np.ndarray, features: np.ndarray) -> np.ndarray:
    """(M, C) distances of features (M, D) to the hyperplane of one SVM per class.

    They are fitted to features (N, D), as of :func:`svm_features`, and positives (N, C) bool; all
    other images of a class are its negatives, of half its weight.

    Raises:
        ValueError: shapes that do not match, or a class without positives or negatives.
        MissingPackageError: scikit-learn cannot be imported.
    """
    _check_matrix(train, positives, "train")
    # The arguments of PCL.
    loss = {"penalty": "l2", "loss": "squared_hinge", "dual": True, "intercept_scaling": 1.0}
    solver = {"tol": 1e-4, "max_iter": 2000, "random_state": 0, "class_weight": {1: 2, -1: 1}}
    scores = []
    with _convergence_is_not_expected():
        for number, column in enumerate(positives.T):
            if column.all() or not column.any():
                what = "negative" if column.all() else "positive"
                raise ValueError(f"class {number} has no {what} training image")
            model = _estimator("svm", "LinearSVC")(C=0.5, **loss, **solver)
            fitted = model.fit(train, np.where(column, 1, -1))
            scores.append(fitted.decision_function(features))
    return np.stack(scores, axis=1)


def low_shot_svm(
    train: np.ndarray,
    train_positives: np.ndarray,
    test: np.ndarray,
    test_positives: np.ndarray,
    shots: Sequence[int | None],
    draws: int = 5,
    seed: int = 0,
) -> dict[int | None, list[float]]:
    """All-points mAP (0 to 1) of every draw, by K; None is the whole training set, once.

    The draws of every K begin with ``random.Random(seed)``, so that a result does not depend on
    which other K are computed, and a draw of K images is part of that of 2 K.

    Features (N, D) of train and val, in the order of the image names, and of test (M, D); positives
    are (N, C) and (M, C) bool, and "difficult" images count as negatives.
    """
    _check_matrix(test, test_positives, "test")
    train, test = svm_features(train), svm_features(test)
    results: dict[int | None, list[float]] = {}
    for count in shots:
        # From the same seed for every K, so that it does not depend on the others.
        generator = random.Random(seed)
        results[count] = []
        for _ in range(1 if count is None else draws):
            rows: np.ndarray = np.arange(len(train))
            if count is not None:
                rows = draw_image_shots(train_positives, count, generator)
            scores = svm_scores(train[rows], train_positives[rows], test)
            results[count].append(mean_average_precision(scores, test_positives, all_points_ap))
    return results
