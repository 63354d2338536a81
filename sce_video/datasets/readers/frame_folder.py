"""A folder of pictures as a video."""

from __future__ import annotations

import os
import re

import cv2
import numpy as np

from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.base import VideoReader, check_deadline

_NUMBERED = re.compile(r"(\d+)\.(?:jpe?g|png)", re.I)


class FrameFolderReader(VideoReader):
    """Reads frames that were cut from a video, ``<anything><number>.jpg``.

    Picture number ``first`` is shown at 0 s, the one after it ``1 / fps`` later. A number that is
    missing leaves a gap, in which the picture before it is shown.

    Args:
        path: The folder.
        fps: DecodedFrames a second.
        first: Number of the picture at 0 s; SlowFast and mmaction2 count AVA's from 1.
        deadline: Value of ``time.monotonic()`` after which reading gives up.

    Raises:
        VideoDecodeError: No folder, no numbered picture in it, or the same number twice.
    """

    def __init__(
        self, path: str, *, fps: float = 30.0, first: int = 1, deadline: float | None = None
    ) -> None:
        self.path = path
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
            raise VideoDecodeError(path, f"holds no picture numbered {first} or more")
        numbers = np.array([number for number, _ in numbered])
        twice = np.flatnonzero(np.diff(numbers) == 0)
        if len(twice):
            raise VideoDecodeError(path, f"holds picture number {numbers[twice[0]]} twice")
        self._names = [name for _, name in numbered]
        self.timestamps = (numbers - first) / fps
        self.duration = float(self.timestamps[-1]) + 1 / fps

    def read(self, indices: np.ndarray) -> np.ndarray:
        """See :meth:`VideoReader.read`."""
        pictures = []
        for index in self._check_indices(indices):
            check_deadline(self.path, self._deadline)
            name = self._names[index]
            picture = cv2.imread(os.path.join(self.path, name), cv2.IMREAD_COLOR)
            if picture is None:
                raise VideoDecodeError(self.path, f"{name} cannot be decoded", False)
            pictures.append(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB))
        shapes = {picture.shape for picture in pictures}
        if len(shapes) > 1:
            raise VideoDecodeError(self.path, f"holds pictures of different sizes: {shapes}", False)
        self._size = pictures[0].shape[:2]
        return np.stack(pictures)

    def close(self) -> None:
        """Nothing is open."""
