"""Image data sets that are published as arrays: CIFAR10, CIFAR100, STL10."""

from __future__ import annotations

from collections.abc import Callable

from sce_video.datasets.array_sets.cifar import read_cifar10, read_cifar100
from sce_video.datasets.array_sets.image_arrays import ImageArrays
from sce_video.datasets.array_sets.stl10 import read_stl10

#: Reader of each set by name: (root, split, whether to check counts) -> images.
ARRAY_SETS: dict[str, Callable[[str, str, bool], ImageArrays]] = {
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "stl10": read_stl10,
}

__all__ = ["ARRAY_SETS", "ImageArrays", "read_cifar10", "read_cifar100", "read_stl10"]
