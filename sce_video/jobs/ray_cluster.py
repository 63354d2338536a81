"""Processing of job items on a Ray cluster.

Every Ray actor passes its items to one process of :func:`run_local`. A time limit, a crash or an
exception therefore has the same effect as on one machine, and an error of Ray means that a process
or machine was lost. Ray's own retries are off, because Ray cannot tell whether an item is the
cause, and does not choose new paths for an attempt. Items that take less than a second are sent in
groups, because a call costs time. They are still processed, limited and recorded one by one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any

from sce_video.jobs.job import BatchJob, Item
from sce_video.jobs.process_pool import Done, Outcome, WorkersEndedError, pack, run_local
from sce_video.utils.errors import MissingPackageError, UserError
from sce_video.version import __version__

#: Seconds within which a cluster's address must answer.
_CONNECT_SECONDS = 10.0
#: Seconds within which each node must report its version.
_CHECK_SECONDS = 60.0
#: Program that prints its argument unless it receives a byte before its input ends.
_WATCH = "import sys; sys.stdin.buffer.read() or print(sys.argv[1], file=sys.stderr)"
_ENDED = (
    "error: this program was ended by a signal, or by Ray because the Ray process of this machine "
    "(raylet) has ended. See ray status, and start Ray again. The same command resumes from here"
)


class ClusterError(UserError, RuntimeError):
    """Error for a Ray cluster that is unreachable, lost, or has another version of the package."""


@contextlib.contextmanager
def connection(ray: Any, address: str) -> Iterator[None]:
    """Connect to a Ray cluster for the block, or use an existing connection and keep it.

    Args:
        ray: Imported module ``ray``.
        address: ``HOST:PORT``, which must answer within 10 s, or ``auto``.

    Raises:
        ClusterError: If the cluster does not exist, or was lost during the block.
    """
    if ray.is_initialized():  # the caller has started Ray, and will also stop it
        yield
        return
    host, _, port = address.rpartition(":")
    try:
        if host and "/" not in host and port.isdecimal():  # Ray would keep trying for minutes
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"there is no Ray cluster at {address!r}: {error}") from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ClusterError(
            f"cannot connect to the Ray cluster {address!r}: {reason}. See ray status, or start a "
            "cluster with ray start --head"
        ) from error
    try:
        with watched():
            yield
    except ray.exceptions.RayError as error:
        raise ClusterError(f"the Ray cluster {address!r} was lost: {error}") from error
    finally:
        ray.shutdown()


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Start a process that reports if Ray ends this one, for example because its raylet ended."""
    command = [sys.executable, "-I", "-S", "-c", _WATCH, _ENDED]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        watcher.communicate(b"left")


def check_versions(ray: Any) -> None:
    """Raise ClusterError unless every node has this version of the package.

    A node that leaves the cluster meanwhile is ignored, but every other node must answer within 60
    seconds.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def version() -> str:  # nested, so that Ray sends its code to nodes without sce_video
        try:
            from sce_video.version import __version__ as found
        except Exception as error:
            return f"none ({type(error).__name__}: {error})"
        return str(found)

    task = ray.remote(version)
    found = {}
    for node in ray.nodes():
        if node["Alive"]:
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            remote = task.options(num_cpus=0, scheduling_strategy=where)
            found[node["NodeManagerAddress"], node["NodeID"]] = remote.remote()
    for (host, _), answer in found.items():
        try:
            theirs = ray.get(answer, timeout=_CHECK_SECONDS)
        except ray.exceptions.GetTimeoutError as error:
            raise ClusterError(
                f"node {host} of the Ray cluster has not answered for {_CHECK_SECONDS:g} s"
            ) from error
        except ray.exceptions.RayError:
            continue  # the node has left the cluster
        if theirs != __version__:
            raise ClusterError(
                f"node {host} of the Ray cluster has sce_video {theirs}, but this machine has "
                f"{__version__}. Install the same version on all nodes"
            )


#: Number of calls scheduled per actor: the current one and the next.
_AHEAD = 2
#: Intended duration of a call in seconds. Shorter calls would consist mostly of overhead.
_CALL_SECONDS = 1.0
#: Maximum number of items per call. If a call is lost, its items are processed again one by one.
_MOST_TOGETHER = 64
#: Maximum number of crashes per item. It is low, because the item itself may be the cause.
_MOST_CRASHES = 2
#: Maximum number of times an item may be lost with its node, which the item itself rarely causes.
_MOST_LOSSES = 5
#: Maximum number of consecutive processes that may end before processing an item.
_MOST_STARTS = 10
#: Seconds to wait for a free slot in the cluster, in addition to the time limits of the items.
_PATIENCE = 300.0
#: Seconds between two checks of the cluster's size.
_LOOK_EVERY = 10.0


def run_on_ray(
    job: BatchJob, items: Iterable[Item], address: str, count: int | None, timeout: float
) -> Done:
    """Yield (item, outcome) in order of completion. Each actor has at most two calls in progress.

    An item whose process crashes is tried once more, and an item whose machine is lost up to five
    times. After that, its fault is ``crash`` or ``lost``.

    Args:
        job: Job whose class can be imported on the cluster.
        items: Items to process. They are read as slots become free.
        address: Address of the cluster, or ``auto``.
        count: Maximum number of processes. None uses the whole cluster.
        timeout: Time limit of an item in seconds.

    Raises:
        MissingPackageError: If Ray is not installed.
        ClusterError: If the cluster does not exist or is lost.
        WorkersEndedError: If the processes cannot be started.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            f"--ray needs Ray ({error}). Run pip install sce-video[cluster]"
        ) from error
    with connection(ray, address):
        check_versions(ray)
        # Put the reference into a list, because Ray would resolve a bare one for each call.
        payload = [ray.put((__version__, pack(job), timeout, os.getcwd()))]
        actors = _Actors(ray, job, payload, count)
        try:
            yield from _Run(ray, actors, timeout).outcomes(iter(items))
        finally:
            actors.stop()


