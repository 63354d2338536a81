"""Networks, losses and algorithms."""

from sce_video.models.algorithms import SCE, ActionDetector, Encoder
from sce_video.models.backbones import ResNet3dSlowPath
from sce_video.models.box_preprocessor import BoxDataPreprocessor
from sce_video.models.data_preprocessor import VideoDataPreprocessor
from sce_video.models.heads import RoIActionHead
from sce_video.models.necks import MLP
from sce_video.models.recognizer_preprocessor import RecognizerDataPreprocessor

__all__ = [
    "MLP",
    "SCE",
    "ActionDetector",
    "BoxDataPreprocessor",
    "Encoder",
    "RecognizerDataPreprocessor",
    "ResNet3dSlowPath",
    "RoIActionHead",
    "VideoDataPreprocessor",
]
