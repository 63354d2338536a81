"""Average precision against values computed by hand, and against loops over the definitions."""

from __future__ import annotations

import numpy as np
import pytest

from sce_video.evaluation.functional.transfer import (
    all_points_ap,
    average_precisions,
    eleven_point_ap,
    precision_recall,
)

# Ranked: negative, positive, positive, negative, positive, negative.
SCORES = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
POSITIVES = np.array([0, 1, 1, 0, 1, 0], dtype=bool)


def test_precision_and_recall_by_hand():
    recall, precision = precision_recall(SCORES, POSITIVES)
    np.testing.assert_allclose(recall, [0, 1 / 3, 2 / 3, 2 / 3, 1, 1])
    np.testing.assert_allclose(precision, [0, 1 / 2, 2 / 3, 1 / 2, 3 / 5, 1 / 2])


def test_eleven_points_by_hand():
    # Highest precision from recall 0 to 0.6 (seven points) is 2/3, from 0.7 to 1 (four) 3/5.
    assert eleven_point_ap(SCORES, POSITIVES, certain_start=False) == pytest.approx(
        (7 * 2 / 3 + 4 * 3 / 5) / 11
    )
    assert eleven_point_ap(SCORES, POSITIVES) == pytest.approx((1 + 6 * 2 / 3 + 4 * 3 / 5) / 11)


def test_all_points_by_hand():
    # Recall rises by a third at each positive; the envelope there is 2/3, 2/3 and 3/5.
    assert all_points_ap(SCORES, POSITIVES) == pytest.approx((2 / 3 + 2 / 3 + 3 / 5) / 3)


def test_images_of_one_score_count_together():
    """One threshold for three images of which one is positive, whatever their order."""
    scores = np.array([1.0, 0.5, 0.5, 0.5])
    for row in ([1, 1, 0, 0], [1, 0, 0, 1]):
        recall, precision = precision_recall(scores, np.array(row, dtype=bool))
        np.testing.assert_allclose(recall, [0.5, 1])
        np.testing.assert_allclose(precision, [1, 0.5])


def sort_loop(scores, positives):
    """Precision and recall image by image, all thresholds one after the other."""
    found, points = 0, []
    for rank, index in enumerate(sorted(range(len(scores)), key=lambda i: -scores[i]), start=1):
        found += int(positives[index])
        points.append((found / positives.sum(), found / rank))
    return points


@pytest.mark.parametrize("seed", range(5))
def test_both_equal_loops_over_the_definitions(seed):
    rng = np.random.default_rng(seed)
    scores, positives = rng.normal(size=60), rng.random(60) < 0.3
    points = sort_loop(scores, positives)
    # 17, 18, ... positives: no recall lies on a tenth but 0 and 1, where rounding would decide.
    eleven = [
        max((p for r, p in points if r >= t), default=0.0) for t in [i / 10 for i in range(11)]
    ]
    measured = eleven_point_ap(scores, positives, certain_start=False)
    assert measured == pytest.approx(np.mean(eleven))
    area, before = 0.0, 0.0
    for recall in sorted({r for r, _ in points}):
        area += (recall - before) * max(p for r, p in points if r >= recall)
        before = recall
    assert all_points_ap(scores, positives) == pytest.approx(area)


@pytest.mark.parametrize("certain_start", [True, False])
def test_eleven_points_as_scikit_learns_curve_gives_them(certain_start):
    """The curve of ssl-transfer's linear.py; without its point of recall 0 it is VOC's own."""
    from sklearn.metrics import precision_recall_curve

    rng = np.random.default_rng(7)
    scores, positives = rng.integers(0, 30, 80).astype(float), rng.random(80) < 0.2
    precision, recall, _ = precision_recall_curve(positives, scores)
    if not certain_start:
        precision, recall = precision[:-1], recall[:-1]
    expected = np.mean([precision[recall >= t].max() for t in np.linspace(0, 1, 11)])
    assert eleven_point_ap(scores, positives, certain_start) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scores", "positives", "message"),
    [
        (SCORES, np.zeros(6, dtype=bool), "none of the 6 images shows the class"),
        (SCORES[:5], POSITIVES, r"two vectors of one length, got \(5,\) and \(6,\)"),
        (np.append(SCORES[:5], np.nan), POSITIVES, "1 of 6 scores are not finite"),
    ],
)
def test_bad_input(scores, positives, message):
    with pytest.raises(ValueError, match=message):
        all_points_ap(scores, positives)


def test_the_class_without_images_is_named():
    positives = np.stack([POSITIVES, np.zeros(6, dtype=bool)], axis=1)
    with pytest.raises(ValueError, match="class 1: none of the 6 images"):
        average_precisions(np.stack([SCORES, SCORES], axis=1), positives)