class _Host:
    """An actor, which keeps one process of :func:`run_local` for its items."""

    def __init__(self, payload: list[Any]) -> None:
        import ray

        version, job, timeout, folder = ray.get(payload[0])
        if version != __version__:  # the node has joined the cluster later
            raise ClusterError(
                f"a node has sce_video {__version__}, but the driver has {version}. Install the "
                "same version on all nodes"
            )
        # Relative paths refer to the driver's folder. A node without this folder may not need one.
        with contextlib.suppress(OSError):
            os.chdir(folder)
        # Child processes import the main script, which would be Ray's own program here.
        vars(sys.modules["__main__"]).pop("__file__", None)
        self._todo: deque[Item] = deque()
        # None means that no further item is available yet (see process_items).
        taken = (self._todo.popleft() if self._todo else None for _ in repeat(None))
        self._outcomes = run_local(job, taken, 1, timeout)

    def do(self, items: list[Item]) -> tuple[list[tuple[Item, Outcome]], float]:
        """Process items and return them with temporary paths and outcomes, and the seconds used."""
        begin = time.monotonic()
        self._todo.extend(items)
        outcomes = list(islice(self._outcomes, len(items)))
        return outcomes, time.monotonic() - begin

    def ready(self) -> None:
        """Return as soon as the actor runs."""


class _Actors:
    """Ray actors, ``count`` of them or, if it is None, as many as fit into the cluster."""

    def __init__(self, ray: Any, job: BatchJob, payload: list[Any], count: int | None) -> None:
        self._ray, self._job, self._payload, self._count = ray, job, payload, count
        host = ray.remote(_Host)
        self._host = host.options(num_cpus=job.cpus, num_gpus=job.gpus, max_restarts=0)
        self.starting: dict[Any, Any] = {}  # actor by the reference to its ready() call
        self._not_started = 0
        self._load: Counter[Any] = Counter()  # number of scheduled calls, by actor
        self._where: dict[Any, Any] = {}  # actor by the reference to a call
        self._grow()

    def _grow(self) -> None:
        """Start missing actors. Actors without room wait in Ray."""
        self._looked = time.monotonic()
        wanted, job = self._count, self._job
        if wanted is None:  # A job may use part of a GPU, for example 0.25 for four actors.
            found = self._ray.cluster_resources()
            rooms = [found.get(n, 0) / w for n, w in (("CPU", job.cpus), ("GPU", job.gpus)) if w]
            wanted = max(1, int(min(rooms, default=1)))
        for _ in range(wanted - len(self._load) - len(self.starting)):
            actor = self._host.remote(self._payload)
            self.starting[actor.ready.remote()] = actor

    def room(self, pending: int) -> bool:
        """Return whether one more call may be scheduled in addition to the pending ones."""
        if time.monotonic() - self._looked > _LOOK_EVERY:
            self._grow()
        for reference in self.ended_of(self.starting):
            actor = self.starting.pop(reference)
            try:
                self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                self._not_started += 1
                if self._not_started > _MOST_LOSSES:
                    raise WorkersEndedError(f"no actor can be started: {error}") from error
                self._grow()
            else:
                self._load[actor] = 0
        return pending < _AHEAD * len(self._load)

    def ended_of(self, references: Iterable[Any]) -> list[Any]:
        """Return the references to calls that have ended."""
        some = list(references)
        return self._ray.wait(some, num_returns=len(some), timeout=0)[0] if some else []

    def schedule(self, items: list[Item]) -> Any:
        """Schedule items and return the reference to the result of :meth:`_Host.do`."""
        actor = min(self._load, key=self._load.__getitem__)
        self._load[actor] += 1
        reference = actor.do.remote(items)
        self._where[reference] = actor
        return reference

    def ended(self, reference: Any, lost: bool) -> None:
        """Record that a call has ended and, if ``lost``, that its actor is gone."""
        actor = self._where.pop(reference)
        if actor in self._load:
            self._load[actor] -= 1
            if lost:
                del self._load[actor]
                self._ray.kill(actor)
                self._grow()

    def stop(self) -> None:
        """End all processes."""
        for actor in [*self._load, *self.starting.values()]:
            self._ray.kill(actor)


