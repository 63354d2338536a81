"""Backbones: clips (N, 3, T, H, W) to feature maps (N, C, T, H', W')."""

from sce_video.models.backbones.resnet3d_slow_path import ResNet3dSlowPath

__all__ = ["ResNet3dSlowPath"]
