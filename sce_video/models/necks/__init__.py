"""Necks: what stands between a representation and a loss."""

from sce_video.models.necks.mlp import MLP

__all__ = ["MLP"]
