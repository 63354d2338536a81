"""Losses and collapse metrics: pure functions of tensors and numbers."""

from sce_video.models.losses.collapse import effective_rank, feature_std
from sce_video.models.losses.sce import SCETerms, check_weights, sce_loss, sce_terms
from sce_video.models.losses.swav import sinkhorn, swav_loss

__all__ = [
    "SCETerms",
    "check_weights",
    "effective_rank",
    "feature_std",
    "sce_loss",
    "sce_terms",
    "sinkhorn",
    "swav_loss",
]
