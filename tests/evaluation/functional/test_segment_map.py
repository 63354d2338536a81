"""Segment mAP against a plain loop of ActivityNet's evaluation."""

import numpy as np
import pytest

from sce_video.datasets.segments import Segment
from sce_video.evaluation.functional.segment_map import TIOUS, evaluate_segments


def average_precision_by_loops(truth, predicted, tiou):
    """As ``compute_average_precision_detection`` and ``interpolated_prec_rec`` define it."""
    order = sorted(range(len(predicted)), key=lambda i: -predicted[i].score)
    locked, right, wrong, points = set(), 0, 0, []
    for i in order:
        one = predicted[i]
        overlaps = []
        for j, other in enumerate(truth):
            if other.path == one.path:
                shared = max(0.0, min(one.end, other.end) - max(one.start, other.start))
                union = (one.end - one.start) + (other.end - other.start) - shared
                overlaps.append((shared / union, j))
        hit = False
        for overlap, j in sorted(overlaps, reverse=True):
            if overlap < tiou:
                break
            if j not in locked:
                locked.add(j)
                hit = True
                break
        right, wrong = right + hit, wrong + (not hit)
        points.append((right / len(truth), right / (right + wrong)))
    recall = [0.0, *(r for r, _ in points), 1.0]
    precision = [0.0, *(p for _, p in points), 0.0]
    for i in range(len(precision) - 2, -1, -1):
        precision[i] = max(precision[i], precision[i + 1])
    return sum((recall[i] - recall[i - 1]) * precision[i] for i in range(1, len(recall)))


def random_segments(rng, count, scored):
    for _ in range(count):
        start, length = rng.uniform(0, 60), rng.uniform(1, 15)
        name = f"v{rng.integers(3)}.mp4"
        score = float(rng.uniform()) if scored else None
        yield Segment(name, start, start + length, "abc"[rng.integers(3)], score)


@pytest.mark.parametrize("seed", range(6))
def test_map_equals_the_loop(seed):
    rng = np.random.default_rng(seed)
    truth = list(random_segments(rng, 30, False))
    near = [
        Segment(s.path, s.start + rng.normal(0, 0.8), s.end + rng.normal(0, 0.8), s.label, score)
        for s in truth
        for score in rng.uniform(size=2).tolist()
    ]
    predicted = [*near, *random_segments(rng, 25, True)]
    predicted = [s for s in predicted if s.end > s.start]
    result = evaluate_segments(truth, predicted)
    assert result.tious == TIOUS and list(result.per_class) == sorted({s.label for s in truth})
    for name, values in result.per_class.items():
        own = [[s for s in part if s.label == name] for part in (truth, predicted)]
        expected = [average_precision_by_loops(*own, tiou) for tiou in TIOUS]
        assert values == pytest.approx(expected, abs=1e-12)
        assert 0 < expected[2] <= expected[0] < 1
    assert result.mAP == pytest.approx(np.mean(list(result.per_class.values()), axis=0))


def test_perfect_missing_and_foreign_segments():
    truth = [Segment("a", 0, 5, "x"), Segment("a", 9, 12, "y"), Segment("b", 0, 2, "x")]
    perfect = [Segment(s.path, s.start, s.end, s.label, 0.5) for s in truth]
    assert evaluate_segments(truth, perfect).mAP == [1, 1, 1]
    found = evaluate_segments(truth, [*perfect[:1], Segment("c", 0, 5, "x", 0.9)])
    # Half of x is found, behind a wrong one; y is not.
    assert found.per_class == {"x": [0.25] * 3, "y": [0.0] * 3}
    assert found.f1 == [0.25] * 3
    with pytest.raises(ValueError, match="no labelled segment"):
        evaluate_segments([], perfect)
    with pytest.raises(ValueError, match="above 0"):
        evaluate_segments(truth, perfect, [0.0])
