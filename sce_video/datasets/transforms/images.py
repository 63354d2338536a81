"""The transform that decodes an image into views of one frame."""

from __future__ import annotations

from typing import Any

import numpy as np

from sce_video.datasets.readers.base import ArrayFrames, check_deadline
from sce_video.datasets.readers.images import read_image
from sce_video.datasets.readers.limits import MAX_IMAGE_PIXELS, DecodeLimits
from sce_video.datasets.transforms.lazy_view import LazyView
from sce_video.datasets.transforms.sampling import check_view_counts
from sce_video.registry import TRANSFORMS


@TRANSFORMS.register_module()
class LoadImage:
    """Decode the image at ``path`` once, as V views (1, H, W, 3) of it.

    Decoded by OpenCV to 8-bit RGB: the EXIF orientation is applied, greyscale is repeated to three
    channels, an alpha channel is dropped.

    Args:
        num_views: V, with the local views.
        max_pixels: Height x width of the largest image that is decoded.
        num_local_views: L, the last views, to which :class:`RandomResizedCropClips` gives a smaller
            size: multi-crop (SwAV, arXiv 2006.09882).
    """

    def __init__(
        self,
        num_views: int = 2,
        max_pixels: int = MAX_IMAGE_PIXELS,
        num_local_views: int = 0,
    ) -> None:
        check_view_counts(num_views, num_local_views)
        self.num_views = num_views
        self.num_local_views = num_local_views
        self.limits = DecodeLimits(max_pixels)

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``path`` (and ``deadline`` if present), write ``views`` and ``num_local_views``.

        Raises:
            VideoDecodeError: The file cannot be opened or decoded, is too large, or the deadline
                has passed.
        """
        frames = ArrayFrames(read_image(results["path"], self.limits)[None])
        check_deadline(results["path"], results.get("deadline"))
        first = np.zeros(1, dtype=np.int64)
        results["limits"] = self.limits
        results["num_local_views"] = self.num_local_views
        results["views"] = [LazyView(frames, first) for _ in range(self.num_views)]
        return results
