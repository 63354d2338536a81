"""An alarm goes to the log and to ``alarms.jsonl``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process

from sce_video.engine.alarms.alarm import Alarm
from sce_video.utils.atomic_file import WriteError
from sce_video.utils.printable import printable_utf8
from sce_video.utils.run_files import ALARMS, append_row


def report_alarm(runner: Any, alarm: Alarm, iteration: int, to_log: bool = True) -> None:
    """Write an alarm; rank 0 does, and the call does nothing on others.

    Args:
        runner: The runner.
        alarm: The alarm.
        iteration: Number of iterations done.
        to_log: False if the log has the message already.
    """
    if to_log:
        # A warning in both cases: to errors mmengine's format adds a line of the source.
        runner.logger.warning(printable_utf8(f"alarm {alarm.name}: {alarm.message}"))
    _append(
        runner,
        {
            "alarm": alarm.name,
            "level": alarm.level,
            "iter": iteration,
            "epoch": _epoch(runner, iteration),
            "time": time.time(),
            "value": alarm.value,
            "threshold": alarm.threshold,
            "message": printable_utf8(alarm.message),
        },
    )


def report_cleared(runner: Any, name: str, iteration: int) -> None:
    """Note that the condition of an alarm has ended: ``{"cleared": name, ...}``."""
    runner.logger.info(f"the alarm {name} has ended at iteration {iteration}")
    row = {"cleared": name, "iter": iteration, "epoch": _epoch(runner, iteration)}
    _append(runner, {**row, "time": time.time()})


def _epoch(runner: Any, iteration: int) -> int:
    return runner.epoch + 1 if iteration else 0


def _append(runner: Any, row: dict[str, Any]) -> None:
    if not is_main_process():
        return
    try:
        append_row(Path(runner.work_dir, ALARMS), row)
    except WriteError as error:
        runner.logger.warning(f"{error}; the training goes on")
