"""What an alarm is, and detectors that raise one when a condition begins."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Row = Mapping[str, Any]
# Logged rows without the condition after which an alarm has ended, so that a value that hovers
# about its threshold is not reported at every row.
_ROWS_TO_CLEAR = 10


@dataclass(frozen=True)
class Alarm:
    """Something that a user should know of a training.

    Attributes:
        name: One word, the same for all alarms of a kind (docs/logging.md).
        message: A sentence with the numbers and what to do.
        value: The number that raised it, None if there is none.
        threshold: What it was compared with.
        level: ``error`` where going on is a waste, else ``warning``.
    """

    name: str
    message: str
    value: float | None = None
    threshold: float | None = None
    level: Literal["warning", "error"] = "warning"


class Detector:
    """Raises an alarm when a condition begins, and again only after it has ended.

    A detector is a function of the rows that it was given: a resumed training gives it those of
    ``metrics.jsonl`` again and has the state of the interrupted one.
    """

    name: str

    def __init__(self) -> None:
        self.active = False
        self._rows_without = 0

    @abstractmethod
    def condition(self, row: Row) -> Alarm | None:
        """The alarm while its condition holds, else None; called once for every row of training."""

    def update(self, row: Row) -> Alarm | None:
        """The alarm if its condition begins with this row.

        Afterwards ``active`` tells whether it goes on; ten rows without the condition end it.
        """
        alarm = self.condition(row)
        if alarm is not None:
            begins = not self.active
            self.active, self._rows_without = True, 0
            return alarm if begins else None
        self._rows_without += 1
        self.active = self.active and self._rows_without < _ROWS_TO_CLEAR
        return None
