"""Base classes of errors that a user can fix, and the alarms of a training run."""

from __future__ import annotations

import signal
from dataclasses import dataclass

#: Signals that end a process because its own code crashed. All other signals come from outside:
#: from the system if memory runs out, from a scheduler, or from a user.
CRASH_SIGNALS = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
)


class UserError(Exception):
    """An error in settings, files or the machine, whose message explains what to do.

    A command prints the message as one line, and exits with status 2.
    """


class MissingPackageError(UserError, ImportError):
    """Error that is raised if an optional package is needed but cannot be imported."""


def message_from_worker(text: str, kind: type[BaseException]) -> str:
    """Extract the message from an exception of a loader worker, and return other texts unchanged.

    A ``DataLoader`` raises a worker's exception again as ``kind(text)``. The text is the worker's
    traceback, which ends with "package.Kind: message". The constructors of our errors call this
    function, so that their messages are the same with and without workers.
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
