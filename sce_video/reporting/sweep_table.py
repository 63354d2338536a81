"""The table of a sweep: measured numbers beside published ones, and what differs in protocol."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sce_video.pages.frames import save_figure
from sce_video.published.paper_results import IMAGE_RESULTS, PAPER_RESULTS
from sce_video.reporting.comparability import compare, is_setting_of
from sce_video.reporting.phrases import describe_benchmark, describe_split, name_of
from sce_video.reporting.result_files import SWEEP, Result
from sce_video.utils.metric_names import NOT_FRACTIONS

#: An obstacle that every own data set has; a cell without a published number need not say so.
_OWN = "states no benchmark"


@dataclass(frozen=True)
class Measured:
    """The numbers of one cell.

    Attributes:
        values: By seed, in percent (effective rank, feature std and loss as they are).
        seeds: Number of seeds that were asked for.
        published: The number to compare with, or None.
        state: Why values are missing: ``not run``, ``failed: ...``; empty if none are.
        deviations: What differs from the protocol of the published number.
    """

    values: tuple[float, ...]
    seeds: int = 1
    published: float | None = None
    state: str = ""
    deviations: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Over seeds; NaN without values."""
        return fmean(self.values) if self.values else math.nan

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds (n - 1); None for one seed."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class SweepTable:
    """A table with a row per point and a column per metric.

    Attributes:
        title: Heading.
        source: Where the published numbers come from.
        columns: Names.
        rows: Name and remark of each point, and its cells by column.
        notes: Sentences that hold for the whole table.
    """

    title: str
    source: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, dict[str, Measured]], ...]
    notes: tuple[str, ...]


