"""Heads: from features to scores."""

from sce_video.models.heads.i3d import I3DHead
from sce_video.models.heads.roi_action import RoIActionHead

__all__ = ["I3DHead", "RoIActionHead"]
