"""What a batch job is: items, a function of one item, and when its result still holds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sce_video.utils.errors import UserError


@dataclass(frozen=True)
class Record:
    """The result of one item.

    Attributes:
        key: Of the item.
        done: Whether it succeeded.
        source: State of the source; None if there was none.
        settings: Of the job.
        facts: What the job returned; empty after a failure.
        kind: Of the failure: ``error`` (an exception), ``timeout``, ``crash`` (the process ended),
            ``lost`` (its machine did), ``missing`` (no source), ``changed`` (the source changed
            meanwhile), ``name`` (the output's is too long), or the job's own; empty if done.
        reason: The failure in words.
        output: Path of the output relative to the job's folder.
        output_bytes: Its size.
        time_limit: Seconds that the item was given.
        time: When it was recorded, seconds since 1970.
        data: Bytes that the job returned beside the facts; None without any.
    """

    key: str
    done: bool
    source: dict[str, Any] | None
    settings: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    reason: str = ""
    output: str | None = None
    output_bytes: int | None = None
    time_limit: float | None = None
    time: float = 0.0
    data: bytes | None = None


#: State of a file that does not exist now: None in place of a dict.
State = dict[str, Any] | None


@dataclass(frozen=True)
class Item:
    """One unit of work.

    Attributes:
        key: Names the item; unique in the job.
        source: What changes when the source of the item changes, as :func:`file_state` returns;
            None if it does not exist now.
        argument: Anything that the process needs besides the key; it is pickled.
        output: File to write, relative to the folder of the job; None without one.
        temporary: Where :meth:`BatchJob.process` writes the output; set by the runner.
    """

    key: str
    source: State
    argument: Any = None
    output: str | None = None
    temporary: str = ""


class ItemError(Exception):
    """An item has failed; ``kind`` is a word for its record.

    Raised by :meth:`BatchJob.process`; the run continues with the other items.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class RunError(UserError, RuntimeError):
    """No item can succeed, as with a network that fails: the run ends, no item has failed."""


class StorageError(RunError):
    """Results cannot be written, because of the disk and not because of an item: the run ends."""


@dataclass(frozen=True)
class Facts:
    """What :meth:`BatchJob.process` may return in place of a dict.

    Attributes:
        values: Facts that JSON can hold.
        data: Bytes that are stored as they are, such as those of a feature.
    """

    values: dict[str, Any]
    data: bytes | None = None


class BatchJob:
    """A function of one item that runs in worker processes, on this machine or a Ray cluster.

    It is pickled, so its class is defined at the top level of a module. :meth:`setup` and
    :meth:`process` are called in the processes, all else in the driver.

    Attributes:
        name: Of the job, in its store and in messages.
        settings: All that determines a record besides the source, as JSON values. Items that were
            finished with other settings are due again.
        folder: Folder of the outputs.
        cpus: Cores that a process takes, for Ray.
        gpus: GPUs that a process takes, for Ray.
    """

    name = "job"
    settings: Mapping[str, Any] = {}
    folder: str = ""
    cpus: float = 1
    gpus: float = 0

    def setup(self) -> None:
        """Load what all items need (a model, a decoder) into attributes, once per process.

        An exception here ends the run: no item fails for it.
        """

    def process(self, item: Item) -> dict[str, Any] | Facts:
        """Facts about one item, that JSON can hold; ``item.temporary`` is written if it has an
        output.

        The same item gives the same facts, whichever process does it and however often.

        Raises:
            ItemError: the item fails; so it does with any other exception, as kind ``error``.
            RunError: no item can succeed, or (StorageError) nothing can be written; the run ends
                and the item is not recorded.
        """
        raise NotImplementedError

    def source(self, item: Item) -> State:
        """The present state of the source; asked for after the item, which fails if it changed."""
        return item.source

    def holds(self, item: Item, record: Record) -> bool:
        """Whether a record of the same settings stands, so that the item is not due again.

        The runner also compares source and output; by default all failures are due again.
        """
        return record.done

    def made_output(self, item: Item, record: Record | None) -> bool:
        """Whether the file at the output's path is ours, so that a failure now removes it."""
        return record is not None and record.done and record.output == item.output


def file_state(path: str | os.PathLike[str]) -> State:
    """Size and modification time, by which a changed file is noticed; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
