"""Algorithms: one readable file per method."""

from sce_video.models.algorithms.action_detector import ActionDetector
from sce_video.models.algorithms.encoder import Encoder
from sce_video.models.algorithms.sce import SCE

__all__ = ["SCE", "ActionDetector", "Encoder"]
