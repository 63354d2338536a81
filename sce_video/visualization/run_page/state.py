"""Whether a run is running, finished, interrupted or failed, and which alarms it has raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sce_video.visualization.run_page.record import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    UNKNOWN,
    RunRecord,
)

_LEVELS = {"error": 0, "warning": 1}


class State(NamedTuple):
    """State of a run and a sentence about it."""

    name: str
    text: str


def state_of(record: RunRecord) -> State:
    """The state of a run: from its lock, its history, or where there is none, its last epoch."""
    epoch, planned = record.last.get("epoch"), record.max_epochs
    reached = "before its first logged step"
    if epoch is not None:
        reached = f"in epoch {epoch}" + (f" of {planned}" if planned else "")
    if record.locked:
        return State(RUNNING, f"A training is running, {reached}; this page shows its log so far.")
    end = record.end
    if end:
        message = str(end.get("message") or "").strip()
        text = {
            FINISHED: f"The training has ended after {epoch} epochs.",
            INTERRUPTED: f"The training was interrupted {reached}; --resume continues it.",
            FAILED: f"The training failed {reached}.",
        }
        name = end.get("status")
        if name in text:
            more = f" {message}" if message and name != FINISHED else ""
            return State(name, text[name] + more)
    if record.start:
        return State(
            INTERRUPTED,
            f"The training stopped {reached} without noting an end (killed, or the machine went "
            "down); --resume continues it.",
        )
    if epoch is None:
        return State(UNKNOWN, "Nothing was logged in this folder.")
    if planned and epoch >= planned:
        return State(FINISHED, f"All {planned} epochs are logged.")
    if planned:
        return State(INTERRUPTED, f"The log ends {reached}; --resume continues the training.")
    return State(UNKNOWN, f"The log ends {reached}.")


class AlarmGroup(NamedTuple):
    """All alarms of one kind."""

    name: str
    level: str
    message: str
    """Of the last one."""
    times: int
    first_iter: Any
    last_iter: Any
    cleared: Any = None
    """Iteration at which the condition of the last one ended; None while it lasts."""


def lasting_errors(alarms: Sequence[AlarmGroup]) -> list[str]:
    """What is wrong with a run, a word or two each: its alarms of level error that last."""
    names = [a.name for a in alarms if a.level == "error" and a.cleared is None]
    return ["collapsed" if name == "collapse" else name.replace("_", " ") for name in names]


def grouped_alarms(alarms: Sequence[dict[str, Any]]) -> list[AlarmGroup]:
    """Alarms by kind: those that last first, errors before warnings, else by their first one."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in alarms:
        groups.setdefault(str(row.get("alarm", "alarm")), []).append(row)
    found = []
    for name, rows in groups.items():
        levels = [str(row.get("level", "warning")) for row in rows]
        level = min(levels, key=lambda x: _LEVELS.get(x, 1))
        message = str(rows[-1].get("message") or name)
        first, last = rows[0], rows[-1]
        found.append(
            AlarmGroup(
                name=name,
                level=level if level in _LEVELS else "warning",
                message=message[:1].upper() + message[1:],
                times=len(rows),
                first_iter=first.get("iter"),
                last_iter=last.get("iter"),
                cleared=last.get("cleared"),
            )
        )
    return sorted(found, key=lambda group: (group.cleared is not None, _LEVELS[group.level]))
