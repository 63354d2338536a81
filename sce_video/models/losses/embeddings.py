"""What losses of embeddings check and compute first."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def full_precision(x: Tensor) -> Tensor:
    """At least fp32: temperatures and sums over many candidates need more than 16 bits."""
    return x if x.dtype == torch.float64 else x.float()


def check_same_shape(names: str, first: Tensor, second: Tensor) -> None:
    """Raise ValueError unless both are (N, D) of the same shape, N and D at least 1.

    Args:
        names: What the caller names them, for the message: "query and key".
        first: Embeddings (N, D).
        second: Embeddings (N, D).
    """
    if first.ndim != 2 or first.shape != second.shape or 0 in first.shape:
        raise ValueError(
            f"{names} must be (N, D) of the same shape with N and D of at least 1, "
            f"got {tuple(first.shape)} and {tuple(second.shape)}"
        )


def check_temperature(tau: float) -> None:
    """Raise ValueError for a temperature that is not finite and above 0."""
    if not (tau > 0 and math.isfinite(tau)):
        raise ValueError(f"tau must be above 0 and finite, got {tau}")
