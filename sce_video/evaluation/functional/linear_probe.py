"""Linear probe: multinomial logistic regression on frozen features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.evaluation.functional.neighbours import check_features, feature_mean
from sce_video.evaluation.functional.statistics import check_class_numbers, top_k_hits
from sce_video.utils.tensors import (
    block_rows,
    float64_blocks,
    float64_device,
    has_fast_float64,
)

#: Weight decays to try by default, for standardised features and the mean cross-entropy.
L2_GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
#: A dimension is constant if its standard deviation is below this share of the features' RMS.
_CONSTANT = 1e-6
#: Lower bound for the cross-entropy's curvature, which vanishes if all samples are fitted
#: perfectly.
_LEAST_SPREAD = 1e-4
#: Maximum number of standardised feature values kept in memory. They take 1 GB in float64.
_KEPT_VALUES = 2**27
#: Logit of classes without training samples. It is finite, so that half precision can represent it.
_NEVER = -1e4


class FittedProbe(NamedTuple):
    """A fitted probe: (features - mean) / scale @ weight + bias, in float64.

    ``classes`` (K,) are the labels of the K training classes in ascending order, and ``l2`` is the
    selected weight decay. ``validation`` contains the accuracy (0 to 1) on the validation split for
    every weight decay tried. It is empty if there was no selection.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    classes: Tensor
    l2: float
    validation: dict[float, float]

    def scores(self, features: Tensor, num_classes: int | None = None) -> Tensor:
        """Return logits (N, num_classes) float64 of features (N, C); -inf for untrained classes."""
        check_features(features, "features")
        if features.shape[1] != len(self.mean):
            raise ValueError(
                f"the probe needs features of {len(self.mean)} dimensions, got {features.shape[1]}"
            )
        if num_classes is None:
            num_classes = int(self.classes[-1]) + 1
        scores = torch.full((len(features), num_classes), float("-inf"), dtype=torch.float64)
        parts = scores.split(block_rows(len(self.mean)))
        for rows, block in zip(parts, float64_blocks(features), strict=True):
            x = (block.cpu() - self.mean) / self.scale
            rows[:, self.classes] = x @ self.weight + self.bias
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