class _Run:
    """Calls in progress, and the attempts of items that failed."""

    def __init__(self, ray: Any, actors: _Actors, timeout: float) -> None:
        self._ray, self._actors, self._timeout = ray, actors, timeout
        self.pending: dict[Any, list[Item]] = {}
        self._together = 1  # number of items in the next call
        self._again: deque[Item] = deque()  # each of these items gets its own call
        self._faults: Counter[tuple[str, str]] = Counter()
        self._not_started = 0  # number of consecutive processes that did not start

    def outcomes(self, items: Iterator[Item]) -> Done:
        """Schedule items as there is room, and yield (item, outcome)."""
        last, more = time.monotonic(), True
        while True:
            while (more or self._again) and self._actors.room(len(self.pending)):
                some = [self._again.popleft()] if self._again else []
                some = some or list(islice(items, self._together))
                if some:
                    self.pending[self._actors.schedule(some)] = some
                else:
                    more = False
            if not (self.pending or self._again or more):
                return
            self._ray.wait([*self.pending, *self._actors.starting], num_returns=1, timeout=1.0)
            for reference in self._actors.ended_of(self.pending):
                last = time.monotonic()
                yield from self._results(reference, self.pending.pop(reference))
            longest = max(map(len, self.pending.values()), default=1)
            if (waited := time.monotonic() - last) > 2 * self._timeout * longest + _PATIENCE:
                raise ClusterError(
                    f"no file was completed for {waited:,.0f} s, because the Ray cluster has no "
                    "free CPU or GPU for this job. See ray status"
                )

    def _results(self, reference: Any, items: list[Item]) -> Iterator[tuple[Item, Outcome]]:
        """Yield the outcomes of a call, except for items that are tried again."""
        errors = self._ray.exceptions
        try:
            outcomes, seconds = self._ray.get(reference)
        except errors.RayTaskError as error:
            self._not_started += 1
            if not isinstance(error.cause, WorkersEndedError) or self._not_started > _MOST_STARTS:
                reason = str(error.cause).strip().rpartition("\n")[2]  # a traceback's last line
                raise WorkersEndedError(f"a process of the cluster failed: {reason}") from error
            self._actors.ended(reference, True)
            self._again += items  # they may succeed in another process
            return
        except errors.RayError as error:
            self._actors.ended(reference, True)
            if len(items) > 1:  # one item may be the cause, so each gets its own call
                self._again += items
                return
            killed = isinstance(error, errors.OutOfMemoryError | errors.WorkerCrashedError)
            reason = str(error).strip().partition("\n")[0]
            outcomes = [(items[0], Outcome(None, "crash" if killed else "lost", reason))]
        else:
            self._actors.ended(reference, False)
            self._not_started = 0
            together = _CALL_SECONDS * len(items) / max(seconds, 1e-6)
            self._together = max(1, min(_MOST_TOGETHER, int(together)))
        of_key = {item.key: item for item in items}
        for attempt, outcome in outcomes:  # ordered by completion, not as in ``items``
            key, fault = attempt.key, str(outcome.fault)
            self._faults[key, fault] += 1
            most = {"crash": _MOST_CRASHES, "lost": _MOST_LOSSES}.get(fault, 0)
            if self._faults[key, fault] < most:
                # Use the original item, because its temporary path does not contain an attempt yet.
                self._again.append(of_key[key])
                continue
            for kind in ("crash", "lost", fault):
                self._faults.pop((key, kind), None)
            yield attempt, outcome
