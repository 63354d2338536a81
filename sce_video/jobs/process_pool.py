"""Processing of job items on this machine, where a crash or a hang costs only one item.

The processes belong to ``pebble.ProcessPool``, which kills a worker that exceeds its time limit and
replaces a worker that crashed. If a worker is killed while it receives an item, it holds the lock
of pebble's pipe, and the replacement takes a minute. This module adds three things. Few items are
scheduled ahead, so the items may be a generator over millions. Outcomes are yielded as values. A
worker ends itself if it hangs after its parent was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import pickle
import secrets
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from pebble import ProcessExpired, ProcessPool

from sce_video.jobs.job import BatchJob, Facts, Item, ItemError, RunError, StorageError
from sce_video.utils.errors import CRASH_SIGNALS, UserError
from sce_video.utils.own_parts import OwnModules, own_modules
from sce_video.utils.records import JsonObject

Key = TypeVar("Key")

#: Extra seconds in which a function that checks the time limit itself can still return.
_GRACE = 2.0
#: Time limit in seconds for ``start``.
_SETUP_SECONDS = 900.0
#: Option of Linux's prctl that sets the signal sent when the parent ends (linux/prctl.h).
_PR_SET_PDEATHSIG = 1
#: Maximum number of consecutive pools that break without completing an item.
_MOST_BREAKS = 5
#: Number of items scheduled per worker: the current one and the next.
_AHEAD = 2


class WorkersEndedError(UserError, RuntimeError):
    """Error for worker processes that cannot be started."""


@dataclass(frozen=True)
class Outcome:
    """Result of one item.

    Attributes:
        value: Return value of the function; None after a fault.
        fault: None, ``timeout``, ``crash`` (the process ended), ``error`` (an exception), the kind
            of an ItemError, ``run`` for a RunError, or ``storage`` for a StorageError.
        detail: Description of the fault; empty without one.
    """

    value: Any = None
    fault: str | None = None
    detail: str = ""


Done = Generator[tuple[Item, Outcome], None, None]


def process_items(
    function: Callable[[Any], Any],
    items: Iterable[tuple[Key, Any] | None],
    *,
    workers: int,
    timeout: float,
    preload: tuple[str, ...] = (),
    start: Callable[[], None] | None = None,
) -> Generator[tuple[Key, Outcome], None, None]:
    """Yield (key, outcome) for all (key, argument), in order of completion.

    Closing the generator, or an exception in the thread that iterates over it, ends all workers.

    Args:
        function: Function of one argument. It is pickled, so it is defined at the top level of a
            module.
        items: Keys and arguments, which are read as workers become free. None means that there is
            currently no other item. The caller may then request an outcome only while an item is in
            progress.
        workers: Number of processes.
        timeout: Time limit of an item in seconds. Its process is killed 2 s later.
        preload: Modules that are imported once, before the workers are forked.
        start: Function that each process calls before its first item, without the time limit. It is
            pickled.

    Raises:
        ValueError: If ``workers`` or ``timeout`` is not positive. It is raised by the call itself.
        WorkersEndedError: If the workers cannot be started. It is raised while iterating.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout}")
    # A process forked from this one could inherit locks that our threads hold, so let a separate
    # server process fork.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__, *preload])

    def open_pool() -> ProcessPool:
        return ProcessPool(workers, initializer=_begin, initargs=[start], context=context)

    return _run(open_pool, function, iter(items), workers * _AHEAD, timeout)


def _run(
    open_pool: Callable[[], ProcessPool],
    function: Callable[[Any], Any],
    items: Iterator[tuple[Key, Any] | None],
    ahead: int,
    timeout: float,
) -> Generator[tuple[Key, Outcome], None, None]:
    pool, breaks = open_pool(), 0
    pending: dict[Future, tuple[Key, Any]] = {}
    again: list[Key] = []  # keys of items whose worker was killed from outside
    completed: SimpleQueue[Future] = SimpleQueue()  # unlike futures.wait, a queue keeps the order
    try:
        while True:
            # Schedule only a few items ahead, because ``items`` may yield millions of them.
            for item in islice(items, ahead - len(pending)):
                if item is None:
                    break
                # There are three limits: the function's own, pebble's, and the worker's alarm. Each
                # of them takes effect if the previous one fails.
                arguments = (function, item[1], timeout + 2 * _GRACE)
                future: Future = Future()
                try:
                    future = pool.schedule(_call, args=arguments, timeout=timeout + _GRACE)
                except RuntimeError as error:  # the pool is no longer active
                    future.set_exception(BrokenProcessPool(str(error)))
                pending[future] = item
                future.add_done_callback(completed.put)
            if not pending:
                return
            try:
                done = completed.get(timeout=1.0)
            except Empty:
                done = None
            if done is not None and not isinstance(done.exception(), BrokenProcessPool):
                item = pending.pop(done)
                breaks = 0
                if _ended_from_outside(done) and item[0] not in again:
                    # The item did not cause the worker's end, so try it once more.
                    again.append(item[0])
                    items = chain([item], items)
                    continue
                yield item[0], _outcome_of(done, timeout, twice=item[0] in again)
                again = [key for key in again if key != item[0]]
            elif done is not None or not pool.active:
                # pebble gives up if a worker dies between two items, so start a new pool.
                breaks += 1
                if breaks == _MOST_BREAKS:
                    raise WorkersEndedError(
                        "the worker processes exit before they process an item. If this is your "
                        'own script, put its code under if __name__ == "__main__":'
                    )
                pool.stop()
                pool.join()
                # No outcome has been yielded for pending items, so they can be processed again.
                pool, completed = open_pool(), SimpleQueue()
                items, pending = chain(list(pending.values()), items), {}
    finally:
        pool.stop()
        pool.join()


