"""A report as markdown."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import groupby

from sce_video.reporting.own_results import OwnResult, TestSetResults
from sce_video.reporting.paper_cells import Report
from sce_video.reporting.phrases import (
    ABLATION_SETS,
    ABLATIONS,
    COLUMNS,
    IMAGES,
    LEGEND,
    MEASURED,
    NOT_RUN,
    TITLE,
    AblationRow,
    Cell,
    MissingTable,
    describe_benchmark,
    describe_evaluation,
    describe_missing,
    describe_papers,
    format_differences,
    format_signed,
    format_values,
    format_with_interval,
    name_of,
    table_title,
)


def render_markdown(report: Report) -> str:
    """The report as markdown (tables as on GitHub): what was measured first, then what was not."""
    lines = [f"# {TITLE}", "", *report.summary(), "", LEGEND, ""]
    measured = [cell for cell in report.cells if cell.measurements]
    if measured:
        head = (*COLUMNS, "table and row of the paper", "results and protocol")
        lines += ["## Beside the paper", "", *_table(head, [r for c in measured for r in _rows(c)])]
    if any(cell.measurements for cell in report.images):
        lines += ["## Beside the paper: images", "", IMAGES, "", *_measured_images(report)]
    if report.others:
        lines += ["## Own results", ""]
        for group in report.own():
            lines += _group_lines(group)
    lines += _not_run(report)
    if report.skipped:
        lines += ["## Files without results", ""]
        lines.extend(f"- {_code(name)}: {_escaped(why)}" for name, why in report.skipped)
    return "\n".join(lines).rstrip() + "\n"


def _measured_images(report: Report) -> list[str]:
    """A table for each table of the paper that has a result."""
    lines = []
    cells = [cell for cell in report.images if cell.measurements]
    for table, members in groupby(cells, lambda cell: cell.papers[0].table):
        head = (*COLUMNS, "table and row of the paper", "results and protocol")
        rows = [row for cell in members for row in _rows(cell)]
        lines += [f"### {_escaped(table_title(table))}", "", *_table(head, rows)]
    return lines


def _not_run(report: Report) -> list[str]:
    """Numbers without a result; a half of the paper without any result is one line."""
    missing, ablations = report.missing() if report.with_videos else ([], [])
    images = report.missing_images() if report.with_images else []
    lines = ["## Not run", ""] if missing or ablations or images else []
    if missing:
        columns = (*COLUMNS[:4], "status", "table and row of the paper")
        lines += _table(columns, [_missing_row(cell) for cell in missing])
    if ablations:
        sets = (name_of(name) for name in ABLATION_SETS)
        heads = ("pretraining", *sets, "table and row of the paper")
        lines += [ABLATIONS, "", *_table(heads, [_ablation_row(row) for row in ablations])]
    if images:
        lines += _missing_images(images)
    for what, cells, listed in (
        ("videos", report.cells, report.with_videos),
        ("images", report.images, report.with_images),
    ):
        if cells and not listed:
            lines += [f"Of {len(cells)} numbers on {what} none was measured.", ""]
    return lines


def _missing_images(tables: Sequence[MissingTable]) -> list[str]:
    """A row for each data set with a result in a table; all other numbers are counted."""
    lines = ["### Images", ""]
    rows = [
        [_escaped(f"{table_title(table)} ({table})"), _escaped(dataset), _escaped(numbers)]
        for table, dataset, numbers in describe_missing(tables)
    ]
    lines += _table(("table", "data set", "numbers of the paper"), rows) if rows else []
    folded = [table for table in tables if table.counts]
    if folded:
        lines += ["Numbers of other data sets and tables:", ""]
    for table in folded:
        sets = ", ".join(
            f"{name_of(name)} ({count})" if count > 1 else name_of(name)
            for name, count in table.counts.items()
        )
        title, total = table_title(table.table), sum(table.counts.values())
        numbers = f"{total} numbers" if total > 1 else "1 number"
        lines.append(f"- {_escaped(f'{title} ({table.table}): {numbers}: {sets}')}")
    return [*lines, *([""] if folded else ())]


def _rows(cell: Cell) -> list[list[str]]:
    rows = []
    for m in cell.measurements:
        value = f"**{format_values(m.values, cell.papers)}**"
        if m.plain:
            value += f"<br>plain {format_values(m.plain, cell.papers)}"
        status = m.status
        if status != MEASURED:
            status += f": {_escaped('; '.join(m.deviations))}"
        if m.notes:
            status += f" ({_escaped('; '.join(m.notes))})"
        file = f"{_code(m.name)}<br>{_escaped(m.how)}" if m.how else _code(m.name)
        difference = format_differences(m.values, cell.papers)
        rows.append([*_paper(cell), value, difference, status, _source(cell), file])
    return rows


def _missing_row(cell: Cell) -> list[str]:
    return [*_paper(cell), NOT_RUN, _source(cell)]


def _ablation_row(row: AblationRow) -> list[str]:
    values = [f"{row.values[s]:.1f}" if s in row.values else "" for s in ABLATION_SETS]
    source = f"{row.table}, row: {row.row}"
    return [_escaped(name_of(row.pretraining)), *values, _escaped(source)]


def _paper(cell: Cell) -> list[str]:
    return [_escaped(text) for text in describe_papers(cell.papers)]


def _source(cell: Cell) -> str:
    paper = cell.papers[0]
    note = f" ({paper.remark})" if paper.remark else ""
    return _escaped(f"{paper.table}, row: {paper.row}{note}")


def _group_lines(group: TestSetResults) -> list[str]:
    """A heading and a table with a row per result, random weights first."""
    head = ("weights", *(_escaped(name_of(name)) for name in group.metrics), "results and protocol")
    details = [_escaped(group.details), ""] if group.details else []
    rows = [_own_row(own, group.metrics) for own in group.results]
    return [f"### {_escaped(group.title)}", "", *details, *_table(head, rows)]


def _own_row(own: OwnResult, metrics: Sequence[str]) -> list[str]:
    cells = []
    for name in metrics:
        gain, shown = own.gain(name), format_with_interval(name, own.result)
        cells.append(shown if gain is None else f"{shown} ({format_signed(gain)})")
    notes = [_code(own.result.name), _escaped(describe_evaluation(own.result))]
    if own.reasons:
        claim = _escaped(describe_benchmark(own.result))
        notes.append(f"not comparable with the paper ({claim}): {_escaped('; '.join(own.reasons))}")
    return [_escaped(own.weights), *cells, "<br>".join(note for note in notes if note)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *(_row(row) for row in rows), ""]


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
