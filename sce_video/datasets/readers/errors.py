"""Exceptions for files that cannot be decoded."""

from __future__ import annotations

import numpy as np

from sce_video.utils.errors import UserError, message_from_worker


class VideoDecodeError(UserError, RuntimeError):
    """A file from which no usable frame can be decoded.

    ``reason`` is what went wrong, in a few words without the path; None: ``path`` is the whole
    message "path: reason" (as torch and pickle rebuild an exception). ``permanent``: the error does
    not depend on which frames were requested, so that the file need not be tried again.
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
    """A file holds fewer frames than the ``promised`` time stamps of its container; internal.

    The data set catches it and runs the pipeline again with ``correction`` passed to the reader,
    (F,) int64, rows of the table whose frames exist (for the same backend), so that the sample is
    drawn from the frames that exist, at ``timestamps``, (F,) float64 seconds.
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
    """More files cannot be decoded than allowed, in all or in place of one sample."""

    def __init__(self, message: str) -> None:
        super().__init__(message_from_worker(message, type(self)))
