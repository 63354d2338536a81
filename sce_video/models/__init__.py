"""Algorithms, networks, losses, augmentation and data preprocessors."""

from sce_video.models.algorithms import SCE, ActionDetector, Encoder
from sce_video.models.backbones import (
    S3D,
    R2Plus1d,
    ResNet2d,
    ResNet3dSlowPath,
    VisionTransformer3d,
)
from sce_video.models.data_preprocessors import (
    BoxDataPreprocessor,
    RecognizerDataPreprocessor,
    VideoDataPreprocessor,
)
from sce_video.models.heads import MLP, AttentiveProbeHead, RoIActionHead

__all__ = [
    "MLP",
    "S3D",
    "SCE",
    "ActionDetector",
    "AttentiveProbeHead",
    "BoxDataPreprocessor",
    "Encoder",
    "R2Plus1d",
    "RecognizerDataPreprocessor",
    "ResNet2d",
    "ResNet3dSlowPath",
    "RoIActionHead",
    "VideoDataPreprocessor",
    "VisionTransformer3d",
]
