"""A time limit for functions that cannot be interrupted because they may hang in a library."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class LimitExceededError(TimeoutError):
    """A call took longer than its time limit."""


class AbandonedError(RuntimeError):
    """Raised in a thread that exceeded its time limit, so that the thread ends."""


class TimeLimitedCaller:
    """Helper thread that runs functions one after the other, with a time limit.

    If a function exceeds the limit, its daemon thread is abandoned, and the next call starts a new
    thread. This works because a hanging decoder has released the GIL. The samples of a batch are
    made by one call, in which each sample restarts the limit. Instances can be copied to workers.
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
                with suppress(queue.Empty):  # no answer yet, but the limit may have changed
                    value, error = answer.get(timeout=min(left, seconds))
                    break
            else:
                raise LimitExceededError(f"no answer after {seconds:.1f} s")
        except BaseException:  # the limit was exceeded, or the call was interrupted
            self._helper.abandoned = True
            self.close()
            raise
        if error is not None:
            raise error
        return value

    def restart(self, seconds: float) -> None:
        """Set the limit to ``seconds`` from now, from within the function that :meth:`call` runs.

        If the previous limit was ``math.inf``, exceeding the new limit may be noticed late, by up
        to the ``seconds`` of the call. AbandonedError is raised if the previous limit was exceeded.
        """
        helper = threading.current_thread()
        if not isinstance(helper, _Helper) or helper.caller() is not self or helper.abandoned:
            raise AbandonedError("the time limit was exceeded")
        self._end = time.monotonic() + seconds

    def close(self) -> None:
        """End the helper thread when it is idle."""
        if self._helper is not None and self._pid == os.getpid():
            self._helper.requests.put(None)
        self._helper = None

    def __del__(self) -> None:
        self.close()


class _Helper(threading.Thread):
    """Thread that answers requests until it receives None."""

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
            except BaseException as error:  # the calling thread will raise it
                answer.put((None, error))
            del request, function, answer  # release the sample while waiting
