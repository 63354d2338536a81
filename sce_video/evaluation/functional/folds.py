"""Division of labelled samples into folds, each of which is the test set once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: The word for as many folds as there are groups.
LEAVE_ONE_OUT = "loo"
#: Groups from which several share a fold by default.
MANY_GROUPS = 20
#: Folds by default where several groups share one.
DEFAULT_FOLDS = 10


@dataclass(frozen=True)
class Folds:
    """Folds of N samples.

    Attributes:
        numbers: (N,) int64, the fold of each sample; samples of one fold are tested together.
        groups: (N,) int64; no group is in two folds, or in two parts of a validation split.
        text: What is left out at a time, in words.
        rule: How the folds were made; empty where each group is a fold of its own.
    """

    numbers: Tensor
    groups: Tensor
    text: str
    rule: str = ""

    def described(self) -> dict[str, Any]:
        """Entries for the provenance of a result."""
        entries: dict[str, Any] = {"left_out": self.text}
        count = len(self.numbers.unique())
        return entries | ({"folds": {"count": count, "rule": self.rule}} if self.rule else {})


def divide(
    labels: Tensor,
    groups: Tensor | None = None,
    *,
    given: Tensor | None = None,
    folds: int | str | None = None,
    seed: int = 0,
) -> Folds:
    """Decide which samples are tested together.

    Each group is a fold where there are fewer than 20 groups. From 20 groups on, there are 10 folds
    of whole groups: groups are dealt out, the largest first, to the fold that has the smallest
    share of their classes so far, in an order drawn by the seed.

    Args:
        labels: (N,) class numbers.
        groups: (N,) group numbers; None if only folds are known.
        given: (N,) folds that are used as they are.
        folds: Number of folds of whole groups, or ``"loo"`` for one of each group; None for the
            rule above.
        seed: Seed of the order; the same seed gives the same folds for all networks.

    Raises:
        ValueError: If there is neither or both of ``given`` and a rule, or if ``folds`` is not a
            number from 2 to the number of groups.
    """
    if given is not None:
        if folds is not None:
            raise ValueError(f"the folds are given, so folds={folds} has no effect. Remove it.")
        count = len(given.unique())
        if count < 2:
            raise ValueError("the given folds are all the same. Give two folds or more.")
        text = f"one of {count} given folds"
        return Folds(given, given if groups is None else groups, text, "given")
    if groups is None:
        raise ValueError("folds are made of groups. Give groups, or the folds themselves.")
    count = len(groups.unique())
    if folds is None:
        folds = LEAVE_ONE_OUT if count < MANY_GROUPS else DEFAULT_FOLDS
    if folds == LEAVE_ONE_OUT:
        return Folds(groups, groups, f"one of {count} groups")
    if not isinstance(folds, int) or not 2 <= folds <= count:
        raise ValueError(
            f"folds must be {LEAVE_ONE_OUT!r} or a number from 2 to the number of groups, "
            f"{count}, got {folds!r}"
        )
    numbers = torch.from_numpy(_dealt(labels.numpy(), groups.numpy(), folds, seed))
    rule = f"{folds} stratified folds of whole groups, seed {seed}"
    return Folds(numbers, groups, f"one of {folds} folds of {count} groups", rule)


def _dealt(labels: np.ndarray, groups: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """The fold (N,) of each sample."""
    group, sizes = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    kind, totals = np.unique(labels, return_inverse=True, return_counts=True)[1:]
    # The classes of each group and the samples of each, as runs of a sorted list of pairs.
    pairs, counts = np.unique(group * len(totals) + kind, return_counts=True)
    of_pair, kinds = np.divmod(pairs, len(totals))
    starts = np.searchsorted(of_pair, np.arange(len(sizes) + 1))
    left = np.bincount(kinds, minlength=len(totals))  # groups of a class that are not dealt out
    filled, dealt = np.zeros((folds, len(totals))), np.zeros(len(sizes), dtype=np.int64)
    drawn = np.random.default_rng(seed).permutation(len(sizes))
    for number in drawn[np.argsort(-sizes[drawn], kind="stable")]:
        own = slice(starts[number], starts[number + 1])
        classes, shares = kinds[own], counts[own] / totals[kinds[own]]
        held = filled[:, classes]
        # A class must not end in one fold, which could not be predicted from the others.
        alone = (held > 0) & ((held > 0).sum(axis=0) == 1) & (left[classes] == 1)
        cost = (held * shares).sum(axis=1).round(9) + len(totals) * alone.any(axis=1)
        fold = np.lexsort((filled.sum(axis=1).round(9), cost))[0]
        filled[fold, classes] += shares
        left[classes] -= 1
        dealt[number] = fold
    return dealt[group]
