"""The transforms of a data pipeline, from opening a file to packing views."""

from sce_video.datasets.transforms.decoding import (
    DecodeClips,
    DecodeSharedFrames,
    LoadImage,
    OpenFrameFolder,
    OpenVideo,
)
from sce_video.datasets.transforms.lazy_view import LazyView
from sce_video.datasets.transforms.packing import (
    PackBoxes,
    PackClips,
    PackVideo,
    crop_sides,
    cut_views,
)
from sce_video.datasets.transforms.sampling import (
    CenterSegmentClip,
    KeyFrameClip,
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
    crop_and_resize,
    crop_offsets,
    random_box,
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
    "crop_and_resize",
    "crop_offsets",
    "crop_sides",
    "cut_views",
    "random_box",
]
