"""Linear probe: multinomial logistic regression on frozen features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.evaluation.functional.neighbours import check_features
from sce_video.evaluation.functional.statistics import check_class_numbers, top_k_accuracy

#: Weight decays tried by default, on standardised features and the mean cross-entropy.
L2_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
#: A dimension with a standard deviation below this fraction of the features' RMS is constant.
_CONSTANT = 1e-6


class FittedProbe(NamedTuple):
    """A fitted probe: (features - mean) / scale @ weight + bias, in float64.

    Of K training classes, ``classes`` (K,) are the labels of the columns, ascending, ``l2`` is the
    selected weight decay, and ``validation`` has the accuracy (0 to 1) on the validation split of
    the training features for every weight decay tried; empty if there was no selection.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    classes: Tensor
    l2: float
    validation: dict[float, float]

    def scores(self, features: Tensor, num_classes: int | None = None) -> Tensor:
        """Logits (N, num_classes) float64 of features (N, C); -inf for classes not trained on."""
        check_features(features, "features")
        if features.shape[1] != len(self.mean):
            raise ValueError(
                f"the probe was fitted on {len(self.mean)} dimensions, got {features.shape[1]}"
            )
        if num_classes is None:
            num_classes = int(self.classes[-1]) + 1
        x = (features.cpu().double() - self.mean) / self.scale
        scores = x.new_full((len(x), num_classes), float("-inf"))
        scores[:, self.classes] = x @ self.weight + self.bias
        return scores


def fit_logistic(
    x: Tensor,
    y: Tensor,
    num_classes: int,
    l2: float,
    *,
    start: tuple[Tensor, Tensor] | None = None,
    max_iter: int = 1000,
) -> tuple[Tensor, Tensor]:
    """Minimise ``mean cross-entropy + l2/2 * |weight|^2`` by L-BFGS with line search.

    Of x (N, C) float64 and y (N,) integers in [0, num_classes). ``l2`` is positive: the minimum is
    then unique. The bias is not penalised. ``start`` and the result are weight (C, num_classes) and
    bias (num_classes,), float64; zeros by default.
    """
    if l2 <= 0:
        raise ValueError(f"l2 must be positive, got {l2}")
    first = start or (x.new_zeros((x.shape[1], num_classes)), x.new_zeros(num_classes))
    weight, bias = (t.clone().requires_grad_() for t in first)
    options: dict[str, Any] = {"tolerance_grad": 1e-6, "tolerance_change": 1e-10}
    options |= {"history_size": 20, "line_search_fn": "strong_wolfe", "max_iter": max_iter}
    optimizer = torch.optim.LBFGS([weight, bias], **options)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(x @ weight + bias, y) + 0.5 * l2 * weight.square().sum()
        loss.backward()
        return loss

    # Metrics are computed under no_grad.
    with torch.enable_grad():
        optimizer.step(closure)
    return weight.detach(), bias.detach()


def held_out(labels: Tensor, groups: Tensor | None, fraction: float, seed: int) -> Tensor:
    """Mask (N,) of the samples for validation, a function of the arguments alone.

    Of every class ``round(fraction * size)`` samples, at least one if the class has two or more,
    and at least one is kept for training; none if every class has one sample. With groups (N,) as
    many of these as a whole, at least one, and none with the last training samples of a class.
    """
    generator = torch.Generator().manual_seed(seed)
    held, classes = torch.zeros(len(labels), dtype=torch.bool), labels.unique()
    if groups is None:
        for c in classes:
            members = torch.nonzero(labels == c).flatten()
            # At least one held out, and at least one kept, whatever the fraction.
            count = min(max(round(fraction * len(members)), 1), len(members) - 1)
            held[members[torch.randperm(len(members), generator=generator)[:count]]] = True
        return held
    names = groups.unique()
    wanted = max(round(fraction * len(names)), 1)
    # A group is passed over where it has the last training samples of a class.
    for name in names[torch.randperm(len(names), generator=generator)]:
        more = held | (groups == name)
        if len(labels[~more].unique()) == len(classes):
            held, wanted = more, wanted - 1
        if not wanted:
            break
    return held


def fit_linear_probe(
    features: Tensor,
    labels: Tensor,
    *,
    groups: Tensor | None = None,
    l2_grid: Sequence[float] = L2_GRID,
    val_fraction: float = 0.2,
    seed: int = 0,
    max_iter: int = 1000,
    on_fit: Callable[[], None] = lambda: None,
) -> FittedProbe:
    """Fit the probe on training features alone; see :func:`fit_logistic` for the objective.

    Every dimension is standardised by its mean and standard deviation over ``features``. The weight
    decay of ``l2_grid`` with the highest accuracy on a validation split of ``features`` is selected
    (ties: the lower cross-entropy), ``val_fraction`` of the samples, or of the ``groups`` (N,) as a
    whole, by ``seed``; then the probe is fitted again on all of them. If no class has two samples
    (of different groups) there is no split, and the middle of the grid is used. In float64 on the
    CPU.

    Features are (N, C), labels (N,) integers from 0. ``on_fit`` is called after each of the
    :func:`num_fits`. Raises ValueError: features, labels or a grid that cannot be used, fewer than
    two classes.
    """
    if not 0.0 < val_fraction < 1.0:
        raise ValueError(f"the validation fraction must be between 0 and 1, got {val_fraction}")
    # From strong to weak: each fit starts from the solution of the one before.
    grid = sorted(set(l2_grid), reverse=True)
    if not grid or grid[-1] <= 0:
        raise ValueError(f"l2_grid must hold positive weight decays, got {tuple(l2_grid)}")
    check_features(features, "features")
    check_class_numbers(labels, len(features), "labels")
    classes, targets = labels.cpu().unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"a linear probe needs two classes or more, all labels are {classes.tolist()}"
        )
    x = features.cpu().double()
    mean, scale = standardiser(x)
    x = (x - mean) / scale
    validation: dict[float, float] = {}
    best = grid[len(grid) // 2]
    held = held_out(targets, None if groups is None else groups.cpu(), val_fraction, seed)
    if len(grid) > 1 and bool(held.any()):
        start, ranked = None, []
        fitted = x[~held], targets[~held], len(classes)
        for l2 in grid:
            start = fit_logistic(*fitted, l2, start=start, max_iter=max_iter)
            logits = x[held] @ start[0] + start[1]
            validation[l2] = top_k_accuracy(logits, targets[held], (1,))[1]
            # The smallest tuple: accuracy, then cross-entropy, then the stronger decay.
            ranked.append((-validation[l2], float(F.cross_entropy(logits, targets[held])), -l2))
            on_fit()
        best = -min(ranked)[2]
    weight, bias = fit_logistic(x, targets, len(classes), best, max_iter=max_iter)
    on_fit()
    return FittedProbe(mean, scale, weight, bias, classes, best, validation)


def num_fits(l2_grid: Sequence[float] = L2_GRID) -> int:
    """Fits of :func:`fit_linear_probe` where the classes have several samples."""
    grid = set(l2_grid)
    return len(grid) + 1 if len(grid) > 1 else 1


def standardiser(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per dimension; 1 where a dimension is constant."""
    mean = x.mean(dim=0)
    std = x.std(dim=0, correction=0)
    floor = _CONSTANT * x.square().mean().sqrt()
    return mean, torch.where(std > floor, std, torch.ones_like(std))
