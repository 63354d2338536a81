"""Losses and collapse metrics, all of them pure functions of tensors and numbers."""

from sce_video.models.losses.collapse import effective_rank, feature_std
from sce_video.models.losses.frame_losses import FrameScales, frame_scales, frame_terms
from sce_video.models.losses.sce_losses import (
    SCETerms,
    ceil_loss,
    info_nce_loss,
    ressl_loss,
    sce_free_loss,
    sce_loss,
    sce_terms,
)
from sce_video.models.losses.siamese import byol_loss, moco_v3_loss, nt_xent_loss
from sce_video.models.losses.sigreg import sigreg_loss
from sce_video.models.losses.swav_losses import sinkhorn, swav_loss

__all__ = [
    "FrameScales",
    "SCETerms",
    "byol_loss",
    "ceil_loss",
    "effective_rank",
    "feature_std",
    "frame_scales",
    "frame_terms",
    "info_nce_loss",
    "moco_v3_loss",
    "nt_xent_loss",
    "ressl_loss",
    "sce_free_loss",
    "sce_loss",
    "sce_terms",
    "sigreg_loss",
    "sinkhorn",
    "swav_loss",
]
