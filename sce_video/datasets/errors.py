"""What can go wrong with a video file, as exceptions."""

from __future__ import annotations

import numpy as np


def message_from_worker(text: str, kind: type[Exception]) -> str:
    """The message of an exception that a loader worker has raised.

    A ``DataLoader`` raises a worker's exception again as ``kind(text)``, where the text is the
    worker's traceback, which ends with "package.Kind: message". The constructors of our errors call
    this, so that their messages are the same with and without workers.

    Args:
        text: The single argument of the constructor: such a traceback, or a plain message, which is
            returned unchanged.
        kind: Class of the exception.
    """
    if not text.startswith(f"Caught {kind.__name__} "):
        return text
    return text.rpartition(f"{kind.__name__}: ")[2].strip()


class VideoDecodeError(RuntimeError):
    """A file that gives no usable frames.

    Args:
        path: The file; without ``reason``, the whole message "path: reason" (as torch and pickle
            rebuild an exception).
        reason: What went wrong, in a few words (no path in it).
        permanent: True when the error does not depend on which frames were asked for, so that
            trying the same file again is pointless.
    """

    def __init__(self, path: str, reason: str | None = None, permanent: bool = True) -> None:
        if reason is None:
            path, _, reason = message_from_worker(path, type(self)).partition(": ")
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.permanent = permanent


class VideoTimeoutError(VideoDecodeError):
    """Reading a file took longer than allowed."""


class FrameCountError(RuntimeError):
    """A file holds fewer frames than its time stamps promised; internal to this package.

    The data set catches it and runs the pipeline once more, with ``correction`` handed to the
    reader, so that the sample is drawn from the frames that really exist.

    Args:
        path: The file.
        promised: Number of frames the container spoke of.
        timestamps: (F,) float64, seconds, of the frames that can be decoded.
        correction: (F,) int64, rows of the promised table that exist; for the same backend.
    """

    def __init__(
        self, path: str, promised: int, timestamps: np.ndarray, correction: np.ndarray
    ) -> None:
        super().__init__(f"{path}: {len(timestamps)} of {promised} promised frames decode")
        self.path = path
        self.promised = promised
        self.timestamps = timestamps
        self.correction = correction


class TooManyBadFilesError(RuntimeError):
    """More files than allowed cannot be decoded."""
