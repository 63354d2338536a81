"""Optimisers and their parameter groups."""

from sce_video.engine.optimizers.lars import LARS
from sce_video.engine.optimizers.no_norm_decay import NoNormDecayConstructor
from sce_video.engine.optimizers.probe_grid import ProbeGridConstructor

__all__ = ["LARS", "NoNormDecayConstructor", "ProbeGridConstructor"]
