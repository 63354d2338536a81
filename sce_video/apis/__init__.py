"""Load a pretrained network, embed videos, search an index of them, classify videos."""

from sce_video.apis.embed import EmbedOptions, FileRows, embed, embed_files
from sce_video.apis.model import VideoModel, load_model
from sce_video.apis.predict import predict, predict_files, top_classes
from sce_video.apis.video_classifier import VideoClassifier, load_classifier

__all__ = [
    "EmbedOptions",
    "FileRows",
    "VideoClassifier",
    "VideoModel",
    "embed",
    "embed_files",
    "load_classifier",
    "load_model",
    "predict",
    "predict_files",
    "top_classes",
]
