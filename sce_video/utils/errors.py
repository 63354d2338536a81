"""Base classes of errors that a user can mend."""

from __future__ import annotations


class UserError(Exception):
    """An error in settings, files or the machine, whose message says what to do."""


class MissingPackageError(UserError, ImportError):
    """An optional package is needed and cannot be imported."""


class NamedWarning(str):
    """A warning as text, with the name of the alarm and the numbers that it compares.

    Args:
        text: The sentence.
        alarm: Name of the alarm (docs/logging.md).
        value: The number that raised it.
        threshold: What it was compared with.
    """

    alarm: str
    value: float
    threshold: float

    def __new__(cls, text: str, alarm: str, value: float, threshold: float) -> NamedWarning:
        warning = super().__new__(cls, text)
        warning.alarm, warning.value, warning.threshold = alarm, value, threshold
        return warning
