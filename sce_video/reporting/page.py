"""A report as one HTML page, and writing either form to a file."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path
from typing import Any

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
from sce_video.reporting.report import DEVIATING, MEASURED, NOT_RUN, Cell, OtherResult, Report
from sce_video.utils.atomic_file import write_text
from sce_video.utils.html_template import render_template

_TABLES = {
    "tab:video-sota-action": "Action recognition",
    "tab:video-sota-retrieval": "Video retrieval",
    "tab:video-sota-generalization": "Generalization",
    "tab:video-best": "Ablation on Kinetics-200: best setting",
    "tab:video-baseline": "Ablation on Kinetics-200: baseline and supervised",
}
#: CSS class of a row by its status.
_CLASSES = {MEASURED: "measured", DEVIATING: "deviates", NOT_RUN: "not-run"}


def render_html(report: Report) -> str:
    """The report as one HTML page that loads nothing and runs nothing."""
    values = {
        "title": TITLE,
        "summary": report.summary(),
        "legend": LEGEND,
        "columns": COLUMNS,
        "sections": [
            {"title": _section_title(*key), "rows": [row for c in cells for row in _rows(c)]}
            for key, cells in groupby(report.cells, lambda c: (c.papers[0].table, c.papers[0].row))
        ],
        "other_columns": OTHER_COLUMNS,
        "others": [_other(other) for other in report.others],
        "skipped": report.skipped,
    }
    return render_template("sce_video.reporting", "report.html", values)


def write_page(path: str | os.PathLike[str], text: str) -> None:
    """Write a page as an atomic file; an existing report is replaced.

    Raises:
        ValueError: The file exists and is not a report written by this function.
    """
    path = Path(path)
    if path.exists():
        with open(path, encoding="utf-8", errors="replace") as file:
            if TITLE not in file.read(500):
                raise ValueError(
                    f"{path} exists and is not a report: move it, or choose another name"
                )
    write_text(path, text)


def _section_title(table: str, row: str) -> str:
    return f"{_TABLES.get(table, table)} · {table}, row: {row}"


def _rows(cell: Cell) -> list[dict[str, Any]]:
    """Template values of the rows of a cell: one per measurement, or one that is empty."""
    benchmark, network, source, paper = describe_papers(cell.papers)
    first = {
        "benchmark": benchmark,
        "note": cell.papers[0].note,
        "network": network,
        "source": source,
        "paper": paper,
    }
    if not cell.measurements:
        return [{**first, "kind": _CLASSES[NOT_RUN], "status": NOT_RUN, "measured": None}]
    return [
        {
            **first,
            "kind": _CLASSES[m.status],
            "status": m.status,
            "measured": format_values(m.values),
            "plain": format_values(m.plain),
            "difference": format_differences(m.values, cell.papers),
            "deviations": m.deviations,
            "file": m.name,
            "how": m.how,
        }
        for m in cell.measurements
    ]


def _other(other: OtherResult) -> dict[str, Any]:
    return {
        "file": other.result.name,
        "benchmark": describe_benchmark(other.result),
        "metrics": describe_metrics(other.result),
        "reasons": other.reasons,
        "how": describe_evaluation(other.result),
    }
