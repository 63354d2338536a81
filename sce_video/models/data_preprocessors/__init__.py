"""Data preprocessors: from the collated uint8 batch to the input of a network, on its device."""

from sce_video.models.data_preprocessors.boxes import BoxDataPreprocessor
from sce_video.models.data_preprocessors.recognizer import RecognizerDataPreprocessor
from sce_video.models.data_preprocessors.video import VideoDataPreprocessor

__all__ = ["BoxDataPreprocessor", "RecognizerDataPreprocessor", "VideoDataPreprocessor"]
