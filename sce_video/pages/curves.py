"""Logs of a training run: scalars, online evaluations, validations, alarms, starts and ends."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from sce_video.utils.files import read_json_lines
from sce_video.utils.run_files import ALARMS, EVALUATIONS, HISTORY, METRICS

_SCALARS = "vis_data/scalars.json"


#: Names in mmengine's scalars.json of what metrics.jsonl calls otherwise.
_OF_MMENGINE = {"time": "step_seconds", "data_time": "data_seconds"}


def read_scalars(work_dir: str | Path, damaged: list[str] | None = None) -> list[dict[str, Any]]:
    """Return rows that a training run logged, ordered by iteration, over all its resumptions.

    The rows are the ones with ``"kind": "train"`` in ``metrics.jsonl`` (docs/logging.md). If only
    mmengine's ``LocalVisBackend`` has logged, they are read from ``*/vis_data/scalars.json``.
    Values that were not finite are NaN. An incomplete last line is left out.

    A start replaces everything that earlier starts logged from its first row on. It replaces the
    steps that a crash has lost, or all of them if no checkpoint could be resumed.

    If ``damaged`` is given, it gets the message of every damaged line, which is left out without a
    ValueError. A folder without a training log raises FileNotFoundError.
    """
    metrics = Path(work_dir, METRICS)
    files = [metrics] if metrics.is_file() else sorted(Path(work_dir).glob(f"*/{_SCALARS}"))
    if not files:
        raise FileNotFoundError(f"no training has logged to {work_dir} ({METRICS})")
    rows: list[dict[str, Any]] = []
    for file in files:  # folders are named by start time
        for where, row in read_json_lines(file, damaged):
            if "loss" in row and "iter" in row and row.get("kind", "train") == "train":
                if file != metrics:
                    row = {_OF_MMENGINE.get(name, name): value for name, value in row.items()}
                if type(row["iter"]) is not int or abs(row["iter"]) >= 2**63:
                    problem = f"{where}: iter {row['iter']!r:.40} is not a whole number"
                    if damaged is None:
                        raise ValueError(problem)
                    damaged.append(problem)
                    continue
                step = _numbers(row)
                # Rows of this iteration or a later one were lost in a crash.
                while rows and rows[-1]["iter"] >= step["iter"]:
                    rows.pop()
                rows.append(step)
    return rows


def read_online_evaluations(
    work_dir: str | Path, damaged: list[str] | None = None
) -> list[dict[str, Any]]:
    """Return rows of the online evaluation (``online_evaluation.jsonl``); empty if there are none.

    ``damaged`` works as in :func:`read_scalars`.
    """
    rows = map(_numbers, _rows_of(Path(work_dir, EVALUATIONS), damaged))
    return [row for row in rows if "iter" in row]


def read_validations(
    work_dir: str | Path, damaged: list[str] | None = None, kind: str = "val"
) -> list[dict[str, Any]]:
    """Return rows of the validation of a classifier in ``metrics.jsonl``; empty if there are none.

    ``kind="random"`` reads comparisons with random weights. ``damaged`` works as in
    :func:`read_scalars`.
    """
    rows = _rows_of(Path(work_dir, METRICS), damaged)
    return [
        _numbers(row) for row in rows if row.get("kind") == kind and type(row.get("iter")) is int
    ]


def read_alarms(work_dir: str | Path, damaged: list[str] | None = None) -> list[dict[str, Any]]:
    """Read the alarms of a training run (``alarms.jsonl``) in their order; empty without any.

    An alarm whose condition has ended contains the iteration of the end as ``cleared``. ``damaged``
    works as in :func:`read_scalars`.
    """
    alarms: list[dict[str, Any]] = []
    for row in _rows_of(Path(work_dir, ALARMS), damaged):
        if "alarm" in row:
            alarms.append(dict(row))
        for alarm in alarms[::-1]:
            if "alarm" not in row and alarm["alarm"] == row.get("cleared"):
                alarm["cleared"] = row.get("iter")
                break
    return alarms


def read_history(work_dir: str | Path, damaged: list[str] | None = None) -> list[dict[str, Any]]:
    """Read starts and ends of a training run (``history.jsonl``) in order; empty without any.

    A start without an end belongs to a run that is running or was killed. ``damaged`` works as in
    :func:`read_scalars`.
    """
    return [row for row in _rows_of(Path(work_dir, HISTORY), damaged) if "event" in row]


def _rows_of(file: Path, damaged: list[str] | None) -> list[dict[str, Any]]:
    return [row for _, row in read_json_lines(file, damaged)] if file.is_file() else []


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    """Return the values that can be drawn. Null means that a value is not finite."""
    row = {k: math.nan if v is None else v for k, v in row.items()}
    numbers = {k: v for k, v in row.items() if isinstance(v, int | float)}
    return {k: v for k, v in numbers.items() if abs(v) < 2**63 or v != v}