class Samples:
    """Standardised features of some samples and their labels, in blocks of rows.

    Few features are standardised once and kept. Many are standardised in every pass, one block at
    a time, because a float64 copy of a million features of size 2,048 takes 20 GB.

    Args:
        features: (N, C) on the device of the fit.
        labels: (N,) integers from 0.
        standard: Mean and scale (C,) of :func:`standardiser`; None keeps the features as they are.
        rows: (n,) rows that are samples; None uses all.
        dtype: Precision of the blocks.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        standard: tuple[Tensor, Tensor] | None = None,
        rows: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.features, self.labels = features, labels.to(features.device)
        self.standard, self.dtype = standard, dtype
        everything = torch.arange(len(features)) if rows is None else rows
        self.rows = everything.to(features.device)
        self._kept: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> int:
        """C."""
        return self.features.shape[1]

    def select(self, mask: Tensor) -> Samples:
        """Return the samples of a mask (n,) on the CPU."""
        rows = self.rows[mask.to(self.rows.device)]
        return Samples(self.features, self.labels, self.standard, rows, self.dtype)

    def rounded_to(self, dtype: torch.dtype) -> Samples:
        """Return the samples in another precision."""
        return Samples(self.features, self.labels, self.standard, self.rows, dtype)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features (m, C) and labels (m,) of all samples, in order."""
        count = block_rows(self.size)
        if self._kept is None and len(self) * self.size <= _KEPT_VALUES:
            self._kept = self._block(self.rows)
        if self._kept is None:
            yield from map(self._block, self.rows.split(count))
        else:
            yield from zip(*(part.split(count) for part in self._kept), strict=True)

    def _block(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        x = self.features[rows].to(self.dtype)
        if self.standard is not None:
            mean, scale = (part.to(self.dtype) for part in self.standard)
            x = x.sub_(mean).div_(scale)
        return x, self.labels[rows]


def fit_logistic(
    x: Tensor, y: Tensor, num_classes: int, l2: float, *, max_iter: int = 1000
) -> tuple[Tensor, Tensor]:
    """Minimise ``mean cross-entropy + l2/2 * |weight|^2``; see :func:`fit_path`."""
    return next(fit_path(Samples(x, y), num_classes, [l2], max_iter=max_iter))


def fit_path(
    samples: Samples,
    num_classes: int,
    decays: Sequence[float],
    *,
    start: tuple[Tensor, Tensor] | None = None,
    max_iter: int = 1000,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Minimise ``mean cross-entropy + l2/2 * |weight|^2`` for each weight decay in turn.

    L-BFGS with line search works in coordinates in which the curvature is nearly the same
    everywhere. All weight decays share one decomposition of the features' covariance, and each fit
    starts from the solution before it. The objective ends within 1e-7 of its minimum. A device that
    is slow in float64 fits in float32 first. The fit in float64 then starts from this solution,
    ends immediately if it is exact enough, and continues otherwise.

    Args:
        samples: N samples of C features, in float64.
        num_classes: Number of classes, K.
        decays: Positive weight decays, for which the minimum is unique. The bias is not penalised.
        start: Initial weight (C, K) and bias (K,) of the first fit; zeros by default.
        max_iter: Largest number of iterations of a fit.

    Yields:
        Weight (C, K) and bias (K,) float64 of each weight decay, on the device of the samples.

    Raises:
        ValueError: If a weight decay is not positive.
    """
    if min(decays) <= 0:
        raise ValueError(f"l2 must be positive, got {min(decays)}")
    basis = None
    if len(samples) < samples.size:  # the solution is a combination of the samples
        x, y = (torch.cat(parts) for parts in zip(*samples.blocks(), strict=True))
        basis = torch.linalg.qr(x.T)[0]
        samples = Samples(x @ basis, y)
    variances, directions = torch.linalg.eigh(_covariance(samples))
    variances = variances.clamp(min=0)
    weight, bias = variances.new_zeros(num_classes, samples.size), variances.new_zeros(num_classes)
    if start is not None:
        weight, bias = start[0].T if basis is None else start[0].T @ basis, start[1]
    precisions = [torch.float64]
    if not has_fast_float64(variances.device):
        precisions.insert(0, torch.float32)
    all_samples = [samples.rounded_to(precision) for precision in precisions]
    for l2 in decays:
        spread = max(_spread(samples, weight, bias), _LEAST_SPREAD)
        scales = directions * (spread * variances + l2).rsqrt() @ directions.T
        for some in all_samples:
            problem = _Scaled(some, l2, scales.to(some.dtype), spread**-0.5)
            weight, bias = problem.minimum(weight.to(some.dtype), bias.to(some.dtype), max_iter)
        yield weight.T if basis is None else basis @ weight.T, bias


def _covariance(samples: Samples) -> Tensor:
    """Return the mean of the outer products (C, C) of the samples with themselves."""
    total = samples.features.new_zeros(samples.size, samples.size, dtype=samples.dtype)
    for x, _ in samples.blocks():
        total.addmm_(x.T, x)
    return total / len(samples)


def _spread(samples: Samples, weight: Tensor, bias: Tensor) -> float:
    """Estimate the ratio of the curvature of the cross-entropy to the covariance.

    With p (K,) the probabilities of a sample, it is the mean of diag(p) - p p^T over K - 1
    directions. ``weight`` is (K, C), ``bias`` (K,).
    """
    total = bias.new_zeros(())
    for x, _ in samples.blocks():
        p = torch.addmm(bias[:, None], weight, x.T).softmax(dim=0)
        total += (1 - p.square().sum(dim=0)).sum()
    return float(total) / len(samples) / (len(bias) - 1)


class _Scaled:
    """The objective of a fit as a function of ``u`` and ``v``: weight^T is ``u @ scales``.

    Classes come first, weight^T (K, C) and logits (K, N), because these matrix products are twice
    as fast as with (N, K).
    """

    def __init__(self, samples: Samples, l2: float, scales: Tensor, of_bias: float) -> None:
        self.samples, self.l2 = samples, l2
        self.scales, self.of_bias = scales, of_bias

    def minimum(self, weight: Tensor, bias: Tensor, max_iter: int) -> tuple[Tensor, Tensor]:
        """Return weight^T and bias at the minimum, starting from the given values."""
        u = torch.linalg.solve(self.scales, weight, left=False)
        v = bias / self.of_bias
        optimizer = torch.optim.LBFGS(
            [u, v],
            max_iter=max_iter,
            tolerance_grad=1e-6,
            tolerance_change=1e-10,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def closure() -> float:
            loss, u.grad, v.grad = self.evaluate(u, v)
            return loss

        optimizer.step(closure)
        return u @ self.scales, v * self.of_bias

    def evaluate(self, u: Tensor, v: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the objective and its gradients with respect to ``u`` and ``v``."""
        weight = u @ self.scales
        bias = (v * self.of_bias)[:, None]
        loss, gradient, of_bias = v.new_zeros(()), torch.zeros_like(weight), torch.zeros_like(v)
        for x, y in self.samples.blocks():
            logits = torch.addmm(bias, weight, x.T)
            logits -= logits.logsumexp(dim=0)
            loss -= logits.gather(0, y[None]).sum()
            # Probabilities minus the one-hot labels, computed in place because these are the
            # largest arrays.
            errors = logits.exp_().scatter_add_(0, y[None], -torch.ones_like(logits[:1]))
            gradient.addmm_(errors, x)
            of_bias += errors.sum(dim=1)
        count = len(self.samples)
        loss = loss / count + 0.5 * self.l2 * weight.square().sum()
        gradient = (gradient / count + self.l2 * weight) @ self.scales
        return float(loss), gradient, of_bias / count * self.of_bias


def held_out(labels: Tensor, groups: Tensor | None, fraction: float, seed: int) -> Tensor:
    """Return the mask (N,) of the validation samples, which depends only on the arguments.

    ``round(fraction * size)`` samples of every class are chosen, at least one if the class has two
    or more. At least one is kept for training, so none is chosen if every class has one sample.
    With groups (N,), the same share of whole groups is chosen, at least one, and no group with the
    last training samples of a class.
    """
    generator = torch.Generator().manual_seed(seed)
    held, classes = torch.zeros(len(labels), dtype=torch.bool), labels.unique()
    if groups is None:
        for c in classes:
            members = torch.nonzero(labels == c).flatten()
            # Hold out at least one sample and keep at least one, whatever the fraction is.
            count = min(max(round(fraction * len(members)), 1), len(members) - 1)
            held[members[torch.randperm(len(members), generator=generator)[:count]]] = True
        return held
    names = groups.unique()
    wanted = max(round(fraction * len(names)), 1)
    # Skip a group if it contains the last remaining training samples of a class.
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
    device: torch.device | str = "cpu",
    on_fit: Callable[[], None] = lambda: None,
) -> FittedProbe:
    """Fit the probe only on training features. See :func:`fit_path` for the objective.

    Every dimension is standardised by its mean and standard deviation over ``features``. The weight
    decay of ``l2_grid`` with the highest accuracy on a validation split of ``features`` is selected
    (ties: the lower cross-entropy), and the probe is then fitted again on all of them. If no class
    has two samples (of different groups) there is no split, and the middle of the grid is used.

    Args:
        features: (N, C).
        labels: (N,) integers from 0.
        groups: (N,) integers; the validation split has whole groups. None splits the samples.
        l2_grid: Weight decays, all positive.
        val_fraction: Share of the samples, or of the groups, for validation.
        seed: Seed of the split.
        max_iter: Largest number of iterations of a fit.
        device: Device of the fit. The features are copied to it as they are, and standardised in
            float64 in blocks, unless there are few. mps has no float64, so the CPU is used.
        on_fit: Called after each of the :func:`num_fits` fits.

    Raises:
        ValueError: If features, labels or a grid cannot be used, or there are fewer than two
            classes.
    """
    if not 0.0 < val_fraction < 1.0:
        raise ValueError(f"the validation fraction must be between 0 and 1, got {val_fraction}")
    # Go from strong to weak decay, because each fit starts from the previous solution.
    grid = sorted(set(l2_grid), reverse=True)
    if not grid or grid[-1] <= 0:
        raise ValueError(f"all weight decays in l2_grid must be positive, got {tuple(l2_grid)}")
    check_features(features, "features")
    check_class_numbers(labels, len(features), "labels")
    classes, targets = labels.cpu().unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"a linear probe needs two classes or more, but all labels are {classes.tolist()}"
        )
    features = features.to(float64_device(device))
    standard = standardiser(features)
    samples = Samples(features, targets, standard)
    validation: dict[float, float] = {}
    best, start = grid[len(grid) // 2], None
    held = held_out(targets, None if groups is None else groups.cpu(), val_fraction, seed)
    if len(grid) > 1 and bool(held.any()):
        found, validating = {}, samples.select(held)
        fits = fit_path(samples.select(~held), len(classes), grid, max_iter=max_iter)
        for l2, solution in zip(grid, fits, strict=True):
            validation[l2], cross_entropy = _validate(validating, *solution)
            # The smallest key wins: the best accuracy, then the lowest cross-entropy, then the
            # strongest decay.
            found[-validation[l2], cross_entropy, -l2] = solution
            on_fit()
        best, start = -min(found)[2], found[min(found)]
    solution = next(fit_path(samples, len(classes), [best], start=start, max_iter=max_iter))
    on_fit()
    mean, scale, weight, bias = (part.cpu() for part in (*standard, *solution))
    return FittedProbe(mean, scale, weight, bias, classes, best, validation)


def _validate(samples: Samples, weight: Tensor, bias: Tensor) -> tuple[float, float]:
    """Return the top-1 accuracy (0 to 1) and the mean cross-entropy of a solution."""
    hits, losses = 0, 0.0
    for x, y in samples.blocks():
        logits = x @ weight + bias
        hits += int(top_k_hits(logits, y, 1).sum())
        losses += float(F.cross_entropy(logits, y, reduction="sum"))
    return hits / len(samples), losses / len(samples)


def num_fits(l2_grid: Sequence[float] = L2_GRID) -> int:
    """Return how often :func:`fit_linear_probe` fits if all classes have several samples."""
    grid = set(l2_grid)
    return len(grid) + 1 if len(grid) > 1 else 1


def standardiser(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (C,) float64 of each dimension of features (N, C).

    The deviation is 1 if a dimension is constant.
    """
    mean = feature_mean(x)
    variance, square = torch.zeros_like(mean), torch.zeros_like(mean)
    for block in float64_blocks(x):
        square += block.square().sum(dim=0)
        variance += (block - mean).square().sum(dim=0)
    std = (variance / len(x)).sqrt()
    floor = _CONSTANT * (square.mean() / len(x)).sqrt()
    return mean, torch.where(std > floor, std, torch.ones_like(std))
