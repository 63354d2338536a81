"""Low-shot classification of VOC2007 with linear SVMs, as in salesforce/PCL, ``eval_svm_voc.py``.

First in Goyal et al. (arXiv 1905.01235); tab:low-shot-voc of the paper.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from sce_video.evaluation.functional.average_precision import all_points_ap, average_precisions
from sce_video.evaluation.functional.scikit_learn import (
    check_matrix,
    convergence_is_not_expected,
    linear_svm,
)

_EPSILON = 1e-5


def svm_features(features: np.ndarray) -> np.ndarray:
    """Features (N, D) divided by their l2 norm plus 1e-5."""
    return features / (np.linalg.norm(features, axis=1, keepdims=True) + _EPSILON)


def draw_shots(positives: np.ndarray, shots: int, generator: random.Random) -> np.ndarray:
    """Row numbers of a K-shot training set: K images that show each class, for all classes.

    An image drawn for several classes is in it as often. A class of fewer images gives all.

    Args:
        positives: (N, C) bool.
        shots: K.
        generator: Shuffles the images of every class, in the order of the classes.
    """
    if shots < 1:
        raise ValueError(f"the number of images per class must be at least 1, got {shots}")
    chosen: list[int] = []
    for column in positives.T:
        images = np.flatnonzero(column).tolist()
        generator.shuffle(images)
        chosen += images[:shots]
    return np.array(chosen, dtype=np.int64)


def svm_scores(
    train: np.ndarray, positives: np.ndarray, features: np.ndarray, cost: float = 0.5
) -> np.ndarray:
    """(M, C) distances of features (M, D) to the hyperplane of one SVM per class.

    Args:
        train: (N, D) training features, as of :func:`svm_features`.
        positives: (N, C) bool; all other images of a class are its negatives.
        features: (M, D) features to score.
        cost: C of the SVM.

    Raises:
        ValueError: shapes that do not match, or a class without positives or negatives.
        MissingPackageError: scikit-learn cannot be imported.
    """
    check_matrix(train, positives, "train")
    scores = []
    with convergence_is_not_expected():
        for number, column in enumerate(positives.T):
            if column.all() or not column.any():
                what = "negative" if column.all() else "positive"
                raise ValueError(f"class {number} has no {what} training image")
            fitted = linear_svm(cost).fit(train, np.where(column, 1, -1))
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

    Args:
        train: (N, D) features of train and val, in the order of the image names.
        train_positives: (N, C) bool; "difficult" images count as negatives.
        test: (M, D).
        test_positives: (M, C) bool.
        shots: Values of K.
        draws: Training sets drawn for each K.
        seed: Seed of the draws.

    Raises:
        ValueError: see :func:`svm_scores`.
    """
    check_matrix(test, test_positives, "test")
    train, test = svm_features(train), svm_features(test)
    results: dict[int | None, list[float]] = {}
    for count in shots:
        generator = random.Random(seed)
        results[count] = []
        for _ in range(1 if count is None else draws):
            rows: np.ndarray = np.arange(len(train))
            if count is not None:
                rows = draw_shots(train_positives, count, generator)
            scores = svm_scores(train[rows], train_positives[rows], test)
            values = average_precisions(scores, test_positives, all_points_ap)
            results[count].append(float(values.mean()))
    return results
