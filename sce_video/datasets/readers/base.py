"""The common interface of all video readers, their errors, and limits of memory and time."""

from __future__ import annotations

import importlib
import math
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

import numpy as np

from sce_video.datasets.clip_sampling import frames_between, shown_at
from sce_video.datasets.video_list import split_segment
from sce_video.options.shared import MAX_PIXELS
from sce_video.registry import READERS
from sce_video.utils.errors import MissingPackageError, UserError, message_from_worker

if TYPE_CHECKING:
    from torch import Tensor


class VideoDecodeError(UserError, RuntimeError):
    """A file from which no usable frame can be decoded.

    Attributes:
        path: Path of the file. Torch and pickle rebuild an exception from its whole message
            "path: reason", so the constructor also accepts that as its only argument.
        reason: Description of the problem in a few words, without the path.
        permanent: Whether the error does not depend on the requested frames, so that the file need
            not be tried again.
    """

    def __init__(self, path: str, reason: str | None = None, permanent: bool = True) -> None:
        if reason is None:
            path, _, reason = message_from_worker(path, type(self)).partition(": ")
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.permanent = permanent


class VideoTimeoutError(VideoDecodeError):
    """Reading a file exceeded the time limit."""


class FrameCountError(RuntimeError):
    """A file contains fewer frames than its container promises.

    The dataset runs the pipeline again and passes ``correction`` to a reader of the same backend.
    The sample is then drawn only from the frames that exist.

    Attributes:
        path: Path of the file.
        promised: Number of frames that the container promises.
        timestamps: (F,) float64, seconds of the frames that exist.
        correction: (F,) int64, numbers of the frames that exist in the reader's timestamps.
    """

    def __init__(
        self, path: str, promised: int, timestamps: np.ndarray, correction: np.ndarray
    ) -> None:
        super().__init__(f"{path}: {len(timestamps)} of {promised} promised frames decode")
        self.path = path
        self.promised = promised
        self.timestamps = timestamps
        self.correction = correction


class TooManyBadFilesError(UserError, RuntimeError):
    """More files than allowed cannot be decoded, in total or in the replacements for a sample."""

    def __init__(self, message: str) -> None:
        super().__init__(message_from_worker(message, type(self)))


#: Maximum number of pixels in an image. Photos have up to 100 million.
MAX_IMAGE_PIXELS = 2**27
#: Maximum size in bytes of the decoded frames that a reader holds at a time. This suffices for 170
#: frames of 4K video in yuv420p.
MAX_HELD_BYTES = 2 * 2**30


@dataclass(frozen=True)
class DecodeLimits:
    """Limits on the memory for reading a file, because a tiny file may state any frame size."""

    #: Maximum number of pixels in a frame (height x width).
    max_pixels: int = MAX_PIXELS
    #: Maximum size in bytes of the decoded frames in memory.
    max_held_bytes: int = MAX_HELD_BYTES

    def __post_init__(self) -> None:
        for name in ("max_pixels", "max_held_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive whole number, got {value!r}")

    def check_frame(self, path: str, height: int, width: int) -> None:
        """Raise :class:`VideoDecodeError` if a frame of this size has too many pixels."""
        if height * width > self.max_pixels:
            raise VideoDecodeError(
                path,
                f"has frames of {width} x {height} pixels, more than the {self.max_pixels} allowed "
                "(max_pixels)",
            )

    def check_held(self, path: str, frames: int, num_bytes: int) -> None:
        """Raise :class:`VideoDecodeError` if decoded frames take too many bytes."""
        if num_bytes > self.max_held_bytes:
            raise VideoDecodeError(
                path,
                f"{frames} of its frames take {num_bytes} bytes, more than the "
                f"{self.max_held_bytes} allowed (max_held_bytes)",
                permanent=False,  # other requests may need fewer frames
            )


FALLBACK_FPS = 25.0
#: Number of frames that :meth:`VideoReader.stream` returns at a time.
STREAMED_FRAMES = 16


