"""The table of a sweep: measured numbers beside published ones, and what differs in protocol."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        marks: Numbers of the remarks below the table.
    """

    values: tuple[float, ...]
    seeds: int = 1
    published: float | None = None
    state: str = ""
    marks: tuple[int, ...] = ()

    @property
    def mean(self) -> float:
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
        remarks: What differs from the protocol of the published numbers; cells name them by number.
        notes: Sentences that hold for the whole table.
    """

    title: str
    source: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, dict[str, Measured]], ...]
    remarks: tuple[str, ...]
    notes: tuple[str, ...]


def percent(name: str, value: float) -> float:
    """A fraction in percent; metrics that are no fractions as they are."""
    return value if name in NOT_FRACTIONS else 100 * value


class Remarks:
    """Numbers remarks in the order in which they appear."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def numbers(self, texts: Sequence[str]) -> tuple[int, ...]:
        """Numbers of the given remarks, from 1."""
        for text in texts:
            if text not in self.texts:
                self.texts.append(text)
        return tuple(sorted(self.texts.index(text) + 1 for text in texts))


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
    return [*texts, *_other_number(result, metric, published)]


def _other_number(result: Result, metric: str, published: float) -> Iterator[str]:
    """Why a known result stands beside another number than that of its setting."""
    same = [p for p in (*PAPER_RESULTS, *IMAGE_RESULTS) if is_setting_of(p, result)]
    named = [p for p in same if p.metric == metric]
    split = [p for p in named if p.split == result.split]
    if not same:
        yield f"the paper has no number for: {describe_benchmark(result)}"
    elif not named:
        yield f"{name_of(metric)}, the published number is {name_of(same[0].metric)}"
    elif not split:
        mine, theirs = describe_split(result.split), describe_split(named[0].split)
        yield f"of {mine}, the published number is of {theirs}"
    elif published not in split[0].printed_values:
        yield f"the paper's number for this setting is {split[0].value}, not {published}"


def render_sweep(table: SweepTable) -> str:
    """The table as markdown."""
    lines = [f"# {table.title}", ""]
    lines += [_line(["", *table.columns]), _line(["---"] + ["---:"] * len(table.columns))]
    best = {name: _best(table, name) for name in table.columns}
    for name, note, cells in table.rows:
        texts = [_cell(cells[column], best[column]) for column in table.columns]
        lines.append(_line([f"{name} ({note})" if note else name, *texts]))
    lines += ["", _legend(table), "", *(f"- {note}" for note in table.notes)]
    if table.notes:
        lines.append("")
    if table.remarks:
        lines += ["What differs from the paper's protocol:", ""]
        lines += [*(f"{number}. {text}" for number, text in enumerate(table.remarks, 1)), ""]
    failed = list(_failures(table))
    if failed:
        lines += ["Failed:", "", *failed]
    return "\n".join(lines).rstrip() + "\n"


def _legend(table: SweepTable) -> str:
    """How to read the cells, in one line."""
    cells = [cell for _, _, row in table.rows for cell in row.values()]
    words = ["Percent."]
    if any(cell.spread is not None for cell in cells):
        words.append("Mean and standard deviation over seeds.")
    if any(cell.published is not None for cell in cells):
        source = f" ({table.source})" if table.source else ""
        words.append(f"Measured / published{source}.")
    if any(cell.values for cell in cells):
        words.append("Bold: the highest measured of a column.")
    if table.remarks:
        words.append("[n]: remark below.")
    return " ".join(words)


def _failures(table: SweepTable) -> Iterator[str]:
    for name, _, cells in table.rows:
        for column, cell in cells.items():
            if cell.state.startswith("failed: "):
                yield f"- {name}, {column}: {cell.state.removeprefix('failed: ')}"


def _best(table: SweepTable, column: str) -> float:
    """The highest mean as it is printed, so that equal numbers look equal."""
    means = [round(row[column].mean, 1) for _, _, row in table.rows if row[column].values]
    return max(means, default=math.nan)


def _cell(cell: Measured, best: float) -> str:
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
    if cell.marks:
        text += f" [{', '.join(map(str, cell.marks))}]"
    return text


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def collect_cells(
    wanted: Mapping[tuple[str, str], Sequence[tuple[str, Any]]],
    published: Mapping[tuple[str, str], float],
    read: Callable[[Any], Result | str],
) -> tuple[dict[tuple[str, str], Measured], tuple[str, ...]]:
    """The numbers of a table's cells.

    Args:
        wanted: Metric and evaluation of every seed, by (point, column).
        published: Numbers by (point, column).
        read: The result of an evaluation, or why there is none.

    Returns:
        The cells, and the remarks that their marks number.
    """
    remarks = Remarks()
    cells = {}
    for place, evaluations in wanted.items():
        values, states, found = [], [], []
        for metric, step in evaluations:
            result = read(step)
            value = result.metric(metric) if isinstance(result, Result) else None
            if isinstance(result, str) or value is None:
                states.append(result if isinstance(result, str) else f"has no {metric}")
                continue
            values.append(percent(metric, value))
            found += deviations_of(result, metric, published.get(place))
        marks = remarks.numbers(list(dict.fromkeys(found)))
        state = next((s for s in states if s.startswith("failed")), (states or [""])[0])
        cells[place] = Measured(tuple(values), len(evaluations), published.get(place), state, marks)
    return cells, tuple(remarks.texts)


def as_data(table: SweepTable) -> dict[str, Any]:
    """The table as JSON data."""

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
                    "deviations": [table.remarks[mark - 1] for mark in cell.marks],
                }

    return {
        "kind": SWEEP,
        "title": table.title,
        "source": table.source,
        "notes": list(table.notes),
        "cells": list(rows()),
    }


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
    axes[0].invert_yaxis()
    figure.suptitle(table.title, fontsize=11)
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
    means = [(cell.mean, row) for row, cell in cells if cell.values and not cell.marks]
    marked = [(cell.mean, row) for row, cell in cells if cell.values and cell.marks]
    published = [(cell.published, row) for row, cell in cells if cell.published is not None]
    several = len(seeds) > len(means) + len(marked)
    if several:
        x, y = zip(*seeds, strict=True)
        axis.scatter(x, y, s=14, color=_MEASURED, alpha=0.45, linewidths=0, label="one seed")
    if means:
        x, y = zip(*means, strict=True)
        label = "mean over seeds" if several else "measured"
        axis.scatter(x, y, s=42, color=_MEASURED, zorder=3, label=label)
    if marked:
        x, y = zip(*marked, strict=True)
        axis.scatter(
            *(x, y, 42), facecolors="white", edgecolors=_MEASURED, zorder=3, label="other protocol"
        )
    if published:
        x, y = zip(*published, strict=True)
        axis.scatter(x, y, s=170, marker="|", color=_PUBLISHED, linewidths=2.2, label="published")
    axis.set_title(column, fontsize=9)
    axis.set_xlabel("percent", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.tick_params(axis="y", length=0)
    axis.set_axisbelow(True)
    axis.grid(color="#e6e6e6", linewidth=0.6)
    axis.set_ylim(-0.6, len(table.rows) - 0.4)
    axis.spines[["top", "right", "left"]].set_visible(False)
