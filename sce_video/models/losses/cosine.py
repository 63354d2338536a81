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


def check_shapes(query: Tensor, key: Tensor, queue: Tensor) -> None:
    """Raise ValueError unless these are (N, D), (N, D) and (K, D) with K of at least 1."""
    if query.ndim != 2 or query.shape != key.shape:
        raise ValueError(
            "query and key must be (N, D) of the same shape, "
            f"got {tuple(query.shape)} and {tuple(key.shape)}"
        )
    if queue.ndim != 2 or queue.shape[1] != query.shape[1] or queue.shape[0] == 0:
        raise ValueError(
            f"queue must be (K, {query.shape[1]}) with K >= 1, got {tuple(queue.shape)}"
        )


def check_temperature(name: str, value: float) -> None:
    """Raise ValueError unless a temperature is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value}")


def byol_loss(query: Tensor, key: Tensor) -> Tensor:
    """``|q - k|^2 = 2 - 2 q.k`` of unit vectors, the mean over samples: 0 to 4, a scalar tensor.

    One direction: BYOL adds up that of both views as the query.

    Args:
        query: Predictions of the online branch, (N, D), l2-normalised.
        key: Embeddings of the target branch, (N, D), l2-normalised; no gradient flows into it.

    Raises:
        ValueError: shapes that do not match, or no samples.
    """
    check_same_shape("query and key", query, key)
    with torch.autocast(query.device.type, enabled=False):
        return 2 - 2 * (full_precision(query) * full_precision(key.detach())).sum(dim=1).mean()
