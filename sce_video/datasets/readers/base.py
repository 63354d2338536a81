"""The one interface behind which videos are decoded."""

from __future__ import annotations

import os
import stat
import time
from abc import ABC, abstractmethod

import numpy as np

from sce_video.datasets.errors import VideoDecodeError, VideoTimeoutError

FALLBACK_FPS = 25.0


class DecodedFrames(ABC):
    """Decoded frames, each converted to RGB when it is asked for.

    Attributes:
        size: Height and width of each, pixels, as shown.
    """

    size: tuple[int, int]

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def __getitem__(self, place: int) -> np.ndarray:
        """uint8 (H, W, 3); not to be written to."""


class ArrayFrames(DecodedFrames):
    """Frames that are RGB already.

    Args:
        frames: (n, H, W, 3) uint8.
    """

    def __init__(self, frames: np.ndarray) -> None:
        self._frames = frames
        self.size = (int(frames.shape[1]), int(frames.shape[2]))

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, place: int) -> np.ndarray:
        return self._frames[place]


class VideoReader(ABC):
    """An open video file: a table of time stamps, and frames by their place in that table.

    Attributes:
        path: The file.
        timestamps: (F,) float64, start of every frame in seconds, ascending, the first is 0.
        duration: Seconds from the first frame's start to the last frame's end.
        frames_decoded: Frames the decoder has put out so far (for tests and benchmarks; 0 where
            the backend does not tell).
        frames_converted: Frames converted to RGB so far.
    """

    path: str
    timestamps: np.ndarray
    duration: float
    frames_decoded: int = 0
    frames_converted: int = 0
    _size: tuple[int, int] | None = None
    _deadline: float | None = None

    @property
    def height(self) -> int:
        """Height in pixels as shown, that is after the rotation the file asks for."""
        return self._frame_size()[0]

    @property
    def width(self) -> int:
        """Width in pixels as shown, that is after the rotation the file asks for."""
        return self._frame_size()[1]

    def _frame_size(self) -> tuple[int, int]:
        """(H, W), noted by :meth:`read`: of the first frame where nothing has been read yet."""
        if self._size is None:
            self.read(np.zeros(1, dtype=np.int64))
        assert self._size is not None
        return self._size

    @abstractmethod
    def read(self, indices: np.ndarray) -> np.ndarray:
        """Decode frames in one pass.

        Args:
            indices: (n,) integers, strictly ascending, each in ``[0, F)``.

        Returns:
            (n, H, W, 3) uint8 RGB, rotated as the file asks.

        Raises:
            FrameCountError: Some of the frames do not exist, though the container says so.
            VideoDecodeError: No frame can be decoded, or (VideoTimeoutError) time is up.
        """

    def decode(self, indices: np.ndarray) -> DecodedFrames:
        """As :meth:`read`, but each frame is converted to RGB only when it is looked at.

        What comes back can be used after :meth:`close`.
        """
        return ArrayFrames(self.read(indices))

    @abstractmethod
    def close(self) -> None:
        """Let go of the file; more than once is fine."""

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_indices(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices, dtype=np.int64)
        if indices.ndim != 1 or indices.size == 0:
            raise ValueError(f"read() takes a non-empty 1-d array of indices, got {indices.shape}")
        if (np.diff(indices) <= 0).any():
            raise ValueError("read() takes strictly ascending indices: sort them, drop doubles")
        if indices[0] < 0 or indices[-1] >= len(self.timestamps):
            raise ValueError(
                f"frame indices {indices[0]}..{indices[-1]} are outside the "
                f"{len(self.timestamps)} frames of {self.path}"
            )
        return indices


def check_regular_file(path: str) -> None:
    """Raise :class:`VideoDecodeError` unless ``path`` is a non-empty regular file.

    Opening a FIFO would block for ever, so this is asked before anything is opened.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise VideoDecodeError(path, f"cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise VideoDecodeError(path, "is not a regular file")
    if status.st_size == 0:
        raise VideoDecodeError(path, "is empty (0 bytes)")


def check_deadline(path: str, deadline: float | None) -> None:
    """Raise :class:`VideoTimeoutError` when ``time.monotonic()`` has passed ``deadline``."""
    if deadline is not None and time.monotonic() > deadline:
        raise VideoTimeoutError(path, "timed out while decoding")


def last_frame_duration(timestamps: np.ndarray, stated: float, fps: float | None) -> float:
    """Seconds the last frame is shown.

    Args:
        timestamps: (F,) seconds.
        stated: What the container says, seconds; 0 when it says nothing.
        fps: Frame rate to fall back on, for a video of one frame that states nothing.

    Returns:
        The stated duration; else the median distance of the frames; else one frame period.
    """
    if stated > 0:
        return stated
    if len(timestamps) > 1:
        return float(np.median(np.diff(timestamps)))
    return 1.0 / (fps or FALLBACK_FPS)
