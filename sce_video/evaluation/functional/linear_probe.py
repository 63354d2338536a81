"""Linear probe: multinomial logistic regression on frozen features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
#: Least curvature of the cross-entropy that is assumed, where all samples are fitted perfectly.
_LEAST_SPREAD = 1e-4
#: Logit of a class without training samples. It is finite, so that half precision can hold it.
_NEVER = -1e4


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

    def as_layer(self, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return the probe as one linear layer on features that are not standardised.

        Args:
            num_classes: Number of outputs K. Classes without training samples get the logit -1e4.

        Returns:
            Weight (K, C) and bias (K,), float64, of ``torch.nn.Linear``.
        """
        own = self.weight / self.scale[:, None]
        weight = own.new_zeros(num_classes, len(own))
        bias = own.new_full((num_classes,), _NEVER)
        weight[self.classes], bias[self.classes] = own.T, self.bias - self.mean @ own
        return weight, bias


def fit_logistic(
    x: Tensor, y: Tensor, num_classes: int, l2: float, *, max_iter: int = 1000
) -> tuple[Tensor, Tensor]:
    """Minimise ``mean cross-entropy + l2/2 * |weight|^2``; see :func:`fit_path`."""
    return next(fit_path(x, y, num_classes, [l2], max_iter=max_iter))


def fit_path(
    x: Tensor,
    y: Tensor,
    num_classes: int,
    decays: Sequence[float],
    *,
    start: tuple[Tensor, Tensor] | None = None,
    max_iter: int = 1000,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Minimise ``mean cross-entropy + l2/2 * |weight|^2`` for each weight decay in turn.

    L-BFGS with line search, in coordinates in which the curvature is nearly the same everywhere.
    All weight decays share one decomposition of the features' covariance, and each fit starts from
    the solution before it. The objective ends within 1e-7 of its minimum.

    Args:
        x: (N, C) float64.
        y: (N,) integers in [0, num_classes).
        num_classes: Number of classes, K.
        decays: Positive weight decays, for which the minimum is unique. The bias is not penalised.
        start: Weight (C, K) and bias (K,) of the first fit; zeros by default.
        max_iter: Largest number of iterations of a fit.

    Yields:
        Weight (C, K) and bias (K,) float64 of each weight decay.

    Raises:
        ValueError: If a weight decay is not positive.
    """
    if min(decays) <= 0:
        raise ValueError(f"l2 must be positive, got {min(decays)}")
    basis = None
    if len(x) < x.shape[1]:  # the solution is a combination of the samples
        basis = torch.linalg.qr(x.T)[0]
        x = x @ basis
    weight, bias = x.new_zeros((num_classes, x.shape[1])), x.new_zeros(num_classes)
    if start is not None:
        weight, bias = start[0].T if basis is None else start[0].T @ basis, start[1]
    variances, directions = torch.linalg.eigh(x.T @ x / len(x))
    variances = variances.clamp(min=0)
    for l2 in decays:
        # The curvature of the cross-entropy is about this times the covariance: with p the
        # probabilities of a sample, the mean over the K - 1 directions of diag(p) - p p^T.
        p = (weight @ x.T + bias[:, None]).softmax(dim=0)
        spread = float((1 - p.square().sum(dim=0)).mean()) / (num_classes - 1)
        spread = max(spread, _LEAST_SPREAD)
        scales = directions * (spread * variances + l2).rsqrt() @ directions.T
        problem = _Scaled(x, y, l2, scales, spread**-0.5)
        weight, bias = problem.minimum(weight, bias, max_iter)
        yield weight.T if basis is None else basis @ weight.T, bias


class _Scaled:
    """The objective of a fit as a function of ``u`` and ``v``: weight^T is ``u @ scales``.

    Classes come first, weight^T (K, C) and logits (K, N), because these matrix products are twice
    as fast as those of (N, K).
    """

    def __init__(self, x: Tensor, y: Tensor, l2: float, scales: Tensor, of_bias: float) -> None:
        self.x, self.y, self.l2 = x, y[None], l2
        self.scales, self.of_bias = scales, of_bias

    def minimum(self, weight: Tensor, bias: Tensor, max_iter: int) -> tuple[Tensor, Tensor]:
        """Weight^T and bias at the minimum, from those at the start."""
        u = torch.linalg.solve(self.scales, weight, left=False)
        v = bias / self.of_bias
        options: dict[str, Any] = {"tolerance_grad": 1e-6, "tolerance_change": 1e-10}
        options |= {"history_size": 20, "line_search_fn": "strong_wolfe", "max_iter": max_iter}
        optimizer = torch.optim.LBFGS([u, v], **options)

        def closure() -> float:
            loss, u.grad, v.grad = self.evaluate(u, v)
            return loss

        optimizer.step(closure)
        return u @ self.scales, v * self.of_bias

    def evaluate(self, u: Tensor, v: Tensor) -> tuple[float, Tensor, Tensor]:
        """The objective and its gradients with respect to ``u`` and ``v``."""
        weight = u @ self.scales
        logits = torch.addmm((v * self.of_bias)[:, None], weight, self.x.T)
        logits -= logits.logsumexp(dim=0)
        loss = -logits.gather(0, self.y).mean() + 0.5 * self.l2 * weight.square().sum()
        # Probabilities minus the one-hot labels; in place, as these are the largest arrays.
        errors = logits.exp_().scatter_add_(0, self.y, -torch.ones_like(logits[:1]))
        errors /= self.x.shape[0]
        gradient = (errors @ self.x + self.l2 * weight) @ self.scales
        return float(loss), gradient, errors.sum(dim=1) * self.of_bias


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
    best, start = grid[len(grid) // 2], None
    held = held_out(targets, None if groups is None else groups.cpu(), val_fraction, seed)
    if len(grid) > 1 and bool(held.any()):
        found = {}
        fits = fit_path(x[~held], targets[~held], len(classes), grid, max_iter=max_iter)
        for l2, (weight, bias) in zip(grid, fits, strict=True):
            logits = x[held] @ weight + bias
            validation[l2] = top_k_accuracy(logits, targets[held], (1,))[1]
            # The smallest tuple: accuracy, then cross-entropy, then the stronger decay.
            rank = (-validation[l2], float(F.cross_entropy(logits, targets[held])), -l2)
            found[rank] = weight, bias
            on_fit()
        best, start = -min(found)[2], found[min(found)]
    fits = fit_path(x, targets, len(classes), [best], start=start, max_iter=max_iter)
    weight, bias = next(fits)
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
