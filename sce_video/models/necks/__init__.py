"""Necks: projectors and predictors, between the representation and the loss."""

from sce_video.models.necks.mlp import MLP

__all__ = ["MLP"]
