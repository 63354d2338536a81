"""The transform that decodes an image into views of one frame."""

from __future__ import annotations

from typing import Any

import numpy as np

from sce_video.datasets.decode_limits import MAX_IMAGE_PIXELS, DecodeLimits
from sce_video.datasets.readers.base import ArrayFrames, DecodedFrames, check_deadline
from sce_video.datasets.readers.images import open_jpeg, read_image
from sce_video.datasets.transforms.lazy_view import LazyView
from sce_video.datasets.transforms.resizing import RESIZES
from sce_video.datasets.transforms.sampling import check_view_counts
from sce_video.registry import TRANSFORMS


@TRANSFORMS.register_module()
class LoadImage:
    """Decode the image at ``path`` once, as V views (1, H, W, 3) of it.

    Decoded by OpenCV to 8-bit RGB: the EXIF orientation is applied, greyscale is repeated to three
    channels, CMYK is converted, an alpha channel is dropped, of 16 bits the upper 8 are kept. An
    image of an :class:`~sce_video.datasets.ImageArrayDataset` is taken as it is.

    Args:
        num_views: V, with the local views.
        max_pixels: Height x width of the largest image that is decoded.
        num_local_views: L, the last views, to which :class:`RandomResizedCropClips` gives a smaller
            size: multi-crop (SwAV, arXiv 2006.09882).
        resize: How later steps resize the views. ``pil``: bilinear with antialiasing as Pillow and
            torchvision do, within 1 of 255; ``pil_bicubic``: within 2; ``linear``: without
            antialiasing, as the views of videos.
        reduced: Decode a JPEG file at 1/2, 1/4 or 1/8 if all views have enough pixels then. Faster
            for large images; a crop may be shifted by half a pixel of its output.
    """

    def __init__(
        self,
        num_views: int = 2,
        max_pixels: int = MAX_IMAGE_PIXELS,
        num_local_views: int = 0,
        resize: str = "pil",
        reduced: bool = False,
    ) -> None:
        check_view_counts(num_views, num_local_views)
        self.num_views = num_views
        self.num_local_views = num_local_views
        self.limits = DecodeLimits(max_pixels)
        if resize not in RESIZES:
            raise ValueError(f"resize must be one of {', '.join(RESIZES)}, got {resize!r}")
        self.resize = resize
        self.reduced = reduced

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``image``, or ``path`` (and ``deadline``); write ``views``: list of V ``LazyView``.

        ``num_local_views`` is written, too.

        Raises:
            VideoDecodeError: The file cannot be opened or decoded, is too large, or the deadline
                has passed.
        """
        frames = self._load(results)
        check_deadline(results["path"], results.get("deadline"))
        first = np.zeros(1, dtype=np.int64)
        results["limits"] = self.limits
        results["num_local_views"] = self.num_local_views
        resize = RESIZES[self.resize]
        results["views"] = [LazyView(frames, first, resize=resize) for _ in range(self.num_views)]
        return results

    def _load(self, results: dict[str, Any]) -> DecodedFrames:
        image = results.pop("image", None)
        if image is None and self.reduced:
            image = open_jpeg(results["path"], self.limits, results.get("deadline"))
        elif image is None:
            image = read_image(results["path"], self.limits)
        return image if isinstance(image, DecodedFrames) else ArrayFrames(image[None])
