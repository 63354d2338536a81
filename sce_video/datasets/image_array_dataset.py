"""The data set of images that are published as arrays and held in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sce_video.datasets.array_sets import ARRAY_SETS
from sce_video.datasets.pipeline import Transform
from sce_video.datasets.video_dataset import VideoDataset
from sce_video.datasets.video_list import VideoList
from sce_video.registry import DATASETS


@DATASETS.register_module()
class ImageArrayDataset(VideoDataset):
    """CIFAR10, CIFAR100 or STL10 from the folder that the official archive unpacks to.

    The images are held in memory once: forked loader workers share the memory of their parent, and
    STL10 is mapped from its file. The pipeline is that of :class:`ImageDataset`, beginning with
    :class:`~sce_video.datasets.transforms.LoadImage`. The path of an image is FILE#NUMBER.

    Args:
        name: ``cifar10``, ``cifar100`` or ``stl10``.
        data_root: Folder in which the archive was unpacked.
        split: ``train`` or ``test``; of STL10 also ``unlabeled`` and ``train+unlabeled``.
        pipeline: Transforms, built or as configs; they also get ``image``, (H, W, 3) uint8.
        check_counts: Refuse other numbers of images than the published ones.

    Raises:
        ValueError: An unknown name or split, a missing or damaged file, or other counts.
    """

    kind = "image"

    def __init__(
        self,
        name: str,
        data_root: str,
        split: str = "train",
        pipeline: Sequence[Transform | dict[str, Any]] = (),
        check_counts: bool = True,
    ) -> None:
        if name not in ARRAY_SETS:
            raise ValueError(f"name must be one of {', '.join(ARRAY_SETS)}, got {name!r}")
        self.name = name
        self.split = split
        self.check_counts = check_counts
        super().__init__(data_root, None, pipeline, on_error="raise", timeout=None)

    def _list_videos(self, extensions: Sequence[str]) -> VideoList:
        arrays = ARRAY_SETS[self.name](self.data_root, self.split, self.check_counts)
        self._arrays = arrays
        return VideoList.from_paths(arrays.names(), arrays.labels.tolist(), arrays.classes)

    def _inputs(self, index: int, seed: int) -> dict[str, Any]:
        return {**super()._inputs(index, seed), "image": self._arrays.image(index)}