class DecodedFrames(ABC):
    """Decoded frames, which are converted to RGB when they are indexed."""

    #: Displayed height and width of each frame in pixels.
    size: tuple[int, int]

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of frames."""

    @abstractmethod
    def __getitem__(self, index: int) -> np.ndarray:
        """Return a read-only frame, uint8 (H, W, 3), which :meth:`reduce` may have made smaller."""

    def reduce(self, reduction: float) -> int:
        """Reduce the size at which frames are decoded, if the format makes this cheap.

        Call this method before indexing frames.

        Returns:
            Factor, at most ``reduction``, by which height and width are divided and rounded up.
        """
        return 1

    def stacked(self, path: str, limits: DecodeLimits) -> np.ndarray:
        """Return all frames, (n, H, W, 3) uint8; VideoDecodeError if they are too large."""
        limits.check_held(path, len(self), len(self) * math.prod(self.size) * 3)
        frames = np.empty((len(self), *self.size, 3), dtype=np.uint8)
        for i, frame in enumerate(frames):
            frame[...] = self[i]
        return frames


class ArrayFrames(DecodedFrames):
    """Frames that are already an RGB array, (n, H, W, 3) uint8."""

    def __init__(self, frames: np.ndarray) -> None:
        self._frames = frames
        self.size = (int(frames.shape[1]), int(frames.shape[2]))

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._frames[index]


@dataclass(frozen=True)
class FrameBatch:
    """Frames of a video with the times at which they are displayed."""

    #: Frames on the CPU, uint8 RGB (n, H, W, 3), rotated according to the file's metadata.
    frames: Tensor
    #: Start of each frame in seconds since the start of the first frame, (n,) float64.
    timestamps: Tensor
    #: Number of seconds for which each frame is displayed, (n,) float64.
    durations: Tensor

    def __len__(self) -> int:
        return len(self.frames)


class ReaderOptions(TypedDict, total=False):
    """Options with which every reader is opened."""

    #: Number of decoder threads. The default of 1 is best if loader workers use all cores.
    num_threads: int
    #: ``FrameCountError.correction`` from an earlier attempt with the same backend.
    correction: np.ndarray | None
    #: Value of ``time.monotonic()`` after which reading raises an error.
    deadline: float | None
    #: Limits on the size of frames. None means the default limits.
    limits: DecodeLimits | None


class VideoReader(ABC):
    """An open video: the timestamps of all frames, and the frames by number.

    A reader is a class that is registered in :data:`sce_video.registry.READERS`. Its registered
    name is the value of ``--backend``. :func:`~sce_video.datasets.readers.open_reader` builds it
    from a path and :class:`ReaderOptions`. It raises VideoDecodeError if the file cannot be opened.
    """

    #: Module that must be importable for the reader to work; empty if none is needed.
    library: str = ""
    #: What the library requires, for the message if it cannot be imported.
    import_hint: str = ""

    path: str
    #: Start of every frame in seconds, ascending from 0, (F,) float64.
    timestamps: np.ndarray
    #: Seconds from the start of the first frame to the end of the last frame.
    duration: float
    #: Number of returned frames in which the decoder has concealed errors.
    damaged: int = 0
    num_threads: int = 1
    correction: np.ndarray | None = None
    deadline: float | None = None
    limits: DecodeLimits = DecodeLimits()
    _size: tuple[int, int] | None = None

    def __init__(
        self,
        path: str,
        *,
        num_threads: int = 1,
        correction: np.ndarray | None = None,
        deadline: float | None = None,
        limits: DecodeLimits | None = None,
    ) -> None:
        self.path, self.num_threads, self.correction = path, num_threads, correction
        self.deadline, self.limits = deadline, limits or DecodeLimits()

    @classmethod
    def importable(cls) -> bool:
        """Return whether the reader's library can be imported on this machine."""
        try:
            return not cls.library or importlib.import_module(cls.library) is not None
        except (ImportError, OSError, RuntimeError):
            return False

    @property
    def size(self) -> tuple[int, int]:
        """Return the displayed height and width of the frames."""
        if self._size is None:
            frames = self.read(np.zeros(1, dtype=np.int64))
            self._size = (int(frames.shape[1]), int(frames.shape[2]))
        return self._size

    @property
    def height(self) -> int:
        """Return the displayed height of the frames in pixels."""
        return self.size[0]

    @property
    def width(self) -> int:
        """Return the displayed width of the frames in pixels."""
        return self.size[1]

    @property
    def stated_duration(self) -> float | None:
        """Return the duration that the container states, which truncated files lack; or None."""
        return None

    @property
    def restarts(self) -> int:
        """Return how often the file's clock restarts or jumps. The timestamps continue there."""
        return 0

    @abstractmethod
    def read(self, indices: np.ndarray) -> np.ndarray:
        """Decode frames in one pass: (n, H, W, 3) uint8 RGB, rotated according to the metadata.

        ``indices`` are (n,) strictly ascending integers in ``[0, F)``.

        Raises:
            FrameCountError: If some of the frames do not exist, although the container lists them.
            VideoDecodeError: If no frame can be decoded, too many of these frames are damaged
                (:func:`too_damaged`), or the deadline has passed (VideoTimeoutError).
        """

    def decode(self, indices: np.ndarray) -> DecodedFrames:
        """Decode frames like :meth:`read`, but convert a frame to RGB only when it is indexed."""
        return ArrayFrames(self.read(indices))

    def stream(
        self, indices: np.ndarray, patience: float | None = None
    ) -> Iterator[tuple[np.ndarray, DecodedFrames]]:
        """Decode any number of frames in one ordered pass. Only some are in memory at a time.

        ``patience`` is the time limit for each frame in seconds. VideoTimeoutError is raised if it
        is exceeded.

        Yields:
            Indices (n,) and their frames, in order. Indices whose frames do not exist, for example
            in a truncated file, are left out.

        Raises:
            VideoDecodeError: If too many frames are damaged. It is raised after the last frame.
        """
        indices = self._check_indices(indices)
        for part in np.split(indices, range(STREAMED_FRAMES, len(indices), STREAMED_FRAMES)):
            yield part, self.decode(part)

    def frames_at(self, indices: Sequence[int] | np.ndarray | Tensor) -> FrameBatch:
        """Decode frames by number, and return them with their times.

        Each frame is decoded once, in one pass through the file.

        Args:
            indices: Frame numbers from 0, in any order. A number may be repeated.

        Returns:
            The frames in the order of ``indices``.

        Raises:
            ValueError: If ``indices`` are empty or one is outside the video.
            VideoDecodeError: If the frames cannot be decoded.
        """
        wanted = np.asarray(indices)
        if wanted.ndim != 1 or wanted.size == 0 or wanted.dtype.kind not in "iu":
            raise ValueError(f"indices must be a list of whole numbers, got {indices!r:.100}")
        numbers, places = np.unique(wanted, return_inverse=True)
        try:
            frames = self.read(self._check_indices(numbers))
        except FrameCountError as error:  # a dataset would choose other frames instead
            reason = f"only {len(error.timestamps)} of its {error.promised} promised frames decode"
            raise VideoDecodeError(self.path, reason, permanent=False) from error
        if not np.array_equal(numbers, wanted):
            self.limits.check_held(self.path, len(wanted), len(wanted) * frames[0].nbytes)
            frames = frames[places]
        import torch  # imported here, because listing and indexing videos do not need it

        durations = np.diff(self.timestamps, append=self.duration)
        return FrameBatch(
            frames=torch.from_numpy(frames),
            timestamps=torch.from_numpy(self.timestamps[wanted]),
            durations=torch.from_numpy(durations[wanted]),
        )

    def frames_played_at(self, seconds: Sequence[float] | np.ndarray | Tensor) -> FrameBatch:
        """Decode the frames that are displayed at some times, and return them with their times.

        A frame is displayed until the next frame begins. A time up to a microsecond before a frame
        counts as the start of the frame, because timestamps are rounded.

        Args:
            seconds: Times in seconds from the start of the first frame, in any order.

        Returns:
            The frames in the order of ``seconds``.

        Raises:
            ValueError: If ``seconds`` are empty or one is outside ``[0, duration)``.
            VideoDecodeError: If the frames cannot be decoded.
        """
        times = np.asarray(seconds, dtype=np.float64)
        if times.ndim != 1 or times.size == 0:
            raise ValueError(f"seconds must be a list of times, got {seconds!r:.100}")
        outside = times[~((times >= 0) & (times < self.duration))]  # includes NaN
        if outside.size:
            raise ValueError(
                f"no frame of {self.path} is displayed at {outside[0]:g} s. Times must be at least "
                f"0 s and below {self.duration:g} s"
            )
        return self.frames_at(shown_at(self.timestamps, times))

    @abstractmethod
    def close(self) -> None:
        """Close the file; may be called more than once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_indices(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices, dtype=np.int64)
        if indices.ndim != 1 or indices.size == 0 or (np.diff(indices) <= 0).any():
            raise ValueError(
                "read() accepts a non-empty 1-d array of strictly ascending indices (sort them "
                f"and drop duplicates), got shape {indices.shape}"
            )
        count = len(self.timestamps)
        if indices[0] < 0 or indices[-1] >= count:
            wrong = indices[0] if indices[0] < 0 else indices[-1]
            raise ValueError(
                f"{self.path} has no frame {wrong}. Its frames are numbered 0 to {count - 1}"
            )
        return indices


class SegmentReader(VideoReader):
    """Reader of a segment: the frames of another reader that begin in ``[start, end)``, seconds.

    Times count from the first frame of the segment, which is frame ``first`` of the other reader.
    Closing this reader also closes the other reader.

    Raises:
        VideoDecodeError: If the video ends before ``start``.
    """

    def __init__(self, path: str, reader: VideoReader, start: float, end: float) -> None:
        if start >= reader.duration:
            reader.close()
            raise VideoDecodeError(
                path,
                f"the video ends at {reader.duration:.2f} s, before the start at {start:.2f} s",
            )
        super().__init__(path, num_threads=reader.num_threads, limits=reader.limits)
        self._reader = reader
        self.first, stop = frames_between(reader.timestamps, start, end)
        own = reader.timestamps[self.first : stop]
        last = reader.duration if stop == len(reader.timestamps) else reader.timestamps[stop]
        self.timestamps, self.duration = own - own[0], float(last - own[0])

    @property
    def restarts(self) -> int:
        return self._reader.restarts

    def read(self, indices: np.ndarray) -> np.ndarray:
        return self.decode(indices).stacked(self.path, self.limits)

    def decode(self, indices: np.ndarray) -> DecodedFrames:
        frames = self._reader.decode(self._check_indices(indices) + self.first)
        self.damaged = self._reader.damaged
        return frames

    def stream(
        self, indices: np.ndarray, patience: float | None = None
    ) -> Iterator[tuple[np.ndarray, DecodedFrames]]:
        for numbers, frames in self._reader.stream(
            self._check_indices(indices) + self.first, patience
        ):
            self.damaged = self._reader.damaged
            yield numbers - self.first, frames

    def close(self) -> None:
        self._reader.close()


def check_regular_file(path: str) -> None:
    """Raise :class:`VideoDecodeError` unless ``path`` is a non-empty regular file."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise VideoDecodeError(path, f"cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would block forever
        raise VideoDecodeError(path, "is not a regular file")
    if status.st_size == 0:
        raise VideoDecodeError(path, "is empty (0 bytes)")


