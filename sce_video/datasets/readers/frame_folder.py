"""The reader of a folder of images, one per frame."""

from __future__ import annotations

import os
import re

import numpy as np

from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.base import VideoReader, check_deadline
from sce_video.datasets.readers.images import read_image
from sce_video.registry import READERS

_NUMBERED = re.compile(r"(\d+)\.(?:jpe?g|png)", re.I)


@READERS.register_module("frames")
class FrameFolderReader(VideoReader):
    """Reads frames that were extracted from a video as ``<anything><number>.jpg``.

    Image number ``first`` is displayed at 0 s, the next one ``1 / fps`` later. Where a number is
    missing, the image before it is displayed longer.

    Args:
        path: The folder.
        fps: Frames per second.
        first: Number of the image at 0 s; SlowFast and mmaction2 count the frames of AVA from 1.
        num_threads: Not used; part of the contract of readers.
        correction: Not used: no listed image is missing.
        deadline: Value of ``time.monotonic()`` after which reading raises.
        limits: How large images may be; None for the defaults.

    Raises:
        VideoDecodeError: No folder, no numbered image in it, or the same number twice.
    """

    def __init__(
        self,
        path: str,
        *,
        fps: float = 30.0,
        first: int = 1,
        num_threads: int = 1,
        correction: np.ndarray | None = None,
        deadline: float | None = None,
        limits: DecodeLimits | None = None,
    ) -> None:
        self.path = path
        self._limits = limits or DecodeLimits()
        self._deadline = deadline
        try:
            names = os.listdir(path)
        except OSError as error:
            raise VideoDecodeError(path, f"is no folder of frames: {error.strerror}") from error
        numbered = sorted(
            (int(match.group(1)), name)
            for name in names
            if (match := _NUMBERED.search(name)) and match.end() == len(name)
        )
        numbered = [(number, name) for number, name in numbered if number >= first]
        if not numbered:
            raise VideoDecodeError(path, f"holds no image with a number of {first} or more")
        numbers = np.array([number for number, _ in numbered])
        twice = np.flatnonzero(np.diff(numbers) == 0)
        if len(twice):
            raise VideoDecodeError(path, f"holds two images with number {numbers[twice[0]]}")
        self._names = [name for _, name in numbered]
        self.timestamps = (numbers - first) / fps
        self.duration = float(self.timestamps[-1]) + 1 / fps

    def read(self, indices: np.ndarray) -> np.ndarray:
        """See :meth:`VideoReader.read`."""
        images: list[np.ndarray] = []
        for index in self._check_indices(indices):
            check_deadline(self.path, self._deadline)
            name = self._names[index]
            try:
                images.append(read_image(os.path.join(self.path, name), self._limits))
            except VideoDecodeError as error:
                raise VideoDecodeError(self.path, f"{name} {error.reason}", False) from error
            held = sum(image.nbytes for image in images)
            self._limits.check_held(self.path, len(images), 2 * held)  # and once more, stacked
        shapes = {image.shape for image in images}
        if len(shapes) > 1:
            raise VideoDecodeError(self.path, f"holds images of different sizes: {shapes}", False)
        self._size = images[0].shape[:2]
        return np.stack(images)

    def close(self) -> None:
        """Does nothing: no file is kept open."""
