"""The transform that decodes an image into views of one frame."""

from __future__ import annotations

from typing import Any

import numpy as np

from sce_video.datasets.readers.base import ArrayFrames, check_deadline
from sce_video.datasets.readers.images import read_image
from sce_video.datasets.readers.limits import MAX_IMAGE_PIXELS, DecodeLimits
from sce_video.datasets.transforms.lazy_view import LazyView
from sce_video.registry import TRANSFORMS


@TRANSFORMS.register_module()
class LoadImage:
    """Decode the image at ``path`` once, as V views (1, H, W, 3) of it.

    Decoded by OpenCV to 8-bit RGB: the EXIF orientation is applied, greyscale is repeated to three
    channels, an alpha channel is dropped.

    Args:
        num_views: V.
        max_pixels: Height x width of the largest image that is decoded.
    """

    def __init__(self, num_views: int = 2, max_pixels: int = MAX_IMAGE_PIXELS) -> None:
        if num_views < 1:
            raise ValueError(f"num_views must be at least 1, got {num_views}")
        self.num_views = num_views
        self.limits = DecodeLimits(max_pixels)

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``image``, or ``path`` (and ``deadline``); write ``views``: list of V ``LazyView``.

        Raises:
            VideoDecodeError: The file cannot be opened or decoded, is too large, or the deadline
                has passed.
        """
        image = results.pop("image", None)
        if image is None:
            image = read_image(results["path"], self.limits)
        frames = ArrayFrames(image[None])
        check_deadline(results["path"], results.get("deadline"))
        first = np.zeros(1, dtype=np.int64)
        results["limits"] = self.limits
        results["views"] = [LazyView(frames, first) for _ in range(self.num_views)]
        return results
