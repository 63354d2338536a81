"""Optimisers."""

from sce_video.engine.optimizers.lars import LARS

__all__ = ["LARS"]
