"""Decode image files, and read the frames in a folder like a video."""

from __future__ import annotations

import io
import os
import re
from typing import Unpack

import cv2
import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from sce_video.datasets.readers.base import (
    DecodedFrames,
    DecodeLimits,
    ReaderOptions,
    VideoDecodeError,
    VideoReader,
    check_deadline,
    check_regular_file,
)
from sce_video.registry import READERS
from sce_video.utils.files import regular_file

_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM", "JPEG2000")
#: OpenCV's flag for each factor by which libjpeg can shrink an image by omitting high frequencies.
_REDUCED = {1: 0, **{n: getattr(cv2, f"IMREAD_REDUCED_GRAYSCALE_{n}") for n in (2, 4, 8)}}
#: Flag with which libjpeg itself writes RGB. If OpenCV lacks it, the image is converted afterwards.
_RGB: int = getattr(cv2, "IMREAD_COLOR_RGB", 0)


class EncodedImage(DecodedFrames):
    """A JPEG image that is decoded when it is indexed. No orientation is applied.

    Args:
        path: Path of the file, for messages.
        encoded: (n,) uint8, content of the file.
        size: Height and width in the header.
        deadline: Value of ``time.monotonic()`` after which decoding raises; None for no limit.
    """

    def __init__(
        self, path: str, encoded: np.ndarray, size: tuple[int, int], deadline: float | None
    ) -> None:
        self.size = size
        self._path, self._encoded, self._deadline = path, encoded, deadline
        self._factor = 1
        self._image: np.ndarray | None = None

    def __len__(self) -> int:
        return 1

    def reduce(self, reduction: float) -> int:
        """Reduce the image by 1, 2, 4 or 8, see :meth:`DecodedFrames.reduce`."""
        self._factor = max((factor for factor in _REDUCED if factor <= reduction), default=1)
        self._image = None
        return self._factor

    def __getitem__(self, index: int) -> np.ndarray:
        if self._image is None:
            flags = _REDUCED[self._factor] | cv2.IMREAD_IGNORE_ORIENTATION
            self._image = _decode(self._path, self._encoded, flags | (_RGB or cv2.IMREAD_COLOR))
            check_deadline(self._path, self._deadline)
        return self._image


def read_image(path: str, limits: DecodeLimits) -> np.ndarray:
    """Read an image as (H, W, 3) uint8 RGB, and apply its EXIF orientation.

    Raises:
        VideoDecodeError: If the file cannot be opened or decoded, or its header states a size that
            is too large.
    """
    return _decode(path, _read_encoded(path, limits)[0], cv2.IMREAD_COLOR)


def open_jpeg(
    path: str, limits: DecodeLimits, deadline: float | None = None
) -> EncodedImage | np.ndarray:
    """Return a JPEG image that is decoded later, or any other image as (H, W, 3) uint8.

    JPEG images with an EXIF orientation are also decoded immediately.

    Raises:
        VideoDecodeError: If :func:`read_image` would raise it. If a JPEG image cannot be decoded,
            the error is raised later.
    """
    encoded, size, plain = _read_encoded(path, limits)
    if plain:
        return EncodedImage(path, encoded, size, deadline)
    return _decode(path, encoded, cv2.IMREAD_COLOR)


def _decode(path: str, encoded: np.ndarray, flags: int) -> np.ndarray:
    # Decode from memory, because cv2.imread pads truncated JPEG files with grey.
    try:
        image = cv2.imdecode(encoded, flags)
    except (cv2.error, MemoryError) as error:
        reason = getattr(error, "err", None) or type(error).__name__
        raise VideoDecodeError(path, f"cannot be decoded: {reason}") from error
    if image is None:
        raise VideoDecodeError(path, "is not an image that can be decoded")
    if _RGB and flags & _RGB:
        return image
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)


def _read_encoded(path: str, limits: DecodeLimits) -> tuple[np.ndarray, tuple[int, int], bool]:
    """Return the content and size of an image, and whether it is a JPEG file without orientation.

    Nothing is decoded. VideoDecodeError is raised if the header states a size that is too large.
    """
    check_regular_file(path)
    try:
        with open(path, "rb", opener=regular_file) as file:
            content = file.read()
    except OSError as error:
        raise VideoDecodeError(path, f"cannot be opened: {error.strerror}") from error
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            size = (image.height, image.width)
            # Look at the EXIF data of JPEG files only. For a PNG file, Pillow would have to decode
            # the whole image.
            upright_jpeg = image.format == "JPEG" and not _is_rotated(image)
    except Image.DecompressionBombError as error:  # Pillow has a limit of its own
        raise VideoDecodeError(path, f"is too large: {error}") from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, KeyError) as error:
        raise VideoDecodeError(path, "is not an image that can be decoded") from error
    limits.check_frame(path, *size)
    return np.frombuffer(content, dtype=np.uint8), size, upright_jpeg


def _is_rotated(image: Image.Image) -> bool:
    """Return whether the EXIF data of a JPEG file contain an orientation."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1) != 1
    except Exception:  # damaged EXIF data, so let OpenCV decide
        return True


_NUMBERED = re.compile(r"(\d+)\.(?:jpe?g|png)\Z", re.I)


@READERS.register_module("frames")
class FrameFolderReader(VideoReader):
    """Reader of frames that were extracted from a video as ``<anything><number>.jpg``.

    Image number ``first`` is displayed at 0 s, and the next image after ``1 / fps`` seconds. The
    default is 1, because SlowFast and mmaction2 count the frames of AVA from 1. If a number is
    missing, the previous image is displayed longer. ``num_threads`` and ``correction`` are not
    used.

    Raises:
        VideoDecodeError: If the folder does not exist, has no numbered image, or has a number
            twice.
    """

    def __init__(
        self, path: str, *, fps: float = 30.0, first: int = 1, **options: Unpack[ReaderOptions]
    ) -> None:
        super().__init__(path, **options)
        try:
            names = os.listdir(path)
        except OSError as error:
            raise VideoDecodeError(path, f"is not a folder of frames: {error.strerror}") from error
        numbered = sorted(
            (int(match.group(1)), name)
            for name in names
            if (match := _NUMBERED.search(name)) and int(match.group(1)) >= first
        )
        if not numbered:
            raise VideoDecodeError(path, f"contains no image that is numbered {first} or higher")
        numbers = np.array([number for number, _ in numbered])
        twice = np.flatnonzero(np.diff(numbers) == 0)
        if len(twice):
            raise VideoDecodeError(path, f"contains two images with the number {numbers[twice[0]]}")
        self._names = [name for _, name in numbered]
        self.timestamps = (numbers - first) / fps
        self.duration = float(self.timestamps[-1]) + 1 / fps

    def read(self, indices: np.ndarray) -> np.ndarray:
        images: list[np.ndarray] = []
        for index in self._check_indices(indices):
            check_deadline(self.path, self.deadline)
            name = self._names[index]
            try:
                images.append(read_image(os.path.join(self.path, name), self.limits))
            except VideoDecodeError as error:
                raise VideoDecodeError(self.path, f"{name} {error.reason}", False) from error
            held = sum(image.nbytes for image in images)
            self.limits.check_held(self.path, len(images), 2 * held)  # np.stack makes a copy
        shapes = {image.shape for image in images}
        if len(shapes) > 1:
            raise VideoDecodeError(
                self.path, f"contains images of different sizes: {shapes}", False
            )
        self._size = images[0].shape[:2]
        return np.stack(images)

    def close(self) -> None:
        pass