def measured_cell(
    evaluations: Sequence[tuple[str, Result | str]], published: float | None
) -> Measured:
    """The numbers of a cell.

    Args:
        evaluations: Of every seed the metric, and the result or why there is none.
        published: The number beside them.
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
    """What differs between a result and the paper's protocol, and from the published number's.

    Args:
        result: The evaluation.
        metric: The metric that is shown.
        published: The number it stands beside; None for own data or settings without one.
    """
    found = compare(result)
    texts = [*found.obstacles, *found.deviations]
    if published is None:
        return [text for text in texts if not text.startswith(_OWN)]
    if found.obstacles:
        return texts
    same = [p for p in (*PAPER_RESULTS, *IMAGE_RESULTS) if is_setting_of(p, result)]
    named = [p for p in same if p.metric == metric]
    split = [p for p in named if p.split == result.split]
    # A known result may stand beside the number of another setting.
    if not same:
        texts.append(f"the paper has no number for: {describe_benchmark(result)}")
    elif not named:
        texts.append(f"{name_of(metric)}, the published number is {name_of(same[0].metric)}")
    elif not split:
        mine, theirs = describe_split(result.split), describe_split(named[0].split)
        texts.append(f"of {mine}, the published number is of {theirs}")
    elif published not in split[0].printed_values:
        texts.append(f"the paper's number for this setting is {split[0].value}, not {published}")
    return texts


def render_sweep(table: SweepTable) -> str:
    """The table as markdown.

    A cell is ``mean ± deviation / published`` and the highest mean of a column is bold. Remarks of
    the cells are numbered below the table; behind them stand the points that failed, and why.
    """
    cells = [cell for _, _, row in table.rows for cell in row.values()]
    remarks = list(dict.fromkeys(text for cell in cells for text in cell.deviations))
    lines = [f"# {table.title}", ""]
    lines += [_line(["", *table.columns]), _line(["---"] + ["---:"] * len(table.columns))]
    best = {}  # the highest mean as it is printed, so that equal numbers look equal
    for name in table.columns:
        means = [round(row[name].mean, 1) for _, _, row in table.rows if row[name].values]
        best[name] = max(means, default=math.nan)
    for name, note, row in table.rows:
        texts = [_cell(row[column], best[column], remarks) for column in table.columns]
        lines.append(_line([f"{name} ({note})" if note else name, *texts]))
    source = f" ({table.source})" if table.source else ""
    legend = (
        (True, "Percent."),
        (any(cell.spread is not None for cell in cells), "Mean and standard deviation over seeds."),
        (any(cell.published is not None for cell in cells), f"Measured / published{source}."),
        (any(cell.values for cell in cells), "Bold: the highest measured of a column."),
        (bool(remarks), "[n]: remark below."),
    )
    lines += ["", " ".join(text for shown, text in legend if shown), ""]
    lines += [*(f"- {note}" for note in table.notes), *([""] if table.notes else ())]
    if remarks:
        lines += ["What differs from the paper's protocol:", ""]
        lines += [*(f"{number}. {text}" for number, text in enumerate(remarks, 1)), ""]
    failed = [
        f"- {name}, {column}: {cell.state.removeprefix('failed: ')}"
        for name, _, row in table.rows
        for column, cell in row.items()
        if cell.state.startswith("failed: ")
    ]
    lines += ["Failed:", "", *failed] if failed else []
    return "\n".join(lines).rstrip() + "\n"


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


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def as_data(table: SweepTable) -> dict[str, Any]:
    """The table as JSON data.

    ``cells`` is a list with an entry for each point and column: ``values`` (by seed, as in
    :class:`Measured`), ``published``, ``state`` and ``deviations``. Columns a point lacks are left
    out.
    """

    def rows() -> Iterator[dict[str, Any]]:
        for name, note, cells in table.rows:
            for column, cell in cells.items():
                if not (cell.values or cell.state or cell.published is not None):
                    continue  # not a column of this point
                yield {
                    "point": name,
                    "note": note,
                    "column": column,
                    "values": list(cell.values),
                    "published": cell.published,
                    "state": cell.state,
                    "deviations": list(cell.deviations),
                }

    top = {"kind": SWEEP, "title": table.title, "source": table.source}
    return {**top, "notes": list(table.notes), "cells": list(rows())}


_MEASURED, _PUBLISHED = "#1f5f99", "#c2571a"


def draw_sweep(table: SweepTable, path: str | Path) -> None:
    """Write a figure with the points on the vertical axis, in the order of the table.

    A dot is the mean over seeds, small dots are the seeds, an upright line is the published number.
    The dot is hollow where the protocol differs from the published number's.
    """
    count = len(table.columns)
    figure = Figure(figsize=(2 + 2.8 * count, 1.4 + 0.32 * len(table.rows)), layout="constrained")
    axes = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for axis, column in zip(axes, table.columns, strict=True):
        _draw_column(axis, table, column)
    axes[0].set_yticks(range(len(table.rows)), [name for name, _, _ in table.rows])
    axes[0].invert_yaxis()  # the first point on top, as in the table
    figure.suptitle(table.title, fontsize=11)
    # One legend for all columns, each kind of mark once.
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    if len(entries) > 1:
        handles, labels = list(entries.values()), list(entries)
        style = {"ncols": 4, "fontsize": 8, "frameon": False}
        figure.legend(handles, labels, loc="outside lower center", **style)
    save_figure(figure, path, dpi=130)


def _draw_column(axis: Axes, table: SweepTable, column: str) -> None:
    cells = [(row, cells[column]) for row, (_, _, cells) in enumerate(table.rows)]
    seeds = [(value, row) for row, cell in cells for value in cell.values]
    means = [(cell.mean, row) for row, cell in cells if cell.values and not cell.deviations]
    marked = [(cell.mean, row) for row, cell in cells if cell.values and cell.deviations]
    published = [(cell.published, row) for row, cell in cells if cell.published is not None]
    several = len(seeds) > len(means) + len(marked)
    blue: dict[str, Any] = {"color": _MEASURED}
    for points, style in (
        (seeds if several else [], blue | dict(s=14, alpha=0.45, linewidths=0, label="one seed")),
        (means, blue | dict(s=42, zorder=3, label="mean over seeds" if several else "measured")),
        (
            marked,
            dict(s=42, facecolors="white", edgecolors=_MEASURED, zorder=3, label="other protocol"),
        ),
        (published, dict(s=170, marker="|", color=_PUBLISHED, linewidths=2.2, label="published")),
    ):
        if points:
            axis.scatter(*zip(*points, strict=True), **style)
    axis.set_title(column, fontsize=9)
    axis.set_xlabel("percent", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.tick_params(axis="y", length=0)
    axis.set_axisbelow(True)
    axis.grid(color="#e6e6e6", linewidth=0.6)
    axis.set_ylim(-0.6, len(table.rows) - 0.4)
    axis.spines[["top", "right", "left"]].set_visible(False)
