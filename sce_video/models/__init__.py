"""Networks, losses and algorithms."""

from sce_video.models.algorithms import SCE
from sce_video.models.backbones import ResNet3dSlowPath
from sce_video.models.data_preprocessor import VideoDataPreprocessor
from sce_video.models.necks import MLP

__all__ = ["MLP", "SCE", "ResNet3dSlowPath", "VideoDataPreprocessor"]
