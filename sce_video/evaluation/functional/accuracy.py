"""Accuracies from class scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_labels(labels: Tensor, count: int, name: str, num_classes: int | None = None) -> None:
    """Raise ValueError unless ``labels`` is (count,) integers from 0 (below ``num_classes``)."""
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


def top_k_hits(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    """Whether the true class is among the k classes of the highest score: (N,) bool.

    Of equal scores the class of lower index ranks first. A class of score -inf is never a hit.

    Args:
        scores: (N, number of classes).
        labels: (N,) integers from 0.
        k: 1 or more.

    Raises:
        ValueError: ``k < 1``, or a label that is not an integer below the number of classes.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    check_labels(labels, len(scores), "labels", scores.shape[1])
    own = scores.gather(1, labels[:, None])
    classes = torch.arange(scores.shape[1], device=scores.device)
    before = (scores > own) | ((scores == own) & (classes < labels[:, None]))
    return (before.sum(dim=1) < k) & (own[:, 0] > float("-inf"))


def top_k_accuracy(scores: Tensor, labels: Tensor, ks: Sequence[int] = (1, 5)) -> dict[int, float]:
    """Top-k accuracy (0 to 1) for every k of ``ks``; see :func:`top_k_hits`."""
    return {k: float(top_k_hits(scores, labels, k).double().mean()) for k in ks}


def mean_class_accuracy(scores: Tensor, labels: Tensor) -> float:
    """Top-1 accuracy (0 to 1) per class, averaged over the classes that occur in ``labels``."""
    hits = top_k_hits(scores, labels, 1).double()
    return float(torch.stack([hits[labels == c].mean() for c in labels.unique()]).mean())
