"""A report as markdown."""

from __future__ import annotations

import html
from collections.abc import Sequence

from sce_video.reporting.descriptions import (
    COLUMNS,
    LEGEND,
    OTHER_COLUMNS,
    TITLE,
    describe_benchmark,
    describe_evaluation,
    describe_metrics,
    describe_papers,
    format_differences,
    format_values,
)
from sce_video.reporting.report import MEASURED, NOT_RUN, Cell, OtherResult, Report


def render_markdown(report: Report) -> str:
    """The report as markdown (tables as on GitHub)."""
    lines = [f"# {TITLE}", "", *report.summary(), "", LEGEND, ""]
    head = (*COLUMNS, "table and row of the paper", "results and protocol")
    lines += [_row(head), _row(["---"] * len(head))]
    for cell in report.cells:
        lines.extend(_row(row) for row in _cell_rows(cell))
    if report.others:
        lines += ["", "## Other results", "", _row(OTHER_COLUMNS)]
        lines.append(_row(["---"] * len(OTHER_COLUMNS)))
        lines.extend(_row(_other_row(other)) for other in report.others)
    if report.skipped:
        lines += ["", "## Files without results", ""]
        lines.extend(f"- {_code(name)}: {_escaped(why)}" for name, why in report.skipped)
    return "\n".join(lines) + "\n"


def _cell_rows(cell: Cell) -> list[list[str]]:
    paper = cell.papers[0]
    note = f" ({paper.note})" if paper.note else ""
    source = _escaped(f"{paper.table}, row: {paper.row}{note}")
    first = [_escaped(text) for text in describe_papers(cell.papers)]
    if not cell.measurements:
        return [[*first, "", "", NOT_RUN, source, ""]]
    rows = []
    for m in cell.measurements:
        value = f"**{format_values(m.values)}**"
        if m.plain:
            value += f"<br>plain {format_values(m.plain)}"
        status = m.status
        if status != MEASURED:
            status += f": {_escaped('; '.join(m.deviations))}"
        file = f"{_code(m.name)}<br>{_escaped(m.how)}" if m.how else _code(m.name)
        difference = format_differences(m.values, cell.papers)
        rows.append([*first, value, difference, status, source, file])
    return rows


def _other_row(other: OtherResult) -> list[str]:
    result = other.result
    return [
        _code(result.name),
        _escaped(describe_benchmark(result)),
        _escaped(", ".join(describe_metrics(result))),
        "<br>".join(_escaped(reason) for reason in other.reasons),
        _escaped(describe_evaluation(result)),
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Text that markdown shows literally, in one line."""
    for character in "\\`*_[]|":
        text = text.replace(character, f"\\{character}")
    return " ".join(html.escape(text, quote=False).split())


def _code(text: str) -> str:
    """Inline code as ``<code>``: in a table, backticks do not protect a bar."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    for character, entity in (("|", "&#124;"), ("`", "&#96;"), ("*", "&#42;"), ("_", "&#95;")):
        escaped = escaped.replace(character, entity)
    return f"<code>{escaped}</code>"
