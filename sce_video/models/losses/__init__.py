"""Losses and collapse metrics: pure functions of tensors and numbers."""

from sce_video.models.losses.byol import byol_loss
from sce_video.models.losses.collapse import effective_rank, feature_std
from sce_video.models.losses.moco_v3 import moco_v3_loss
from sce_video.models.losses.nt_xent import nt_xent_loss
from sce_video.models.losses.sce import SCETerms, check_weights, sce_loss, sce_terms
from sce_video.models.losses.sigreg import sigreg_loss

__all__ = [
    "SCETerms",
    "byol_loss",
    "check_weights",
    "effective_rank",
    "feature_std",
    "moco_v3_loss",
    "nt_xent_loss",
    "sce_loss",
    "sce_terms",
    "sigreg_loss",
]
