"""The data set of images: a list or a folder of image files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sce_video.datasets.pipeline import Transform
from sce_video.datasets.video_dataset import VideoDataset
from sce_video.datasets.video_list import IMAGE_EXTENSIONS
from sce_video.registry import DATASETS


@DATASETS.register_module()
class ImageDataset(VideoDataset):
    """Images from an annotation list or from a folder; a :class:`VideoDataset` of other files.

    Seeds, bad files, time limit, labels and classes are those of :class:`VideoDataset`. The
    pipeline begins with :class:`~sce_video.datasets.transforms.LoadImage`; an image is a clip of
    one frame, so crops, packing and collating are those of videos.

    Args:
        data_root: Folder the paths of the list are relative to; or the folder to search.
        ann_file: Annotation list with ``path label`` or ``path`` on every line; None searches
            ``data_root``, whose first-level sub-folders are the classes.
        pipeline: Transforms, built or as configs.
        on_error: ``replace``, ``raise`` or ``skip``.
        timeout: Seconds a sample may take; None for no limit.
        max_tries: Replacements tried before an error is raised.
        extensions: Extensions of the files, when a folder is searched.
        class_file: Names of the labels of a list, one per line from label 0.

    Raises:
        ValueError: Nothing to read, or a wrong option.
    """

    kind = "image"

    def __init__(
        self,
        data_root: str = "",
        ann_file: str | None = None,
        pipeline: Sequence[Transform | dict[str, Any]] = (),
        on_error: str = "replace",
        timeout: float | None = 60.0,
        max_tries: int = 10,
        extensions: Sequence[str] = IMAGE_EXTENSIONS,
        class_file: str | None = None,
    ) -> None:
        super().__init__(
            data_root, ann_file, pipeline, on_error, timeout, max_tries, extensions, class_file
        )
