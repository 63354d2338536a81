"""Items of a job in processes of this machine, or in this process."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Generator, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from sce_video.jobs.job import (
    BatchJob,
    Facts,
    Item,
    ItemError,
    RunError,
)
from sce_video.jobs.process_pool import Outcome, call, process_items


def attempt_path(prefix: str) -> str:
    """A new path for one attempt to write an output; empty for an empty prefix."""
    return f"{prefix}.{secrets.token_hex(4)}.part" if prefix else ""


Done = Generator[tuple[Item, Outcome], None, None]

#: Of this process, if it is a worker: the job, and why its setup failed.
_job: BatchJob | None = None
_problem = ""


class PackedJob(NamedTuple):
    """A pickled job, and the module of its class.

    It is unpacked where it runs: what only starts it, such as an actor of Ray, need not import it.
    """

    data: bytes
    module: str

    @classmethod
    def of(cls, job: BatchJob) -> PackedJob:
        """Pack a job."""
        return cls(pickle.dumps(job), type(job).__module__)


def run_local(
    job: BatchJob | PackedJob, items: Iterable[Item | None], workers: int, timeout: float
) -> Done:
    """Yield (item, outcome) in order of completion: :func:`process_items` for a job.

    The items that are yielded have the temporary path of their attempt. The outcome of an item
    whose process could not set up the job has the fault ``setup``.
    """
    attempts = (None if item is None else _attempt(item) for item in items)
    return process_items(
        _process,
        (None if attempt is None else (attempt, attempt) for attempt in attempts),
        workers=workers,
        timeout=timeout,
        preload=(job.module if isinstance(job, PackedJob) else type(job).__module__,),
        start=partial(_start, job),
    )


def run_here(job: BatchJob, items: Iterable[Item]) -> Done:
    """Yield (item, outcome), each made in this process: no time limit, and a crash ends the run."""
    problem = _set_up(job)
    for item in items:
        attempt = _attempt(item)
        yield attempt, Outcome(None, "setup", problem) if problem else call(job.process, attempt)


def _attempt(item: Item) -> Item:
    return replace(item, temporary=attempt_path(item.temporary))


def _start(job: BatchJob | PackedJob) -> None:
    global _job, _problem
    try:
        _job = pickle.loads(job.data) if isinstance(job, PackedJob) else job
    except Exception as error:  # a module that this machine does not have
        _problem = f"{type(error).__name__}: {error}"
    else:
        _problem = _set_up(_job)


def _set_up(job: BatchJob) -> str:
    """Why the job cannot be set up; empty if it is."""
    try:
        job.setup()
    except RunError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _process(item: Item) -> dict[str, Any] | Facts:
    if _problem:
        raise ItemError("setup", _problem)
    assert _job is not None
    return _job.process(item)
