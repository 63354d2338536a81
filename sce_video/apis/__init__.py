"""Load a pretrained network, embed videos and search an index of them."""

from sce_video.apis.embed import EmbedOptions, embed, embed_files
from sce_video.apis.model import VideoModel, load_model

__all__ = ["EmbedOptions", "VideoModel", "embed", "embed_files", "load_model"]
