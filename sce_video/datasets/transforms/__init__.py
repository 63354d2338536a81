"""The steps of a data pipeline, from an open file to packed views."""

from sce_video.datasets.transforms.decoding import DecodeClips, OpenVideo, rgb_difference
from sce_video.datasets.transforms.packing import PackClips
from sce_video.datasets.transforms.sampling import RandomClips, UniformClips
from sce_video.datasets.transforms.spatial import (
    CenterCropClips,
    RandomCropClips,
    RandomResizedCropClips,
    ResizeShortSide,
    ThreeCrops,
    crop_and_resize,
    random_box,
)

__all__ = [
    "CenterCropClips",
    "DecodeClips",
    "OpenVideo",
    "PackClips",
    "RandomClips",
    "RandomCropClips",
    "RandomResizedCropClips",
    "ResizeShortSide",
    "ThreeCrops",
    "UniformClips",
    "crop_and_resize",
    "random_box",
    "rgb_difference",
]
