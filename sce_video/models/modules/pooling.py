"""From feature maps to representations."""

from __future__ import annotations

from torch import Tensor, nn


def average_pool(features: Tensor) -> Tensor:
    """Mean of features (N, C, ...) over all dimensions after C, (N, C)."""
    return features.mean(dim=tuple(range(2, features.ndim)))


def represent(backbone: nn.Module, view: Tensor) -> Tensor:
    """Representation h (N, C) of a view (N, 3, T, H, W).

    Features are pooled by ``backbone.pool`` where the backbone has one, else by
    :func:`average_pool` (mmaction2's backbones have none).
    """
    features = backbone(view)
    pool = getattr(backbone, "pool", None)
    return average_pool(features) if pool is None else pool(features)