#: Maximum fraction of frames in which the decoder may have concealed errors.
MAX_DAMAGED_SHARE = 0.1


def too_damaged(damaged: int, frames: int) -> bool:
    """Return whether more than one frame, and more than a tenth of the frames, are damaged."""
    return damaged > max(1, MAX_DAMAGED_SHARE * frames)


def check_damage(path: str, damaged: int, frames: int) -> None:
    """Raise :class:`VideoDecodeError` if too many of the frames that were read are damaged."""
    if too_damaged(damaged, frames):
        reason = f"{damaged} of {frames} frames that were read are damaged"
        raise VideoDecodeError(path, reason, permanent=False)  # other frames may be intact


def check_deadline(path: str, deadline: float | None) -> None:
    """Raise :class:`VideoTimeoutError` if ``time.monotonic()`` has passed ``deadline``."""
    if deadline is not None and time.monotonic() > deadline:
        raise VideoTimeoutError(path, "timed out while decoding")


def backend_importable(backend: str) -> bool:
    """Return whether a backend's library can be imported; False for an unknown backend."""
    return backend in READERS.module_dict and READERS.module_dict[backend].importable()


def check_backend(backend: str) -> None:
    """Raise ValueError if a backend is unknown, and ImportError if it is not installed."""
    known = READERS.module_dict
    if backend not in known:
        raise ValueError(f"unknown backend {backend!r}. Choose one of {', '.join(known)}")
    if not backend_importable(backend):
        hint = known[backend].import_hint
        raise MissingPackageError(
            f"backend {backend!r} cannot be imported here. Install it, or choose 'av'"
            + (f" ({hint})" if hint else "")
        )


def open_reader(path: str, backend: str = "av", **options: Unpack[ReaderOptions]) -> VideoReader:
    """Open a video.

    Args:
        path: Path of a regular file, or a segment such as ``a.mp4@12.5-17``. Segments of segments
            are allowed.
        backend: Registered name of a reader (``av``, ``decord``, ``torchcodec``, ...). All readers
            return bit-identical frames. ``av`` was the fastest on every file measured.
        options: Options of a reader, see :class:`~sce_video.datasets.readers.base.ReaderOptions`.

    Raises:
        VideoDecodeError: If the file cannot be opened.
        ValueError: If the backend is unknown.
        ImportError: If the backend is not installed.
    """
    check_backend(backend)
    segment = split_segment(path)
    if segment is not None:
        video, start, end = segment
        return SegmentReader(path, open_reader(video, backend, **options), start, end)
    return READERS.module_dict[backend](path, **options)
