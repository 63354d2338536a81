"""Losses and collapse metrics: pure functions of tensors and numbers."""

from sce_video.models.losses.collapse import effective_rank, feature_std, logged_rank
from sce_video.models.losses.sce import (
    SCETerms,
    ceil_loss,
    check_coefficients,
    check_sce,
    info_nce_loss,
    ressl_loss,
    sce_chance_level,
    sce_free_loss,
    sce_loss,
    sce_terms,
    sce_warnings,
    sharpness_warnings,
    split_coefficients,
)
from sce_video.models.losses.siamese import byol_loss, check_temperature, moco_v3_loss, nt_xent_loss
from sce_video.models.losses.sigreg import sigreg_loss
from sce_video.models.losses.swav import sinkhorn, swav_loss

__all__ = [
    "SCETerms",
    "byol_loss",
    "ceil_loss",
    "check_coefficients",
    "check_sce",
    "check_temperature",
    "effective_rank",
    "feature_std",
    "info_nce_loss",
    "logged_rank",
    "moco_v3_loss",
    "nt_xent_loss",
    "ressl_loss",
    "sce_chance_level",
    "sce_free_loss",
    "sce_loss",
    "sce_terms",
    "sce_warnings",
    "sharpness_warnings",
    "sigreg_loss",
    "sinkhorn",
    "split_coefficients",
    "swav_loss",
]
