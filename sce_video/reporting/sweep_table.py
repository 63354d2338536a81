"""The table of a sweep: measured numbers beside published ones, and what differs in protocol."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from sce_video.reporting.comparability import compare
from sce_video.reporting.result_files import Result

#: An obstacle that every own data set has; a table without published numbers need not say so.
_OWN = "states no benchmark"


@dataclass(frozen=True)
class Measured:
    """The numbers of one cell.

    Attributes:
        values: By seed, in percent (the effective rank and others beyond 1 as they are).
        published: The number to compare with, or None.
        state: Why values are missing: ``not run``, ``failed: ...``; empty if none are.
        marks: Numbers of the remarks below the table.
    """

    values: tuple[float, ...]
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
    return value if name in ("effective_rank", "feature_std") else 100 * value


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


def deviations_of(result: Result) -> list[str]:
    """What differs between a result and the protocol of the paper; nothing for own data."""
    found = compare(result)
    return [text for text in (*found.obstacles, *found.deviations) if not text.startswith(_OWN)]


def render_sweep(table: SweepTable) -> str:
    """The table as markdown."""
    lines = [f"# {table.title}", ""]
    head = ["", *table.columns]
    lines += [_line(head), _line(["---"] + ["---:"] * len(table.columns))]
    best = {name: _best(table, name) for name in table.columns}
    for name, note, cells in table.rows:
        texts = [_cell(cells[column], best[column]) for column in table.columns]
        lines.append(_line([f"{name} ({note})" if note else name, *texts]))
    lines += ["", *_legend(table)]
    lines += [f"{number}. {text}" for number, text in enumerate(table.remarks, 1)]
    return "\n".join(lines).rstrip() + "\n"


def _legend(table: SweepTable) -> list[str]:
    cells = [cell for _, _, row in table.rows for cell in row.values()]
    words = ["Percent."]
    if any(cell.spread is not None for cell in cells):
        words.append("Mean and standard deviation over seeds.")
    if any(cell.published is not None for cell in cells):
        words.append(f"Measured / published ({table.source}).")
    words.append("Bold: the highest of a column.")
    lines = [" ".join(words), "", *(f"- {note}" for note in table.notes)]
    if table.notes:
        lines.append("")
    if table.remarks:
        lines += ["What differs from the protocol of the published numbers:", ""]
    return lines


def _best(table: SweepTable, column: str) -> float:
    means = [row[column].mean for _, _, row in table.rows if row[column].values]
    return max(means, default=math.nan)


def _cell(cell: Measured, best: float) -> str:
    text = cell.state or "-"
    if cell.values:
        text = f"{cell.mean:.1f}"
        if cell.mean == best:
            text = f"**{text}**"
        if cell.spread is not None:
            text += f" ± {cell.spread:.1f}"
        if cell.state:
            text += f" ({len(cell.values)} seeds; {cell.state})"
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
        results = [(metric, read(step)) for metric, step in evaluations]
        values, states, found = [], [], []
        for metric, result in results:
            value = result.metric(metric) if isinstance(result, Result) else None
            if isinstance(result, str) or value is None:
                states.append(result if isinstance(result, str) else f"has no {metric}")
                continue
            values.append(percent(metric, value))
            found += deviations_of(result)
        marks = remarks.numbers(list(dict.fromkeys(found)))
        state = "; ".join(dict.fromkeys(states))
        cells[place] = Measured(tuple(values), published.get(place), state, marks)
    return cells, tuple(remarks.texts)


def as_data(table: SweepTable) -> dict[str, Any]:
    """The table as JSON data."""

    def rows() -> Iterator[dict[str, Any]]:
        for name, note, cells in table.rows:
            for column, cell in cells.items():
                entry = {"point": name, "column": column, "values": list(cell.values)}
                entry |= {"published": cell.published, "state": cell.state, "note": note}
                yield entry | {"deviations": [table.remarks[mark - 1] for mark in cell.marks]}

    return {"title": table.title, "source": table.source, "cells": list(rows())}
