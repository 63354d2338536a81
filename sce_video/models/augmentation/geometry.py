"""Geometry on batches of views."""

from __future__ import annotations

from torch import Tensor


def flip_horizontal(x: Tensor) -> Tensor:
    """Mirror (N, C, T, H, W) left to right."""
    return x.flip(-1)
