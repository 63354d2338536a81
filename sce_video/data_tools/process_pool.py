"""Processes for work that may hang or crash: the culprit is named and the rest goes on."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection, wait
from typing import Any

_GRACE = 2.0  # seconds a function that watches the time itself gets to end cleanly
_START_LIMIT = 300.0  # seconds a new process may take to import what it needs


@dataclass(frozen=True)
class Outcome:
    """What became of one item.

    Attributes:
        value: What the function returned; None after a fault.
        fault: None, ``timeout``, ``crash`` (the process died) or ``error`` (an exception).
        detail: A few words about the fault.
    """

    value: Any = None
    fault: str | None = None
    detail: str = ""


@dataclass
class _Worker:
    process: Any
    connection: Connection
    ready: bool = False
    key: Any = None
    busy: bool = False
    deadline: float = 0.0


class GuardedPool:
    """Runs a function over items, each worker holding one item at a time.

    Python's own pools lose everything when a process dies, and cannot end one that hangs. Here a
    process that passes the time limit is killed, a dead one is replaced, and the item it held is
    known.

    Args:
        function: Of a module, so that another process finds it; takes one argument.
        workers: Number of processes.
        timeout: Seconds an item may take.
        preload: Modules that the processes share, imported once.

    Raises:
        ValueError: ``workers`` or ``timeout`` are not positive.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        workers: int,
        timeout: float,
        preload: tuple[str, ...] = (),
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        if not timeout > 0:
            raise ValueError(f"timeout must be positive seconds, got {timeout}")
        self.function = function
        self.workers = workers
        self.timeout = timeout
        # A fork of this process could inherit locks that its threads hold; a server forks instead.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["__main__", __name__, *preload])
        self._team: list[_Worker] = []

    def run(self, items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Outcome]]:
        """Yield (key, outcome) for all (key, argument), in the order of completion.

        Raises:
            RuntimeError: The processes cannot be started.
        """
        pending = iter(items)
        exhausted = False
        try:
            while True:
                for worker in [w for w in self._team if w.ready and not w.busy]:
                    item = next(pending, None)
                    if item is None:
                        exhausted = True
                        break
                    if not self._give(worker, item):
                        pending = chain([item], pending)
                if exhausted and not any(w.busy for w in self._team):
                    return
                while len(self._team) < self.workers and not exhausted:
                    self._team.append(self._start())
                yield from self._collect()
        finally:
            self._stop()

    def _start(self) -> _Worker:
        here, there = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(there, self.function, self.timeout + 2 * _GRACE), daemon=True
        )
        process.start()
        there.close()
        return _Worker(process, here, deadline=time.monotonic() + _START_LIMIT)

    def _give(self, worker: _Worker, item: tuple[Any, Any]) -> bool:
        """Hand an item to an idle worker; False when that has died meanwhile."""
        key, argument = item
        try:
            worker.connection.send(argument)
        except OSError:
            self._bury(worker)
            return False
        worker.key, worker.busy = key, True
        worker.deadline = time.monotonic() + self.timeout + _GRACE
        return True

    def _collect(self) -> Iterator[tuple[Any, Outcome]]:
        """Wait for news of the workers or for the next time limit."""
        watched = [w for w in self._team if w.busy or not w.ready]
        if not watched:
            return
        seconds = max(0.0, min(w.deadline for w in watched) - time.monotonic())
        talking = wait([w.connection for w in watched], seconds)
        for worker in watched:
            late = time.monotonic() >= worker.deadline
            if worker.connection not in talking and not late:
                continue
            message = self._hear(worker) if worker.connection in talking else self._end(worker)
            if worker.busy:
                worker.busy = False
                yield worker.key, message
            worker.ready = True

    def _hear(self, worker: _Worker) -> Outcome:
        """The worker's message, or what it died of."""
        try:
            return worker.connection.recv()
        except (EOFError, OSError):
            code = self._bury(worker)
        if not worker.ready:
            raise RuntimeError(f"a worker process ended (status {code}) before it had begun")
        if code == -signal.SIGALRM:
            return Outcome(None, "timeout", self._limit())
        return Outcome(None, "crash", _cause_of_death(code))

    def _end(self, worker: _Worker) -> Outcome:
        """Kill a worker whose time is up."""
        if not worker.ready:
            raise RuntimeError(f"a worker process did not start in {_START_LIMIT:g} s")
        worker.process.kill()
        self._bury(worker)
        return Outcome(None, "timeout", self._limit())

    def _bury(self, worker: _Worker) -> int | None:
        """Take a dead worker out of the team; its exit status."""
        self._team.remove(worker)
        worker.process.join(_GRACE)
        worker.connection.close()
        return worker.process.exitcode

    def _limit(self) -> str:
        return f"not done after {self.timeout:g} s"

    def _stop(self) -> None:
        for worker in self._team:
            worker.process.kill()
            worker.process.join(_GRACE)
            worker.connection.close()
        self._team.clear()


def _serve(connection: Connection, function: Callable[[Any], Any], last_resort: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    # Should the parent be killed while we hang in foreign code, the system ends us.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    connection.send(None)
    while True:
        try:
            argument = connection.recv()
        except (EOFError, OSError):
            return
        signal.setitimer(signal.ITIMER_REAL, last_resort)
        try:
            answer = Outcome(function(argument))
        except Exception as error:
            answer = Outcome(None, "error", f"{type(error).__name__}: {error}")
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            connection.send(answer)
        except OSError:  # the parent is gone
            return


def _cause_of_death(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"the process died of {signal.Signals(-code).name}"
        except ValueError:
            return f"the process died of signal {-code}"
    return f"the process ended with status {code}"
