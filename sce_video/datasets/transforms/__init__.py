"""The transforms of a data pipeline, from opening a file to packing views."""

from sce_video.datasets.transforms.decoding import (
    DecodeClips,
    DecodeSharedFrames,
    LoadImage,
    OpenFrameFolder,
    OpenVideo,
    PackBoxes,
    PackClips,
    PackVideo,
    cut_views,
)
from sce_video.datasets.transforms.lazy_view import LazyView
from sce_video.datasets.transforms.sampling import (
    CenterSegmentClip,
    KeyFrameClip,
    OneOfClips,
    RandomClips,
    RandomFrame,
    RandomSegmentClip,
    UniformClips,
)
from sce_video.datasets.transforms.spatial import (
    CenterCropClips,
    FlipWithBoxes,
    PillowResizeCenterCrop,
    RandomCropClips,
    RandomResizedCropClips,
    ResizeAsProcessor,
    ResizeShortSide,
)

__all__ = [
    "CenterCropClips",
    "CenterSegmentClip",
    "DecodeClips",
    "DecodeSharedFrames",
    "FlipWithBoxes",
    "KeyFrameClip",
    "LazyView",
    "LoadImage",
    "OneOfClips",
    "OpenFrameFolder",
    "OpenVideo",
    "PackBoxes",
    "PackClips",
    "PackVideo",
    "PillowResizeCenterCrop",
    "RandomClips",
    "RandomCropClips",
    "RandomFrame",
    "RandomResizedCropClips",
    "RandomSegmentClip",
    "ResizeAsProcessor",
    "ResizeShortSide",
    "UniformClips",
    "cut_views",
]
