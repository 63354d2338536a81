"""Segment mAP: average precision of predicted segments of videos at temporal IoU thresholds.

The rules follow ActivityNet (activitynet/ActivityNet, Evaluation/eval_detection.py). For each class
and threshold:

- Predictions are matched from the most to the least confident, each with the labelled segment **of
  its video** that has the largest temporal IoU and is not matched yet. A prediction is a true
  positive if this IoU reaches the threshold, and a false positive otherwise.
- The average precision is the area under the precision made monotone from the right.
- A class without a labelled segment has no average precision, and is left out of the mean.

If scores are equal, the earlier prediction comes first. The official program reverses an unstable
sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sce_video.datasets.segments import Segment

#: Default IoU thresholds to report.
TIOUS = (0.3, 0.5, 0.7)


@dataclass(frozen=True)
class SegmentResult:
    """Average precisions, 0 to 1, by class for each temporal IoU; and ``mAP``, their means.

    ``f1``, for each temporal IoU, is a mean over classes and uses predictions of any score.
    """

    tious: tuple[float, ...]
    per_class: dict[str, list[float]]
    mAP: list[float]  # noqa: N815 - the name in the literature
    f1: list[float]


def temporal_iou(span: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of ``[start, end)`` with each of (n, 2): (n,) float64."""
    shared = np.minimum(span[1], others[:, 1]) - np.maximum(span[0], others[:, 0])
    shared = np.maximum(shared, 0.0)
    union = (span[1] - span[0]) + (others[:, 1] - others[:, 0]) - shared
    return shared / np.maximum(union, 1e-12)


def match_segments(
    truth: Sequence[Segment], predicted: Sequence[Segment], tiou: float
) -> np.ndarray:
    """Return which predictions of a class are true positives: (N,) bool, most confident first."""
    spans: dict[str, np.ndarray] = {}
    for path in {s.path for s in truth}:
        spans[path] = np.array([(s.start, s.end) for s in truth if s.path == path])
    taken = {path: np.zeros(len(own), dtype=bool) for path, own in spans.items()}
    found = np.zeros(len(predicted), dtype=bool)
    for i, one in enumerate(sorted(predicted, key=lambda s: -(s.score or 0.0))):
        if one.path not in spans:
            continue
        ious = temporal_iou(np.array([one.start, one.end]), spans[one.path])
        ious[taken[one.path]] = -1.0
        best = int(ious.argmax())
        if ious[best] >= tiou:
            taken[one.path][best] = found[i] = True
    return found


def segment_precision(hits: np.ndarray, count: int) -> float:
    """Return the area under precision over recall of ranked hits (N,), with ``count`` labels."""
    if not len(hits):
        return 0.0
    right = np.cumsum(hits)
    precision, recall = right / np.arange(1, len(hits) + 1), right / count
    monotone = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(recall, prepend=0.0) * monotone).sum())


def evaluate_segments(
    truth: Sequence[Segment], predicted: Sequence[Segment], tious: Sequence[float] = TIOUS
) -> SegmentResult:
    """Compute average precision and F1 of predicted segments.

    Args:
        truth: Labelled segments; videos without one count if their paths are predicted.
        predicted: Predicted segments with scores, for the same paths.
        tious: Thresholds of the temporal IoU, above 0 and at most 1.

    Raises:
        ValueError: If there is no labelled segment, or a threshold is out of range.
    """
    if not truth:
        raise ValueError("there is no labelled segment to compare predictions with")
    if any(not 0 < tiou <= 1 for tiou in tious):
        raise ValueError(
            f"thresholds of the temporal IoU must be above 0 and at most 1, got {tious}"
        )
    per_class, scores = {}, []
    for name in sorted({s.label for s in truth}):
        own = [s for s in truth if s.label == name]
        named = [s for s in predicted if s.label == name]
        hits = [match_segments(own, named, tiou) for tiou in tious]
        per_class[name] = [segment_precision(hit, len(own)) for hit in hits]
        scores.append([2 * hit.sum() / (len(own) + len(named)) for hit in hits])
    means = np.mean(list(per_class.values()), axis=0).tolist()
    return SegmentResult(tuple(tious), per_class, means, np.mean(scores, axis=0).tolist())
