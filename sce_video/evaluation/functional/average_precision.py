"""Average precision of one class of a multi-label set: the two definitions of Pascal VOC."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def precision_recall(scores: np.ndarray, positives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision of the images that score at least t, for every score t, descending.

    Images of equal score enter together, so the result does not depend on their order.

    Args:
        scores: (N,) numbers.
        positives: (N,) bool, whether the image shows the class.

    Returns:
        Recall, ascending, and precision, one entry for each different score.

    Raises:
        ValueError: other shapes, no positive image, or a score that is not finite.
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
    return found[last] / found[-1], found[last] / (last + 1)


def eleven_point_ap(scores: np.ndarray, positives: np.ndarray, certain_start: bool = True) -> float:
    """Mean over recalls r = 0, 0.1, ..., 1 of the highest precision at a recall of r or more.

    The definition of VOC2007 (Everingham et al. 2010, section 4.2).

    Args:
        scores: (N,) numbers.
        positives: (N,) bool.
        certain_start: The curve begins at recall 0 with precision 1, as scikit-learn's
            ``precision_recall_curve`` and with it linusericsson/ssl-transfer, ``linear.py``: the
            term at r = 0 is then always 1. False is VOC's own curve.

    Raises:
        ValueError: see :func:`precision_recall`.
    """
    recall, precision = precision_recall(scores, positives)
    best = np.maximum.accumulate(precision[::-1])[::-1]  # at this recall or a higher one
    terms = best[np.searchsorted(recall, np.linspace(0, 1, 11), side="left")]
    if certain_start:
        terms[0] = 1.0
    return float(terms.mean())


def all_points_ap(scores: np.ndarray, positives: np.ndarray) -> float:
    """Area under the curve of the highest precision at a recall of r or more, over all r.

    The definition of VOC since 2010; salesforce/PCL, ``eval_svm_voc.py``.

    Raises:
        ValueError: see :func:`precision_recall`.
    """
    recall, precision = precision_recall(scores, positives)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * best))


def average_precisions(
    scores: np.ndarray,
    positives: np.ndarray,
    definition: Callable[[np.ndarray, np.ndarray], float] = eleven_point_ap,
) -> np.ndarray:
    """(C,) average precision of every class; their mean is mAP.

    Args:
        scores: (N, C).
        positives: (N, C) bool.
        definition: Average precision of one class.

    Raises:
        ValueError: see :func:`precision_recall`; the message names the column.
    """
    if scores.shape != positives.shape or scores.ndim != 2:
        raise ValueError(f"scores {scores.shape} and positives {positives.shape} must be (N, C)")
    values = []
    for column in range(scores.shape[1]):
        try:
            values.append(definition(scores[:, column], positives[:, column]))
        except ValueError as error:
            raise ValueError(f"class {column}: {error}") from error
    return np.array(values)
