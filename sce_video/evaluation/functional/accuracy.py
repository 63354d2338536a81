"""Accuracies from class scores."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor


def check_class_numbers(
    labels: Tensor, count: int, name: str, num_classes: int | None = None
) -> None:
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

    Scores are (N, number of classes), labels (N,). Of equal scores the class of lower index ranks
    first. A class of score -inf is never a hit. Raises ValueError: ``k < 1``, or a label that is
    not an integer below the number of classes.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    check_class_numbers(labels, len(scores), "labels", scores.shape[1])
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


def group_ids(paths: Sequence[str], pattern: str) -> tuple[Tensor, list[str]]:
    r"""The group of every path, for leave-one-group-out evaluation.

    The pattern is a regular expression with one group, searched in the path: ``r"person(\d+)"``.
    Gives group numbers (N,) int64, and the names of the groups in the order of their numbers.

    Raises:
        ValueError: the pattern does not have exactly one group, a path does not match, or there are
            fewer than two groups.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"group_pattern {pattern!r} is no regular expression: {error}") from None
    if compiled.groups != 1:
        raise ValueError(f"group_pattern {pattern!r} must have one group, has {compiled.groups}")
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
        raise ValueError(f"group_pattern {pattern!r} gives only the group {names}; two are needed")
    number = {name: i for i, name in enumerate(names)}
    return torch.tensor([number[value] for value in values]), names


def pair_accuracy(scores: Tensor, labels: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Accuracy of the decision between the two classes of each pair, chance 0.5.

    Of the samples of both classes, that class is predicted which has the higher score of the two;
    equal scores count half. The accuracy of a pair is the mean of those of its classes, so it is
    0.5 for a classifier that always takes the same one, however many samples each has.

    Of scores (N, number of classes) and P pairs of labels (P,) float64, from 0 to 1. Raises
    ValueError: a label out of range, or a class of a pair without samples.
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
