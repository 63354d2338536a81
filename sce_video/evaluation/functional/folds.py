"""Division of labelled samples into folds. Each fold is the test set once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

#: Value of ``folds`` that requests leave-one-group-out evaluation.
LEAVE_ONE_OUT = "loo"
#: Minimum number of groups for which several groups share a fold by default.
MANY_GROUPS = 20
#: Default number of folds if several groups share a fold.
DEFAULT_FOLDS = 10


@dataclass(frozen=True)
class Folds:
    """Division of N samples into folds.

    Attributes:
        numbers: (N,) int64 fold of each sample. The samples of a fold are tested together.
        groups: (N,) int64. A group is never split over two folds. None if only folds are known.
        text: Description of the samples that are left out together.
        rule: Description of how the folds were made; empty if each group is a fold.
    """

    numbers: Tensor
    groups: Tensor | None
    text: str
    rule: str = ""

    def described(self) -> dict[str, object]:
        """Return the entries for a result's provenance."""
        if not self.rule:
            return {"left_out": self.text}
        folds = {"count": len(self.numbers.unique()), "rule": self.rule}
        return {"left_out": self.text, "folds": folds}


def divide(
    labels: Tensor,
    groups: Tensor | None = None,
    *,
    given: Tensor | None = None,
    folds: int | str | None = None,
    seed: int = 0,
) -> Folds:
    """Decide which samples are tested together.

    With fewer than 20 groups, each group is a fold. With 20 groups or more, there are 10 folds of
    whole groups. The groups are assigned one after another, the largest first, to the fold that has
    the smallest share of their classes so far. The seed orders groups of equal size.

    Args:
        labels: (N,) class numbers.
        groups: (N,) group numbers; None if only folds are known.
        given: (N,) fold numbers to use unchanged.
        folds: Number of folds of whole groups, or ``"loo"`` for one fold per group. None applies
            the rule above.
        seed: Seed of the order. The same seed gives the same folds for all networks.

    Raises:
        ValueError: If neither or both of ``given`` and a rule are passed, or ``folds`` is not from
            2 to the number of groups.
    """
    if given is not None:
        if folds is not None:
            raise ValueError(f"the folds are given, so folds={folds} has no effect. Remove it.")
        count = len(given.unique())
        if count < 2:
            raise ValueError("the given folds are all the same. Give two folds or more.")
        text = f"one of {count} given folds"
        return Folds(given, groups, text, "given")
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
    """Assign groups to folds, and return the fold (N,) of each sample."""
    group, sizes = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    kind, totals = np.unique(labels, return_inverse=True, return_counts=True)[1:]
    # Count the samples of each (group, class) pair, sorted by group.
    pairs, counts = np.unique(group * len(totals) + kind, return_counts=True)
    of_pair, kinds = np.divmod(pairs, len(totals))
    starts = np.searchsorted(of_pair, np.arange(len(sizes) + 1))
    left = np.bincount(kinds, minlength=len(totals))  # groups of each class still to assign
    filled, dealt = np.zeros((folds, len(totals))), np.zeros(len(sizes), dtype=np.int64)
    drawn = np.random.default_rng(seed).permutation(len(sizes))
    for number in drawn[np.argsort(-sizes[drawn], kind="stable")]:
        own = slice(starts[number], starts[number + 1])
        classes, shares = kinds[own], counts[own] / totals[kinds[own]]
        held = filled[:, classes]
        # Avoid putting a whole class into one fold, because the other folds could not learn it.
        alone = (held > 0) & ((held > 0).sum(axis=0) == 1) & (left[classes] == 1)
        cost = (held * shares).sum(axis=1).round(9) + len(totals) * alone.any(axis=1)
        fold = np.lexsort((filled.sum(axis=1).round(9), cost))[0]
        filled[fold, classes] += shares
        left[classes] -= 1
        dealt[number] = fold
    return dealt[group]
