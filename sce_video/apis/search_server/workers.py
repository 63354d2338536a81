"""Processes that open files of others: a crash or a hang costs one request, not the server."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from queue import SimpleQueue
from typing import Any

from pebble import ProcessExpired, ProcessPool

from sce_video.utils.command import explain
from sce_video.utils.errors import UserError

_TRIES = 3  # a pool breaks where its worker ends between two calls
_CLOSING = "the page is being closed"


class CallError(UserError, RuntimeError):
    """What was wrong with the file or the network of a call, as one sentence."""


class Workers:
    """Worker processes for functions that take a file; for callers in several threads.

    Args:
        count: Number of processes.
        preload: Modules that are imported once, before the workers are forked.
    """

    def __init__(self, count: int, preload: tuple[str, ...] = ()) -> None:
        # A fork of this process could inherit locks held by its threads, so a server process forks.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(preload))
        self._all = [_Worker(context) for _ in range(count)]
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._all:
            self._idle.put(worker)

    def start(self) -> None:
        """Start the processes, so that the first call need not wait for their imports."""
        for _ in self._all:
            worker = self._idle.get()
            with suppress(Exception):  # the first call says what is wrong
                worker.open()
            self._idle.put(worker)

    def call(self, function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
        """What ``function(*arguments)`` returns, called in a worker.

        Args:
            function: Defined at the top level of a module, as it is pickled.
            timeout: Seconds after which the worker is ended.

        Raises:
            CallError: An error that a user can mend, a timeout, or the end of the worker.
        """
        worker = self._idle.get()
        try:
            value, problem = worker.call(function, arguments, timeout)
        finally:
            self._idle.put(worker)
        if problem:
            raise CallError(problem)
        return value

    def close(self) -> None:
        """End all processes that have started; calls in progress and later ones raise CallError."""
        for worker in self._all:
            worker.close()


class _Worker:
    """A pool of one process, used by one thread at a time.

    Args:
        context: Starts the process.
    """

    def __init__(self, context: ForkServerContext) -> None:
        self._context = context
        self._pool: ProcessPool | None = None
        self._started: Future = Future()
        self._closed = False

    def open(self) -> ProcessPool:
        if self._closed:
            raise CallError(_CLOSING)
        if self._pool is None or not self._pool.active:
            # Processes inherit the mask: Ctrl-C on a terminal is for the server alone.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._pool = ProcessPool(1, initializer=_reset_signals, context=self._context)
                self._started = self._pool.schedule(int)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if self._closed:
                raise CallError(_CLOSING)
        return self._pool

    def call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], timeout: float
    ) -> tuple[Any, str]:
        for _ in range(_TRIES):
            try:
                pool = self.open()
                future = pool.schedule(_attempt, args=(function, arguments), timeout=timeout)
                return future.result()
            except TimeoutError:
                return None, f"reading it took longer than {timeout:g} s"
            except ProcessExpired:
                return None, "reading it ended the process that decodes it"
            except CancelledError:
                return None, _CLOSING
            except (BrokenProcessPool, RuntimeError):  # also of a pool that is not active any more
                if self._closed:
                    return None, _CLOSING
                self._stop()
        return None, "the processes that decode videos end at once: start the page again"

    def close(self) -> None:
        self._closed = True
        if self._started.done():  # else it is importing, for seconds, and ends with this process
            self._stop()

    def _stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
            pool.join()


def kill_fork_server() -> None:
    """End the process that forks workers, at the end of this one: it may import for many seconds.

    Left alone it would fork another worker then, which complains that its parent has gone.
    """
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reset_signals() -> None:
    """Make SIGTERM end a worker at once, also while it is inside C code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """(what it returned, "") or (None, sentence): an exception may not survive pickling."""
    try:
        return function(*arguments), ""
    except Exception as error:
        return None, explain(error) or f"{type(error).__name__}: {error}"
