"""Plots of a training: logged scalars and the online evaluation of the representation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sce_video.pages.frames import save_figure
from sce_video.utils.files import read_json_lines
from sce_video.utils.run_files import ALARMS, HISTORY, METRICS

_SCALARS = "vis_data/scalars.json"

# Panels: title and curves (logged name, label). Only logged curves are drawn, the last on top.
_PANELS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "objective (Proposition 1)",
        (("infonce", "InfoNCE"), ("ressl", "ReSSL"), ("loss", "SCE")),
    ),
    ("its Ceil term", (("ceil", "Ceil"),)),
    ("similarity of query and key", (("positive_similarity", "cosine"),)),
    ("collapse metric: effective rank of h in a batch", (("h_rank", "effective rank"),)),
)


#: Names in mmengine's scalars.json of what metrics.jsonl calls otherwise.
_OF_MMENGINE = {"time": "step_seconds", "data_time": "data_seconds"}


def read_scalars(work_dir: str | Path, damaged: list[str] | None = None) -> list[dict[str, Any]]:
    """Rows that a training logged, ordered by iteration, over all its resumptions.

    They are the rows ``"kind": "train"`` of ``metrics.jsonl`` (docs/logging.md), or those of
    ``*/vis_data/scalars.json`` where only mmengine's ``LocalVisBackend`` has logged. Values that
    were not finite are NaN. A last line that is not complete yet is left out.

    A start replaces what earlier starts have logged from its first row on: steps that a crash has
    lost, or all of them if there was no checkpoint to resume from.

    ``damaged`` gets the message of every damaged line, which is then left out, and no ValueError.
    A folder without a training log raises FileNotFoundError.
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
                try:
                    step = _logged_step(where, row)
                except ValueError as error:
                    if damaged is None:
                        raise
                    damaged.append(str(error))
                    continue
                # Rows of this iteration or a later one were lost in a crash.
                while rows and rows[-1]["iter"] >= step["iter"]:
                    rows.pop()
                rows.append(step)
    return rows


def read_online_evaluations(
    work_dir: str | Path, damaged: list[str] | None = None
) -> list[dict[str, Any]]:
    """Rows of the online evaluation (``online_evaluation.jsonl``); empty if there are none.

    ``damaged`` is that of :func:`read_scalars`.
    """
    file = Path(work_dir) / "online_evaluation.jsonl"
    if not file.is_file():
        return []
    rows = [_numbers(row) for _, row in read_json_lines(file, damaged)]
    return [row for row in rows if "iter" in row]


def read_validations(
    work_dir: str | Path, damaged: list[str] | None = None, kind: str = "val"
) -> list[dict[str, Any]]:
    """Rows of the validation of a classifier in ``metrics.jsonl``; empty if there are none.

    With ``kind="random"`` those of comparisons with random weights. ``damaged`` gets the messages
    of damaged lines, as in :func:`read_scalars`.
    """
    rows = _rows_of(Path(work_dir, METRICS), damaged)
    return [
        _numbers(row) for row in rows if row.get("kind") == kind and type(row.get("iter")) is int
    ]


def read_alarms(work_dir: str | Path, damaged: list[str] | None = None) -> list[dict[str, Any]]:
    """Alarms that a training has raised (``alarms.jsonl``), in their order; empty without any.

    One whose condition has ended has the iteration of that as ``cleared``. ``damaged`` is that of
    :func:`read_scalars`.
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
    """Starts and ends of a training (``history.jsonl``), in their order; empty without any.

    A start that no end follows is running, or was killed. ``damaged`` is that of
    :func:`read_scalars`.
    """
    return [row for row in _rows_of(Path(work_dir, HISTORY), damaged) if "event" in row]


def _rows_of(file: Path, damaged: list[str] | None) -> list[dict[str, Any]]:
    return [row for _, row in read_json_lines(file, damaged)] if file.is_file() else []


def _logged_step(where: str, row: dict[str, Any]) -> dict[str, float]:
    if type(row["iter"]) is not int or abs(row["iter"]) >= 2**63:
        raise ValueError(f"{where}: iter {row['iter']!r:.40} is not a whole number")
    return _numbers(row)


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    """The values that can be drawn; null stands for those that are not finite."""
    row = {k: math.nan if v is None else v for k, v in row.items()}
    numbers = {k: v for k, v in row.items() if isinstance(v, int | float)}
    return {k: v for k, v in numbers.items() if abs(v) < 2**63 or v != v}


def draw_run(
    scalars: Sequence[dict[str, Any]],
    evaluations: Sequence[dict[str, Any]],
    path: str | Path,
    title: str = "",
) -> None:
    """Write a figure with panels for objective, similarity, collapse metric and kNN accuracy.

    ``scalars`` and ``evaluations`` are those of :func:`read_scalars` and
    :func:`read_online_evaluations`; the extension of ``path`` selects the format.
    """
    from matplotlib.figure import Figure  # imported here: a slow import

    panels = [p for p in _PANELS if any(name in row for name, _ in p[1] for row in scalars)]
    count = len(panels) + bool(evaluations)
    figure = Figure(figsize=(3.6 * count, 3.0), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis, (name, curves) in zip(axes, panels, strict=False):
        for key, label in curves:
            points = [(row["iter"], row[key]) for row in scalars if key in row]
            axis.plot(*zip(*points, strict=True), label=label, linewidth=1.4)
        if len(curves) > 1:
            axis.legend(frameon=False, fontsize=8)
        axis.set_title(name, fontsize=9)
    if evaluations:
        iters = [row["iter"] for row in evaluations if "knn_top1" in row]
        top1 = [100 * row["knn_top1"] for row in evaluations if "knn_top1" in row]
        axes[-1].plot(iters, top1, marker="o", markersize=4, color="tab:green")
        axes[-1].set_title("online evaluation: kNN top-1, %", fontsize=9)
        axes[-1].set_ylim(bottom=0)
    for axis in axes:
        axis.set_xlabel("iteration", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    if title:
        figure.suptitle(title, fontsize=10)
    save_figure(figure, path, dpi=110)