def _ended_from_outside(future: Future) -> bool:
    """Return whether a signal from outside ended the worker, instead of its code or its alarm."""
    error = future.exception()
    code = error.exitcode if isinstance(error, ProcessExpired) else None
    return code is not None and code < 0 and -code not in {*CRASH_SIGNALS, signal.SIGALRM}


def _outcome_of(future: Future, timeout: float, twice: bool) -> Outcome:
    error = future.exception()
    if error is None:
        return future.result()
    code = error.exitcode if isinstance(error, ProcessExpired) else None
    if isinstance(error, TimeoutError) or code == -signal.SIGALRM:
        return Outcome(None, "timeout", f"not done after {timeout:g} s")
    if code is None:
        return Outcome(None, "error", f"{type(error).__name__}: {error}")
    names = {number.value: number.name for number in signal.Signals}
    how = f"was killed by {names.get(-code, -code)}" if code < 0 else f"exited with status {code}"
    if twice and _ended_from_outside(future):
        how += ", like the process before it. Memory ran out, or somebody ended both"
    return Outcome(None, "crash", f"the process {how}")


def _begin(start: Callable[[], None] | None) -> None:
    """Make SIGTERM and SIGALRM end a worker immediately, even while it is inside C code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # On Linux, let the kernel kill this process when its fork server exits, which happens when the
    # driver exits. On other systems, _call's alarm kills it after the time limit.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if start is not None:
        signal.setitimer(signal.ITIMER_REAL, _SETUP_SECONDS)
        start()
        signal.setitimer(signal.ITIMER_REAL, 0)


def _call(function: Callable[[Any], Any], argument: Any, last_resort: float) -> Outcome:
    """Call the function in a worker, which an alarm ends if its parent no longer can."""
    signal.setitimer(signal.ITIMER_REAL, last_resort)
    try:
        return call(function, argument)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def call(function: Callable[[Any], Any], argument: Any) -> Outcome:
    """Return the outcome of a call in this process, whatever exception it raises.

    Its fault is the kind of an ItemError, ``storage``, ``run``, or ``error`` for any other
    Exception. KeyboardInterrupt and SystemExit are not caught.
    """
    try:
        return Outcome(function(argument))
    except ItemError as error:
        return Outcome(None, error.kind, str(error))
    except RunError as error:
        return Outcome(None, "storage" if isinstance(error, StorageError) else "run", str(error))
    except Exception as error:  # convert to text, as some exceptions cannot be pickled
        return Outcome(None, "error", f"{type(error).__name__}: {error}")


#: State of a worker process: its job, or the reason why the setup failed.
_job: BatchJob | None = None
_problem = ""


class PackedJob(NamedTuple):
    """A pickled job that is unpacked where it runs.

    Attributes:
        data: Pickled job.
        module: Module of its class.
        modules: Modules of the user's own parts, which its process imports first.
    """

    data: bytes
    module: str
    modules: OwnModules


def pack(job: BatchJob) -> PackedJob:
    """Pickle a job.

    Raises:
        WorkersEndedError: If the job contains something that cannot be pickled, such as a nested
            function.
    """
    try:
        return PackedJob(pickle.dumps(job), type(job).__module__, own_modules())
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise WorkersEndedError(
            f"{job.name} cannot be sent to other processes: {error}. To work in this process, set "
            "--workers 0"
        ) from error


def run_local(
    job: BatchJob | PackedJob, items: Iterable[Item | None], workers: int, timeout: float
) -> Done:
    """Yield (item, outcome) in order of completion: :func:`process_items` for a job.

    The items have the temporary path of their attempt. If a process could not set up the job, the
    item's fault is ``setup``.
    """
    packed = job if isinstance(job, PackedJob) else pack(job)
    attempts = (None if item is None else _attempt(item) for item in items)
    return process_items(
        _process,
        (None if attempt is None else (attempt, attempt) for attempt in attempts),
        workers=workers,
        timeout=timeout,
        preload=(packed.module, *packed.modules.named, *packed.modules.others),
        start=partial(_start, packed),
    )


def run_here(job: BatchJob, items: Iterable[Item]) -> Done:
    """Yield (item, outcome) from this process. There is no time limit, and a crash ends the run."""
    _, problem = _set_up(job)
    for item in map(_attempt, items):
        yield item, Outcome(None, "setup", problem) if problem else call(job.process, item)


def _attempt(item: Item) -> Item:
    """Return the item with a new path for one attempt to write its output, if it has any."""
    path = f"{item.temporary}.{secrets.token_hex(4)}.part" if item.temporary else ""
    return replace(item, temporary=path)


def _set_up(job: BatchJob | PackedJob) -> tuple[BatchJob | None, str]:
    """Return the job and the reason why it cannot be set up; empty if it can."""
    try:
        if isinstance(job, PackedJob):
            job.modules.load()
        unpacked: BatchJob = pickle.loads(job.data) if isinstance(job, PackedJob) else job
        unpacked.setup()
    except RunError as error:
        return None, str(error)
    except Exception as error:  # e.g. a module that this machine lacks
        return None, f"{type(error).__name__}: {error}"
    return unpacked, ""


def _start(job: PackedJob) -> None:
    global _job, _problem
    _job, _problem = _set_up(job)


def _process(item: Item) -> JsonObject | Facts:
    if _problem:
        raise ItemError("setup", _problem)
    assert _job is not None
    return _job.process(item)
