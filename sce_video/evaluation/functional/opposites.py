"""Accuracy within pairs of opposite classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sce_video.evaluation.functional.accuracy import check_labels


def pair_accuracy(scores: Tensor, labels: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Accuracy of the decision between the two classes of each pair, chance 0.5.

    Of the samples of both classes, that class is predicted which has the higher score of the two;
    equal scores count half. The accuracy of a pair is the mean of those of its classes, so it is
    0.5 for a classifier that always takes the same one, however many samples each has.

    Args:
        scores: (N, number of classes).
        labels: (N,) integers from 0.
        pairs: P pairs of labels; both have samples.

    Returns:
        (P,) float64, from 0 to 1.

    Raises:
        ValueError: a label out of range, or a class of a pair without samples.
    """
    check_labels(labels, len(scores), "labels", scores.shape[1])
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
