"""Base classes of errors that a user can fix, and warnings with a name."""

from __future__ import annotations

import signal

#: Signals that end a process because of a crash in its own code. All other signals come from
#: outside: from the system if memory runs out, from a scheduler, or from a user.
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


class NamedWarning(str):
    """An alarm: a sentence with advice, the name of the alarm, and the numbers that it compares.

    docs/logging.md lists the names. ``level`` is ``error`` if continuing is a waste of time.
    """

    alarm: str
    value: float
    threshold: float
    level: str

    def __new__(
        cls, text: str, alarm: str, value: float, threshold: float, level: str = "warning"
    ) -> NamedWarning:
        warning = super().__new__(cls, text)
        warning.alarm, warning.level = alarm, level
        warning.value, warning.threshold = value, threshold
        return warning

    def row(self) -> dict[str, str | float]:
        """Return the alarm as a line of ``alarms.jsonl``, without the time."""
        names = ("alarm", "level", "value", "threshold")
        return {"message": str(self), **{name: getattr(self, name) for name in names}}
