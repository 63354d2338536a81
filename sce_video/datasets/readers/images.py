"""Decode image files: single images, and the frames of a folder."""

from __future__ import annotations

import io

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.base import check_regular_file
from sce_video.datasets.readers.limits import DecodeLimits

_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM", "JPEG2000")


def read_image(path: str, limits: DecodeLimits) -> np.ndarray:
    """(H, W, 3) uint8 RGB.

    Decoded from memory: ``cv2.imread`` fills the missing part of a truncated JPEG file with grey,
    ``cv2.imdecode`` refuses it. The size is read before, from the file's header.

    Raises:
        VideoDecodeError: The file cannot be opened or decoded, or the image is too large.
    """
    check_regular_file(path)
    try:
        encoded = np.fromfile(path, dtype=np.uint8)
        limits.check_frame(path, *_image_size(path, encoded))
        image = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    except OSError as error:
        raise VideoDecodeError(path, f"cannot be opened: {error.strerror}") from error
    except (cv2.error, MemoryError) as error:
        reason = getattr(error, "err", None) or type(error).__name__
        raise VideoDecodeError(path, f"cannot be decoded: {reason}") from error
    if image is None:
        raise VideoDecodeError(path, "is no image that can be decoded")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def _image_size(path: str, encoded: np.ndarray) -> tuple[int, int]:
    """Height and width by the header of an image; nothing is decoded."""
    try:
        with Image.open(io.BytesIO(encoded.data), formats=_FORMATS) as image:
            return image.height, image.width
    except Image.DecompressionBombError as error:  # more than pillow ever opens
        raise VideoDecodeError(path, f"is too large: {error}") from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, KeyError) as error:
        raise VideoDecodeError(path, "is no image that can be decoded") from error
