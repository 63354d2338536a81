"""The transform that decodes an image into views of one frame."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.base import ArrayFrames, check_deadline, check_regular_file
from sce_video.datasets.transforms.lazy_view import LazyView
from sce_video.registry import TRANSFORMS


@TRANSFORMS.register_module()
class LoadImage:
    """Decode the image at ``path`` once, as V views (1, H, W, 3) of it.

    Decoded by OpenCV to 8-bit RGB: the EXIF orientation is applied, greyscale is repeated to three
    channels, an alpha channel is dropped.

    Args:
        num_views: V.
    """

    def __init__(self, num_views: int = 2) -> None:
        if num_views < 1:
            raise ValueError(f"num_views must be at least 1, got {num_views}")
        self.num_views = num_views

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``path`` (and ``deadline`` if present), write ``views``: list of V ``LazyView``.

        Raises:
            VideoDecodeError: The file cannot be opened or decoded, or the deadline has passed.
        """
        frames = ArrayFrames(_read_image(results["path"])[None])
        check_deadline(results["path"], results.get("deadline"))
        first = np.zeros(1, dtype=np.int64)
        results["views"] = [LazyView(frames, first) for _ in range(self.num_views)]
        return results


def _read_image(path: str) -> np.ndarray:
    """(H, W, 3) uint8 RGB.

    Decoded from memory: ``cv2.imread`` fills the missing part of a truncated JPEG file with grey,
    ``cv2.imdecode`` refuses it.
    """
    check_regular_file(path)
    try:
        encoded = np.fromfile(path, dtype=np.uint8)
        image = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    except OSError as error:
        raise VideoDecodeError(path, f"cannot be opened: {error.strerror}") from error
    except (cv2.error, MemoryError) as error:  # OpenCV refuses more than 2**30 pixels
        reason = getattr(error, "err", None) or type(error).__name__
        raise VideoDecodeError(path, f"cannot be decoded: {reason}") from error
    if image is None:
        raise VideoDecodeError(path, "is no image that can be decoded")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
