"""Algorithms, networks, losses, augmentation and data preprocessors."""

from sce_video.models.algorithms import SCE, ActionDetector, Encoder
from sce_video.models.backbones import (
    S3D,
    EfficientNetLite,
    R2Plus1d,
    ResNet2d,
    ResNet3dSlowPath,
    TimmEncoder,
    VisionTransformer3d,
)
from sce_video.models.data_preprocessors import (
    BoxDataPreprocessor,
    RecognizerDataPreprocessor,
    VideoDataPreprocessor,
)
from sce_video.models.heads import MLP, AttentiveProbeHead, RoIActionHead
from sce_video.models.recognizer import ActionDataSample, I3DHead, Recognizer3D

__all__ = [
    "MLP",
    "S3D",
    "SCE",
    "ActionDataSample",
    "ActionDetector",
    "AttentiveProbeHead",
    "BoxDataPreprocessor",
    "EfficientNetLite",
    "Encoder",
    "I3DHead",
    "R2Plus1d",
    "Recognizer3D",
    "RecognizerDataPreprocessor",
    "ResNet2d",
    "ResNet3dSlowPath",
    "RoIActionHead",
    "TimmEncoder",
    "VideoDataPreprocessor",
    "VisionTransformer3d",
]
