"""Losses and collapse metrics: pure functions of tensors and numbers."""

from sce_video.models.losses.collapse import effective_rank, feature_std
from sce_video.models.losses.decomposition import (
    ceil_loss,
    check_coefficients,
    check_temperature,
    coefficient_warnings,
    info_nce_loss,
    ressl_loss,
    sce_free_loss,
    sharpness_warnings,
)
from sce_video.models.losses.sce import SCETerms, check_weights, sce_loss, sce_terms

__all__ = [
    "SCETerms",
    "ceil_loss",
    "check_coefficients",
    "check_temperature",
    "check_weights",
    "coefficient_warnings",
    "effective_rank",
    "feature_std",
    "info_nce_loss",
    "ressl_loss",
    "sce_free_loss",
    "sce_loss",
    "sce_terms",
    "sharpness_warnings",
]
