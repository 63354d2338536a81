"""Heads: from features to scores."""

from sce_video.models.heads.attentive_probe import AttentiveProbeHead
from sce_video.models.heads.roi_action import RoIActionHead

__all__ = ["AttentiveProbeHead", "RoIActionHead"]
