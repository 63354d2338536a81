"""Collapse metrics of a representation: spread on the unit sphere and effective rank."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.utils.tensors import DeferredNumber, LoggedValue, float64_blocks

# Singular values below this fraction of the matrix norm are rounding noise in float32.
_NOISE = 1e-6


@torch.no_grad()
def feature_std(h: Tensor) -> Tensor:
    """Compute the spread of representations h (N, C) on the unit sphere.

    The spread is the biased standard deviation of the l2-normalised ``h`` over the batch, averaged
    over dimensions and multiplied by ``sqrt(C)``. Chen & He 2021 (SimSiam, arXiv 2011.10566, figure
    2) plot it without the factor ``sqrt(C)``.

    Returns:
        A float32 scalar, which is 0 for a batch of equal directions and 1 for random directions.
    """
    _check(h)
    unit = F.normalize(h.detach().float(), dim=1)
    return unit.std(dim=0, correction=0).mean() * h.shape[1] ** 0.5


@torch.no_grad()
def effective_rank(h: Tensor) -> Tensor:
    """Compute the effective rank of representations h (N, C), the exp of the spectrum's entropy.

    The singular values of the centred matrix, divided by their sum, are treated as a distribution.
    For r equal singular values, the exponential of its entropy is r (Roy & Vetterli 2007, "The
    effective rank"). It is computed in float64 from the smaller of the two Gram matrices. Singular
    values below 1e-6 of the matrix norm count as zero, so that the rounding noise of a collapsed
    network does not look like a high rank.

    Returns:
        A float32 scalar, at most ``min(N - 1, C)``. It is 0 for a batch of equal rows, and NaN if h
        is not finite.
    """
    return _rank_of(_gram_and_norm(h)).to(h.device)


def logged_rank(h: Tensor) -> LoggedValue:
    """Compute :func:`effective_rank` without waiting for a GPU.

    Computing eigenvalues makes the host wait, because it reads whether the solver has converged. A
    GPU therefore computes only the Gram matrix, and the host computes the rest when the number is
    read.
    """
    if _is_on_host(h):
        return effective_rank(h)
    return DeferredNumber(_gram_and_norm(h), _rank_of)


def _check(h: Tensor) -> None:
    if h.ndim != 2 or 0 in h.shape:
        raise ValueError(f"h must be (N, C) with N, C >= 1, got shape {tuple(h.shape)}")


def _is_on_host(h: Tensor) -> bool:
    return h.device.type == "cpu"


@torch.no_grad()
def _gram_and_norm(h: Tensor) -> Tensor:
    """Return the smaller Gram matrix of the centred h as a vector, followed by the norm of h."""
    _check(h)
    h = h.detach()
    mean = torch.stack([block.sum(dim=0) for block in float64_blocks(h)]).sum(dim=0) / len(h)
    if len(h) < h.shape[1]:
        centred = h.double() - mean
        gram = centred @ centred.T
    else:
        # Convert block by block, because a test may have a million rows, whose copy in float64 may
        # not fit into memory.
        gram = mean.new_zeros(len(mean), len(mean))
        for block in float64_blocks(h):
            centred = block - mean
            gram.addmm_(centred.T, centred)
    norms = [torch.linalg.vector_norm(block) for block in float64_blocks(h)]
    return torch.cat([gram.flatten(), torch.linalg.vector_norm(torch.stack(norms)).reshape(1)])


def _rank_of(gram_and_norm: Tensor) -> Tensor:
    if not torch.isfinite(gram_and_norm).all():
        return gram_and_norm.new_full((), float("nan")).float()
    gram, norm = gram_and_norm[:-1], gram_and_norm[-1]
    side = math.isqrt(len(gram))
    singular = torch.linalg.eigvalsh(gram.reshape(side, side)).clamp(min=0).sqrt()
    singular = torch.where(singular > _NOISE * norm, singular, 0.0)
    total = singular.sum()
    share = singular / total.clamp(min=torch.finfo(total.dtype).tiny)
    rank = torch.special.entr(share).sum().exp()
    return torch.where(total > 0, rank, torch.zeros_like(rank)).float()
