"""The interface that all video readers implement."""

from __future__ import annotations

import functools
import importlib
import math
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TypedDict, Unpack

import numpy as np

from sce_video.datasets.readers.errors import VideoDecodeError, VideoTimeoutError
from sce_video.datasets.readers.limits import DecodeLimits

FALLBACK_FPS = 25.0
#: Frames that :meth:`VideoReader.stream` returns at a time, in their full size.
STREAMED_FRAMES = 16


class DecodedFrames(ABC):
    """Decoded frames, each converted to RGB when it is indexed."""

    #: Height and width of each frame as displayed, pixels.
    size: tuple[int, int]

    @abstractmethod
    def __len__(self) -> int:
        """Number of frames."""

    @abstractmethod
    def __getitem__(self, index: int) -> np.ndarray:
        """uint8 (H, W, 3), read-only for the caller; 1/factor of it after :meth:`reduce`."""

    def reduce(self, reduction: float) -> int:
        """Called before frames are indexed: decode them smaller where the format makes it cheap.

        Returns:
            The factor, at most ``reduction``, which leaves as many pixels as are needed: frames
            have 1/factor of their height and width, rounded up.
        """
        return 1

    def stacked(self, path: str, limits: DecodeLimits) -> np.ndarray:
        """All frames, (n, H, W, 3) uint8; VideoDecodeError, which names ``path``, if too large."""
        limits.check_held(path, len(self), len(self) * math.prod(self.size) * 3)
        frames = np.empty((len(self), *self.size, 3), dtype=np.uint8)
        for i, frame in enumerate(frames):
            frame[...] = self[i]
        return frames


class ArrayFrames(DecodedFrames):
    """Frames that are RGB arrays already, (n, H, W, 3) uint8."""

    def __init__(self, frames: np.ndarray) -> None:
        self._frames = frames
        self.size = (int(frames.shape[1]), int(frames.shape[2]))

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._frames[index]


class ReaderOptions(TypedDict, total=False):
    """Options with which every reader is opened."""

    #: Threads of the decoder; 1 by default, which is best when loader workers use all cores.
    num_threads: int
    #: ``FrameCountError.correction`` of an earlier attempt with the same reader.
    correction: np.ndarray | None
    #: Value of ``time.monotonic()`` after which reading raises.
    deadline: float | None
    #: How large frames may be; None for the defaults.
    limits: DecodeLimits | None


class VideoReader(ABC):
    """An open video: a table of time stamps, and frames by their index in that table.

    A reader is a class registered in :data:`sce_video.registry.READERS`; the registered name is the
    value of ``--backend``. :func:`~sce_video.datasets.readers.open_reader` builds it from a path
    and :class:`ReaderOptions`; VideoDecodeError if the file cannot be opened.
    """

    #: Module that must be importable for the reader to work; empty if none is needed.
    library: str = ""
    #: What the library needs, for the error message where it cannot be imported.
    import_hint: str = ""

    path: str
    #: (F,) float64, start of every frame in seconds, ascending, the first is 0.
    timestamps: np.ndarray
    #: Seconds from the first frame's start to the last frame's end.
    duration: float
    num_threads: int = 1
    deadline: float | None = None
    limits: DecodeLimits = DecodeLimits()
    _size: tuple[int, int] | None = None

    def __init__(self, path: str, **options: Unpack[ReaderOptions]) -> None:
        unknown = options.keys() - ReaderOptions.__annotations__.keys()
        if unknown:  # a misspelt one would be without effect
            raise TypeError(f"a reader has no option {', '.join(sorted(unknown))}")
        self.path = path
        self.num_threads = options.get("num_threads", 1)
        self.deadline = options.get("deadline")
        self.limits = options.get("limits") or DecodeLimits()

    @classmethod
    def importable(cls) -> bool:
        """Whether the reader's library can be imported on this machine."""
        return not cls.library or _can_import(cls.library)

    @property
    def height(self) -> int:
        """Height in pixels as displayed, that is after the rotation in the file's metadata."""
        return self._frame_size()[0]

    @property
    def width(self) -> int:
        """Width in pixels, likewise."""
        return self._frame_size()[1]

    @property
    def stated_duration(self) -> float | None:
        """Seconds that the container states; None for none. A file that was cut off is shorter."""
        return None

    def _frame_size(self) -> tuple[int, int]:
        """(H, W), of the first frame where no other was read."""
        if self._size is None:
            frames = self.read(np.zeros(1, dtype=np.int64))
            self._size = (int(frames.shape[1]), int(frames.shape[2]))
        return self._size

    @abstractmethod
    def read(self, indices: np.ndarray) -> np.ndarray:
        """Decode frames in one pass: (n, H, W, 3) uint8 RGB, rotated as the file's metadata says.

        ``indices``, (n,) integers, are strictly ascending, each in ``[0, F)``.

        Raises:
            FrameCountError: Some of the frames do not exist, though the container lists them.
            VideoDecodeError: No frame can be decoded, or (VideoTimeoutError) the deadline has
                passed.
        """

    def decode(self, indices: np.ndarray) -> DecodedFrames:
        """As :meth:`read`, but each frame is converted to RGB when it is indexed, at any time."""
        return ArrayFrames(self.read(indices))

    def stream(
        self, indices: np.ndarray, patience: float | None = None
    ) -> Iterator[tuple[np.ndarray, DecodedFrames]]:
        """Decode any number of frames in one ordered pass, some of them in memory at a time.

        ``patience``: seconds that decoding up to the next frame may take (VideoTimeoutError).

        Yields:
            Indices (n,) and their frames, in order. Indices whose frames do not exist, as in a file
            that was cut off, are left out.
        """
        indices = self._check_indices(indices)
        for part in np.split(indices, range(STREAMED_FRAMES, len(indices), STREAMED_FRAMES)):
            yield part, self.decode(part)

    @abstractmethod
    def close(self) -> None:
        """Close the file; may be called more than once."""

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_indices(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices, dtype=np.int64)
        if indices.ndim != 1 or indices.size == 0 or (np.diff(indices) <= 0).any():
            raise ValueError(
                "read() takes a non-empty 1-d array of strictly ascending indices (sort them and "
                f"drop duplicates), got shape {indices.shape}"
            )
        count = len(self.timestamps)
        if indices[0] < 0 or indices[-1] >= count:
            wrong = f"frame indices {indices[0]}..{indices[-1]} are outside"
            raise ValueError(f"{wrong} the {count} frames of {self.path}")
        return indices


@functools.cache
def _can_import(library: str) -> bool:
    try:
        importlib.import_module(library)
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def check_regular_file(path: str) -> None:
    """Raise :class:`VideoDecodeError` unless ``path`` is a non-empty regular file."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise VideoDecodeError(path, f"cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would block for ever
        raise VideoDecodeError(path, "is not a regular file")
    if status.st_size == 0:
        raise VideoDecodeError(path, "is empty (0 bytes)")


def check_deadline(path: str, deadline: float | None) -> None:
    """Raise :class:`VideoTimeoutError` when ``time.monotonic()`` has passed ``deadline``."""
    if deadline is not None and time.monotonic() > deadline:
        raise VideoTimeoutError(path, "timed out while decoding")
