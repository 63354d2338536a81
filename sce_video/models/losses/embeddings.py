"""What losses of embeddings check and compute first."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def full_precision(x: Tensor) -> Tensor:
    """At least fp32: temperatures and sums over many candidates need more than 16 bits."""
    return x if x.dtype == torch.float64 else x.float()


def check_same_shape(**embeddings: Tensor) -> None:
    """Raise ValueError unless the named embeddings are (N, D), N >= 1, all of the same shape."""
    shapes = [tuple(x.shape) for x in embeddings.values()]
    if len(set(shapes)) > 1 or len(shapes[0]) != 2 or 0 in shapes[0]:
        raise ValueError(
            f"{' and '.join(embeddings)} must be (N, D) of the same shape with N and D of at least "
            f"1, got {' and '.join(map(str, shapes))}"
        )


def check_temperature(tau: float) -> None:
    """Raise ValueError for a temperature that is not finite and above 0."""
    if not (tau > 0 and math.isfinite(tau)):
        raise ValueError(f"tau must be above 0 and finite, got {tau}")
