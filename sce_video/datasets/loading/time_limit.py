"""Calls that may hang, from which the caller must get away."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any


class TimeLimitedCaller:
    """Runs functions one after the other in a helper thread, each with a time limit.

    A function that does not come back in time is left behind in its (daemon) thread, and the next
    call gets a new one. That works because a hanging decoder has released the interpreter's lock;
    Python code in an endless loop would go on using a core. The thread is started when first
    needed, once per process, so an instance may be copied to worker processes.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue | None = None
        self._pid = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_requests": None, "_pid": 0}

    def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """``function()``, or TimeoutError after ``seconds``; its own exceptions come through."""
        if self._requests is None or self._pid != os.getpid():
            self._requests, self._pid = queue.SimpleQueue(), os.getpid()
            threading.Thread(
                target=_serve, args=(self._requests,), daemon=True, name="time-limited"
            ).start()
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self._requests.put((function, answer))
        try:
            value, error = answer.get(timeout=seconds)
        except queue.Empty:
            self._requests.put(None)  # should the call ever return, its thread ends
            self._requests = None
            raise TimeoutError(f"no answer after {seconds:.1f} s") from None
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Let an idle helper thread end."""
        if self._requests is not None and self._pid == os.getpid():
            self._requests.put(None)
        self._requests = None

    def __del__(self) -> None:
        self.close()


def _serve(requests: queue.SimpleQueue) -> None:
    while (request := requests.get()) is not None:
        function, answer = request
        try:
            answer.put((function(), None))
        except BaseException as error:  # handed to the caller
            answer.put((None, error))
        del request, function, answer  # keep no sample alive while waiting
