"""Collapse metrics of a representation: spread on the unit sphere and effective rank."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Singular values below this fraction of the matrix' norm are float32 rounding noise, not rank.
_NOISE = 1e-6


def _check(h: Tensor) -> None:
    if h.ndim != 2 or 0 in h.shape:
        raise ValueError(f"h must be (N, C) with N, C >= 1, got shape {tuple(h.shape)}")


@torch.no_grad()
def feature_std(h: Tensor) -> Tensor:
    """Spread of a batch of representations on the unit sphere, 0 (collapsed) to about 1.

    The standard deviation (over the batch, biased) of every dimension of the l2-normalised ``h``,
    averaged over dimensions, times ``sqrt(C)``. Random directions give 1, a batch of equal
    directions gives 0. The same metric is plotted by Chen & He 2021 (SimSiam, arXiv 2011.10566,
    figure 2) without the factor ``sqrt(C)``.

    Args:
        h: Representations (N, C), any floating type.

    Returns:
        A float32 scalar on the device of ``h``.

    Raises:
        ValueError: ``h`` is not (N, C) or is empty.
    """
    _check(h)
    unit = F.normalize(h.detach().float(), dim=1)
    return unit.std(dim=0, correction=0).mean() * h.shape[1] ** 0.5


@torch.no_grad()
def effective_rank(h: Tensor) -> Tensor:
    """Effective rank of a batch of representations: exp of the entropy of its spectrum.

    Roy & Vetterli 2007, "The effective rank": the singular values of the centred matrix, divided
    by their sum, are taken as a distribution; the exponential of its entropy is r for r equal
    singular values. A batch of equal rows gives 0. Computed in float64 from the smaller of the two
    Gram matrices; singular values below 1e-6 of the matrix' norm count as zero, so that the
    rounding noise of a collapsed network does not look like a high rank.

    Args:
        h: Representations (N, C), any floating type. The rank is at most ``min(N - 1, C)``.

    Returns:
        A float32 scalar on the device of ``h``; NaN when ``h`` is not finite.

    Raises:
        ValueError: ``h`` is not (N, C) or is empty.
    """
    _check(h)
    h = h.detach().double()
    if not torch.isfinite(h).all():
        return h.new_full((), float("nan")).float()
    centred = h - h.mean(dim=0)
    gram = centred @ centred.T if len(h) < h.shape[1] else centred.T @ centred
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    singular = torch.where(singular > _NOISE * torch.linalg.vector_norm(h), singular, 0.0)
    total = singular.sum()
    share = singular / total.clamp(min=torch.finfo(total.dtype).tiny)
    rank = torch.special.entr(share).sum().exp()
    return torch.where(total > 0, rank, torch.zeros_like(rank)).float()
