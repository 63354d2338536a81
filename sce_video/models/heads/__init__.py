"""Heads: from features to scores."""

from sce_video.models.heads.roi_action import RoIActionHead

__all__ = ["RoIActionHead"]
