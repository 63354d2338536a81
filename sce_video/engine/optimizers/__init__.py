"""Optimisers and their parameter groups."""

from sce_video.engine.optimizers.lars import LARS
from sce_video.engine.optimizers.no_norm_decay import NoNormDecayConstructor

__all__ = ["LARS", "NoNormDecayConstructor"]
