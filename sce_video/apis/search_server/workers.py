"""Processes that open files of others: a crash or a hang costs one request, not the server."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from pebble import ProcessExpired, ProcessPool

from sce_video.utils.command import explain
from sce_video.utils.errors import UserError

_TRIES = 3  # pools that break because a worker ended between two calls


class CallError(UserError, RuntimeError):
    """What was wrong with the file or the network of a call, as one sentence."""


class Workers:
    """Worker processes for functions that take a file.

    Args:
        count: Number of processes.
        preload: Modules that are imported once, before the workers are forked.
    """

    def __init__(self, count: int, preload: tuple[str, ...] = ()) -> None:
        self._count = count
        # A fork of this process could inherit locks held by its threads, so a server process forks.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None
        self._closed = False

    def start(self) -> None:
        """Start the processes, so that the first call need not wait for imports."""
        self._open_pool()

    def call(self, function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
        """What ``function(*arguments)`` returns, called in a worker.

        Args:
            function: Defined at the top level of a module, as it is pickled.
            timeout: Seconds after which the worker is ended.

        Raises:
            CallError: An error that a user can mend, a timeout, or the end of the worker.
        """
        for _ in range(_TRIES):
            pool = self._open_pool()
            try:
                future = pool.schedule(_attempt, args=(function, arguments), timeout=timeout)
                value, problem = future.result()
            except TimeoutError:
                raise CallError(f"reading it took longer than {timeout:g} s") from None
            except ProcessExpired:
                raise CallError("reading it ended the process that decodes it") from None
            except (BrokenProcessPool, RuntimeError):  # closed, or a worker ended without a call
                self._discard(pool)
                continue
            if problem:
                raise CallError(problem)
            return value
        raise CallError("the processes that decode videos have ended: start the page again")

    def close(self) -> None:
        """End all processes."""
        self._closed = True
        if self._pool is not None:
            self._discard(self._pool)

    def _open_pool(self) -> ProcessPool:
        with self._lock:
            if self._closed:
                raise CallError("the page is being closed")
            if self._pool is None or not self._pool.active:
                # Processes inherit the mask: Ctrl-C on a terminal is for the server alone.
                before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                try:
                    self._pool = ProcessPool(self._count, context=self._context)
                    self._pool.schedule(int)
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return self._pool

    def _discard(self, pool: ProcessPool) -> None:
        with self._lock:
            if self._pool is pool:
                self._pool = None
        pool.stop()
        pool.join()


def _attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """(what the function returned, "") or (None, sentence): an exception may not survive pickling."""
    try:
        return function(*arguments), ""
    except Exception as error:
        return None, explain(error) or f"{type(error).__name__}: {error}"
