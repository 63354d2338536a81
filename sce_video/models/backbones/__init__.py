"""Backbones, which map a view (N, 3, T, H, W) to features (N, C, T', H', W').

A backbone is a registered class with ``forward(view)``, ``pool(features) -> (N, C)`` and
``out_channels``. All modules in this folder are imported with the package, so a new backbone needs
only one new file here. It can also be in a module of your own that ``--import`` names.
"""

from sce_video.models.backbones.efficientnet_lite import EfficientNetLite
from sce_video.models.backbones.hf_encoder import HFEncoder
from sce_video.models.backbones.r2plus1d import R2Plus1d
from sce_video.models.backbones.resnet2d import ResNet2d
from sce_video.models.backbones.resnet3d_slow_path import ResNet3dSlowPath
from sce_video.models.backbones.s3d import S3D
from sce_video.models.backbones.timm_encoder import TimmEncoder
from sce_video.models.backbones.vision_transformer3d import VisionTransformer3d
from sce_video.utils.imports import import_submodules

__all__ = [
    "S3D",
    "EfficientNetLite",
    "HFEncoder",
    "R2Plus1d",
    "ResNet2d",
    "ResNet3dSlowPath",
    "TimmEncoder",
    "VisionTransformer3d",
]

import_submodules(__name__, __path__)
