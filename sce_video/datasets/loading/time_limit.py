"""Function calls with a time limit."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any


class TimeLimitedCaller:
    """Runs functions one after the other in a helper thread, each with a time limit.

    A function that exceeds it is abandoned in its (daemon) thread, and the next call gets a new
    thread. This works because a hanging decoder has released the GIL; Python code in an endless
    loop would keep using a core. The thread is started at the first call, once per process, so an
    instance may be copied to worker processes.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue | None = None
        self._pid = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_requests": None, "_pid": 0}

    def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """Return ``function()``; TimeoutError after ``seconds``, exceptions are passed on."""
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
            self._requests.put(None)  # ends the thread, should the call ever return
            self._requests = None
            raise TimeoutError(f"no answer after {seconds:.1f} s") from None
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """End the helper thread if it is idle."""
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
        except BaseException as error:  # raised in the caller's thread
            answer.put((None, error))
        del request, function, answer  # keep no sample alive while waiting
