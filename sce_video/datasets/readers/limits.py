"""How large the frames of one file may be, each and together; and calls with a time limit."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sce_video.datasets.readers.errors import VideoDecodeError

#: Of one frame: 8K video (7680 x 4320) has 33 million.
MAX_PIXELS = 40_000_000
#: Of one image: cameras have up to 100 million.
MAX_IMAGE_PIXELS = 2**27
#: Of the decoded frames that a reader holds at a time: 170 frames of 4K video in yuv420p.
MAX_HELD_BYTES = 2 * 2**30


@dataclass(frozen=True)
class DecodeLimits:
    """Bounds of the memory of reading one file; one of a few hundred bytes may state any size."""

    #: Of one frame, height x width.
    max_pixels: int = MAX_PIXELS
    #: Of the decoded frames held at a time.
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
        """Raise :class:`VideoDecodeError` if the frames held take too many bytes together."""
        if num_bytes > self.max_held_bytes:
            raise VideoDecodeError(
                path,
                f"{frames} of its frames take {num_bytes} bytes, more than the "
                f"{self.max_held_bytes} allowed (max_held_bytes)",
                permanent=False,  # other requests may need fewer frames
            )


class LimitExceededError(TimeoutError):
    """A call took longer than its time limit."""


class AbandonedError(RuntimeError):
    """Raised in a thread that exceeded its time limit, to end what it still does."""


class TimeLimitedCaller:
    """Runs functions one after the other in a helper thread, with a time limit.

    A function that exceeds it is abandoned in its (daemon) thread, and the next call gets a new
    thread. This works because a hanging decoder has released the GIL. The thread is started at the
    first call, once per process, so an instance may be copied to worker processes. Changing between
    threads takes a tenth of the time of loading an image, so the samples of a batch are one call,
    in which each sample restarts the limit.
    """

    def __init__(self) -> None:
        self._helper: _Helper | None = None
        self._pid = 0
        self._end = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {"_helper": None, "_pid": 0, "_end": 0.0}

    def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """Return ``function()``, or raise its exception; LimitExceededError after ``seconds``."""
        if self._helper is None or self._pid != os.getpid():
            self._helper, self._pid = _Helper(self), os.getpid()
            self._helper.start()
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self._end = time.monotonic() + seconds
        self._helper.requests.put((function, answer))
        try:
            while (left := self._end - time.monotonic()) > 0:
                with suppress(queue.Empty):  # then look whether the limit was restarted
                    value, error = answer.get(timeout=min(left, seconds))
                    break
            else:
                raise LimitExceededError(f"no answer after {seconds:.1f} s")
        except BaseException:  # too late, or interrupted
            self._helper.abandoned = True
            self.close()
            raise
        if error is not None:
            raise error
        return value

    def is_running(self) -> bool:
        """Whether this is called by a function that :meth:`call` runs."""
        return self._current_helper() is not None

    def restart(self, seconds: float) -> None:
        """For the function that :meth:`call` runs: its limit is ``seconds`` from now.

        A limit that follows on ``math.inf`` may be noticed later, by the ``seconds`` of the call.
        AbandonedError if the limit was exceeded before.
        """
        helper = self._current_helper()
        if helper is None or helper.abandoned:
            raise AbandonedError("the time limit was exceeded")
        self._end = time.monotonic() + seconds

    def _current_helper(self) -> _Helper | None:
        thread = threading.current_thread()
        return thread if isinstance(thread, _Helper) and thread.caller() is self else None

    def close(self) -> None:
        """End the helper thread once it is idle."""
        if self._helper is not None and self._pid == os.getpid():
            self._helper.requests.put(None)
        self._helper = None

    def __del__(self) -> None:
        self.close()


class _Helper(threading.Thread):
    """Answers requests until it gets None."""

    def __init__(self, caller: TimeLimitedCaller) -> None:
        super().__init__(daemon=True, name="time-limited")
        self.requests: queue.SimpleQueue = queue.SimpleQueue()
        self.caller = weakref.ref(caller)
        self.abandoned = False

    def run(self) -> None:
        while (request := self.requests.get()) is not None:
            function, answer = request
            try:
                answer.put((function(), None))
            except BaseException as error:  # raised in the caller's thread
                answer.put((None, error))
            del request, function, answer  # keep no sample alive while waiting
