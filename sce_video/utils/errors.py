"""Base classes of errors that a user can fix, and the alarms of a training run."""

from __future__ import annotations

import signal
from dataclasses import dataclass

#: Signals by which a process ends that crashes in its own code. Any other comes from outside: from
#: the system when memory runs out, from a scheduler, or from a user.
CRASH_SIGNALS = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
)


class UserError(Exception):
    """An error in settings, files or the machine, with a message that explains what to do.

    A command prints it as one line and ends with status 2 (:mod:`sce_video.utils.command`).
    """


class MissingPackageError(UserError, ImportError):
    """An optional package is needed and cannot be imported."""


def message_from_worker(text: str, kind: type[BaseException]) -> str:
    """Return the message of an exception that a loader worker has raised; any other text unchanged.

    A ``DataLoader`` raises a worker's exception again as ``kind(text)``, where the text is the
    worker's traceback, which ends with "package.Kind: message". The constructors of our errors call
    this, so that their messages are the same with and without workers.
    """
    if not text.startswith(f"Caught {kind.__name__} "):
        return text
    return text.rpartition(f"{kind.__name__}: ")[2].strip()


@dataclass(frozen=True)
class Alarm:
    """A warning about a training run, with the numbers that it compares.

    Attributes:
        message: Sentence with advice.
        name: Name of the alarm, as listed in docs/logging.md.
        value: Measured number.
        threshold: Limit that the number has crossed.
        level: ``warning``, or ``error`` if continuing wastes time.
    """

    message: str
    name: str
    value: float
    threshold: float
    level: str = "warning"

    def __str__(self) -> str:
        return self.message

    def row(self) -> dict[str, str | float]:
        """Return the alarm as a line of ``alarms.jsonl``, without the time."""
        numbers = {"value": self.value, "threshold": self.threshold}
        return {"message": self.message, "alarm": self.name, "level": self.level, **numbers}
