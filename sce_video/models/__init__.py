"""Networks, losses and algorithms."""

from sce_video.models.algorithms import SCE, Encoder
from sce_video.models.backbones import ResNet3dSlowPath
from sce_video.models.data_preprocessor import VideoDataPreprocessor
from sce_video.models.necks import MLP
from sce_video.models.recognizer_preprocessor import RecognizerDataPreprocessor

__all__ = [
    "MLP",
    "SCE",
    "Encoder",
    "RecognizerDataPreprocessor",
    "ResNet3dSlowPath",
    "VideoDataPreprocessor",
]
