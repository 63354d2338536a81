"""Texts of warnings that carry the name and the numbers of an alarm."""

from __future__ import annotations


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
