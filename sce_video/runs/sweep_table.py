"""Table of a sweep: measured numbers next to published ones, and differences in protocol."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sce_video.pages.frames import save_figure
from sce_video.published.paper_results import IMAGE_RESULTS, PAPER_RESULTS
from sce_video.reporting.comparability import compare_with_paper
from sce_video.reporting.phrases import describe_benchmark, describe_split, name_of
from sce_video.reporting.result_files import SWEEP, Result, collect_results
from sce_video.runs.sweep_plan import Point, Step, Sweep, SweepCell, step_state
from sce_video.utils.files import write_json, write_text
from sce_video.utils.metric_names import NOT_FRACTIONS
from sce_video.utils.records import at

#: Beginning of a difference that is reported for every user dataset. Cells without a published
#: number omit it.
_OWN = "states no benchmark"


@dataclass(frozen=True)
class Measured:
    """Numbers in one cell of the table.

    Attributes:
        values: Measured value for each seed, in percent except for effective rank, feature std and
            loss.
        seeds: Number of requested seeds.
        published: Published number to compare with.
        state: Reason for missing values: ``not run``, ``failed: ...``; empty if none is missing.
        deviations: Deviations from the protocol of the published number.
    """

    values: tuple[float, ...]
    seeds: int = 1
    published: float | None = None
    state: str = ""
    deviations: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Mean over seeds; NaN if there are no values."""
        return fmean(self.values) if self.values else math.nan

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds (n - 1); None for one seed."""
        return stdev(self.values) if len(self.values) > 1 else None


#: Points of a sweep, each with its cells by column name
Rows = Sequence[tuple[Point, dict[str, Measured]]]


def write_tables(sweeps: Sequence[Sweep], cells: Sequence[SweepCell], out: Path) -> list[str]:
    """Write ``<sweep>.md``, ``.json`` and ``.png`` for every sweep, and return each Markdown text.

    All files are written atomically, because shards of a sweep may write them at the same time.
    """
    texts = []
    for sweep in sweeps:
        rows = []
        for point in sweep.points:
            wanted = [c for c in cells if (c.sweep, c.point) == (sweep.name, point.name)]
            row = {}
            for column in (column.name for column in sweep.columns):
                found = [(c.metric, _result(out, c.step)) for c in wanted if c.column == column]
                row[column] = measured_cell(found, at(point.published, column) if found else None)
            rows.append((point, row))
        texts.append(render_sweep(sweep, rows))
        write_text(out / f"{sweep.name}.md", texts[-1])
        write_json(out / f"{sweep.name}.json", as_data(sweep, rows))
        draw_sweep(sweep, rows, out / f"{sweep.name}.png")
    return texts


def _result(out: Path, step: Step) -> Result | str:
    """Return the result of an evaluation, or the reason for its absence."""
    state = step_state(out, step)
    if state == "done":
        found = collect_results([out / step.folder / step.result])
        return found.results[0] if found.results else f"failed: {found.skipped[0][1]}"
    before = "" if step.before is None else step_state(out, step.before)
    return before if before.startswith("failed") else state


def measured_cell(
    evaluations: Sequence[tuple[str, Result | str]], published: float | None
) -> Measured:
    """Combine the results of all seeds into a cell.

    Args:
        evaluations: Metric of each seed, with the result or the reason for its absence.
        published: Published number to show next to the results; None if there is none.
    """
    values, states, deviations = [], [], []
    for metric, result in evaluations:
        value = result.metric(metric) if isinstance(result, Result) else None
        if isinstance(result, str) or value is None:
            states.append(result if isinstance(result, str) else f"has no {metric}")
            continue
        values.append(value if metric in NOT_FRACTIONS else 100 * value)
        deviations += deviations_of(result, metric, published)
    state = next((s for s in states if s.startswith("failed")), (states or [""])[0])
    unique = tuple(dict.fromkeys(deviations))
    return Measured(tuple(values), len(evaluations), published, state, unique)


def deviations_of(result: Result, metric: str, published: float | None) -> list[str]:
    """List how a result differs from the paper's protocols and from a published number's setting.

    Args:
        result: Result of the evaluation.
        metric: Name of the metric that is shown.
        published: Published number next to the result; None for a user's own data, or for settings
            without a published number.
    """
    found = compare_with_paper(result)
    texts = [*found.obstacles, *found.deviations]
    if published is None:
        return [text for text in texts if not text.startswith(_OWN)]
    if found.obstacles:
        return texts
    same = [p for p in (*PAPER_RESULTS, *IMAGE_RESULTS) if p.is_of(result.benchmark)]
    named = [p for p in same if p.metric == metric]
    split = [p for p in named if p.split == result.split]
    # A result may be shown next to a number that was published for another setting.
    if not same:
        texts.append(f"the paper has no number for: {describe_benchmark(result)}")
    elif not named:
        texts.append(f"{name_of(metric)}, the published number is {name_of(same[0].metric)}")
    elif not split:
        mine, theirs = describe_split(result.split), describe_split(named[0].split)
        texts.append(f"of {mine}, the published number is of {theirs}")
    elif published not in (split[0].value, *(value for _, value in split[0].also)):
        texts.append(f"the paper's number for this setting is {split[0].value}, not {published}")
    return texts


def render_sweep(sweep: Sweep, rows: Rows) -> str:
    """Format the table as Markdown.

    A cell is ``mean ± deviation / published``, and the highest mean in a column is bold. Numbered
    notes on the cells follow below the table, and then the failed points with reasons.
    """
    columns = [column.name for column in sweep.columns]
    cells = [cell for _, row in rows for cell in row.values()]
    remarks = list(dict.fromkeys(text for cell in cells for text in cell.deviations))
    lines = [["", *columns], ["---"] + ["---:"] * len(columns)]
    best = {}  # compare rounded means, so that all equal numbers are bold
    for name in columns:
        means = [round(row[name].mean, 1) for _, row in rows if row[name].values]
        best[name] = max(means, default=math.nan)
    for point, row in rows:
        texts = [_cell(row[name], best[name], remarks) for name in columns]
        lines.append([f"{point.name} ({point.note})" if point.note else point.name, *texts])
    text = [f"# {sweep.title}", ""]
    text += ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    source = f" ({sweep.source})" if sweep.source else ""
    legend = (
        (True, "Percent."),
        (any(cell.spread is not None for cell in cells), "Mean and standard deviation over seeds."),
        (any(cell.published is not None for cell in cells), f"Measured / published{source}."),
        (any(cell.values for cell in cells), "Bold: the highest measured of a column."),
        (bool(remarks), "[n]: remark below."),
    )
    text += ["", " ".join(words for shown, words in legend if shown), ""]
    text += [*(f"- {note}" for note in sweep.notes), *([""] if sweep.notes else ())]
    if remarks:
        text += ["What differs from the paper's protocol:", ""]
        text += [*(f"{number}. {remark}" for number, remark in enumerate(remarks, 1)), ""]
    failed = [
        f"- {point.name}, {column}: {cell.state.removeprefix('failed: ')}"
        for point, row in rows
        for column, cell in row.items()
        if cell.state.startswith("failed: ")
    ]
    text += ["Failed:", "", *failed] if failed else []
    return "\n".join(text).rstrip() + "\n"


def _cell(cell: Measured, best: float, remarks: Sequence[str]) -> str:
    state = cell.state.partition(":")[0]
    text = state or "-"
    if cell.values:
        text = f"{cell.mean:.1f}"
        if round(cell.mean, 1) == best:
            text = f"**{text}**"
        if cell.spread is not None:
            text += f" ± {cell.spread:.1f}"
        if state:
            text += f" ({len(cell.values)} of {cell.seeds} seeds; {state})"
    if cell.published is not None:
        text += f" / {cell.published:.1f}"
    if cell.deviations:
        numbers = sorted(remarks.index(text) + 1 for text in cell.deviations)
        text += f" [{', '.join(map(str, numbers))}]"
    return text


def as_data(sweep: Sweep, rows: Rows) -> dict[str, Any]:
    """Convert the table to JSON data.

    The list ``cells`` has an entry with the fields of :class:`Measured` for each point and column.
    Columns that a point does not have are left out.
    """
    cells = [
        {
            **{"point": point.name, "note": point.note, "column": column},
            "values": list(cell.values),
            "published": cell.published,
            "state": cell.state,
            "deviations": list(cell.deviations),
        }
        for point, row in rows
        for column, cell in row.items()
        if cell.values or cell.state or cell.published is not None
    ]
    top = {"kind": SWEEP, "title": sweep.title, "source": sweep.source}
    return {**top, "notes": list(sweep.notes), "cells": cells}


def draw_sweep(sweep: Sweep, rows: Rows, path: str | Path) -> None:
    """Write a figure with the points on the vertical axis, in the order of the table.

    Large dots are means over seeds, small dots are single seeds, and vertical lines are published
    numbers. A large dot is hollow if the protocol differs from the published number's.
    """
    count = len(sweep.columns)
    figure = Figure(figsize=(2 + 2.8 * count, 1.4 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for axis, column in zip(axes, sweep.columns, strict=True):
        _draw_column(axis, column.name, [row[column.name] for _, row in rows])
    axes[0].set_yticks(range(len(rows)), [point.name for point, _ in rows])
    axes[0].set_ylim(len(rows) - 0.4, -0.6)  # put the first point on top, as in the table
    figure.suptitle(sweep.title, fontsize=11)
    # All columns share one legend, which lists each kind of mark once.
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    if len(entries) > 1:
        style = {"ncols": 4, "fontsize": 8, "frameon": False}
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", **style)
    save_figure(figure, path, dpi=130)


def _draw_column(axis: Axes, title: str, cells: Sequence[Measured]) -> None:
    blue, orange = "#1f5f99", "#c2571a"
    several = any(len(cell.values) > 1 for cell in cells)
    measured = "mean over seeds" if several else "measured"
    styles: dict[str, dict[str, Any]] = {
        "one seed": dict(s=14, color=blue, alpha=0.45, linewidths=0),
        measured: dict(s=42, color=blue, zorder=3),
        "other protocol": dict(s=42, facecolors="white", edgecolors=blue, zorder=3),
        "published": dict(s=170, marker="|", color=orange, linewidths=2.2),
    }
    for row, cell in enumerate(cells):
        marks = [("one seed", value) for value in cell.values if several]
        mean = "other protocol" if cell.deviations else measured
        marks += [(mean, cell.mean)] if cell.values else []
        marks += [] if cell.published is None else [("published", cell.published)]
        for label, value in marks:
            axis.scatter(value, row, label=label, **styles[label])
    axis.set_title(title, fontsize=9)
    axis.set_xlabel("percent", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.tick_params(axis="y", length=0)
    axis.set_axisbelow(True)
    axis.grid(color="#e6e6e6", linewidth=0.6)
    axis.spines[["top", "right", "left"]].set_visible(False)
