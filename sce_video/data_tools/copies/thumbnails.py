"""Small grey frames of a video, by which two videos are compared."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sce_video.datasets import FrameCountError, VideoDecodeError, open_video, video_exists
from sce_video.datasets.clip_sampling import shown_at
from sce_video.jobs.process_pool import process_items

#: Side of a thumbnail, pixels; the frame is squeezed to a square.
SIDE = 32
#: Frames per second of the first comparison and, at most, of those that are kept; and the longest
#: stretch that is read, from the beginning of the video.
RATE, MAX_RATE, MAX_SECONDS = 16.0, 32.0, 60.0
_READ_AT_ONCE = 8  # frames in their full size, which may be large
_SECONDS = 60.0  # for a file


@dataclass(frozen=True, eq=False)
class Thumbnails:
    """Frames of a video, small.

    Attributes:
        frames: (T, 32, 32) uint8 luma, from its beginning: all of them, or every n-th where there
            are more than ``MAX_RATE`` per second.
        times: (T,) float64, when each begins, seconds.
        duration: Of the whole video, seconds.
        height: Of its frames, pixels.
        width: Likewise.
    """

    frames: np.ndarray
    times: np.ndarray
    duration: float
    height: int
    width: int

    @property
    def end(self) -> float:
        """End of the last of the frames, seconds."""
        return min(self.duration, MAX_SECONDS)

    def sampled(self) -> np.ndarray:
        """Frames (T', 32, 32), ``RATE`` per second."""
        count = max(1, int(self.end * RATE))
        # In the middle of each interval: a frame's time stamp is subject to rounding.
        return self.frames[shown_at(self.times, (np.arange(count) + 0.5) / RATE)]


def read_thumbnail(file: str) -> Thumbnails:
    """The thumbnails of the first minute of a video.

    Raises:
        VideoDecodeError: the file is missing or cannot be decoded.
    """
    import cv2

    if not video_exists(file):
        raise VideoDecodeError(file, "the file is missing")
    correction = None
    deadline = time.monotonic() + _SECONDS
    for _ in range(2):
        with open_video(file, correction=correction, deadline=deadline) as reader:
            times = np.asarray(reader.timestamps, dtype=np.float64)
            times = times[: max(1, np.searchsorted(times, MAX_SECONDS))]
            most = max(1.0, min(reader.duration, MAX_SECONDS) * MAX_RATE)
            indices = np.arange(0, len(times), math.ceil(len(times) / most))
            parts = np.split(indices, range(_READ_AT_ONCE, len(indices), _READ_AT_ONCE))
            small, size = [], (0, 0)
            try:
                for part in parts:
                    for frame in reader.read(part):
                        size = frame.shape[:2]
                        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
                        small.append(cv2.resize(grey, (SIDE, SIDE), interpolation=cv2.INTER_AREA))
            except FrameCountError as error:  # fewer frames than the header states
                correction = error.correction
                continue
            return Thumbnails(np.stack(small), times[indices], reader.duration, *size)
    raise VideoDecodeError(file, "its frames cannot be counted")


def read_thumbnails(
    files: Sequence[str], workers: int = 0
) -> Iterator[tuple[int, Thumbnails | None, str]]:
    """Yield index, thumbnails and problem of every file, in any order.

    Args:
        files: Videos.
        workers: Processes, of which one may hang or crash; 0 reads in this one.

    Yields:
        The index, the thumbnails or None, and why there are none or "".
    """
    if workers == 0:
        for index, file in enumerate(files):
            try:
                yield index, read_thumbnail(file), ""
            except VideoDecodeError as error:
                yield index, None, error.reason
        return
    items = ((index, os.fspath(file)) for index, file in enumerate(files))
    for index, outcome in process_items(
        read_thumbnail, items, workers=workers, timeout=_SECONDS, preload=(__name__,)
    ):
        reason = outcome.detail.removeprefix("VideoDecodeError: ")
        yield index, outcome.value, reason.removeprefix(f"{files[index]}: ")
