"""A report as one HTML page, and writing either form to a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sce_video.reporting.descriptions import (
    ABLATIONS,
    LEGEND,
    TITLE,
    describe_benchmark,
    describe_evaluation,
    describe_papers,
    format_differences,
    format_metric,
    format_signed,
    format_values,
    name_of,
)
from sce_video.reporting.own_results import OwnResult, TestSetResults
from sce_video.reporting.report import (
    ABLATION_SETS,
    DEVIATING,
    MEASURED,
    NOT_RUN,
    AblationRow,
    Cell,
    Measurement,
    Report,
)
from sce_video.utils.atomic_file import write_text
from sce_video.utils.html_template import render_template

_TABLES = {
    "tab:video-sota-action": "Action recognition",
    "tab:video-sota-retrieval": "Video retrieval",
    "tab:video-sota-generalization": "Generalization",
    "tab:video-baseline": "Ablation on Kinetics-200: baseline and supervised",
    "tab:video-lambda-vary": "Ablation on Kinetics-200: lambda",
    "tab:video-temp": "Ablation on Kinetics-200: tau_m",
    "tab:video-color": "Ablation on Kinetics-200: colour strength",
    "tab:video-time": "Ablation on Kinetics-200: jitter, reverse, diff",
    "tab:video-best": "Ablation on Kinetics-200: best setting",
}
#: CSS class of a row by its status.
_CLASSES = {MEASURED: "measured", DEVIATING: "deviates", NOT_RUN: "not-run"}


def render_html(report: Report) -> str:
    """The report as one HTML page that loads nothing and runs nothing."""
    counts = report.status_counts()
    measured = [cell for cell in report.cells if cell.measurements]
    missing, ablations = report.missing()
    values = {
        "title": TITLE,
        "tiles": (
            ("measured", counts[MEASURED], "cells of the paper measured"),
            ("deviates", counts[DEVIATING], "measured with deviations only"),
            ("own", len(report.others), "own results, not comparable with the paper"),
            ("not-run", counts[NOT_RUN], "cells of the paper not run"),
        ),
        "notes": report.notes(),
        "legend": LEGEND,
        "measured": [
            {"title": title, "rows": [row for cell in cells for row in _rows(cell)]}
            for title, cells in _sections(measured)
        ],
        "groups": [_group(group) for group in report.own()],
        "missing": [
            {"title": title, "rows": [_paper(cell) for cell in cells]}
            for title, cells in _sections(missing)
        ],
        "ablations": _ablations(ablations),
        "ablation_count": sum(len(row.values) for row in ablations),
        "ablation_sets": [name_of(name) for name in ABLATION_SETS],
        "ablation_legend": ABLATIONS,
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


def _sections(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """Cells by table and row of the paper, with a title for each."""
    groups = groupby(cells, lambda cell: (cell.papers[0].table, cell.papers[0].row))
    return [
        (f"{_TABLES.get(table, table)} · {table}, row: {row}", list(members))
        for (table, row), members in groups
    ]


def _ablations(rows: Sequence[AblationRow]) -> list[dict[str, Any]]:
    """Template values of the rows of the ablations, by table."""
    return [
        {
            "title": f"{_TABLES.get(table, table)} · {table}",
            "rows": [
                {
                    "pretraining": name_of(row.pretraining),
                    "row": row.row,
                    "values": [
                        format_values([row.values[name]]) if name in row.values else ""
                        for name in ABLATION_SETS
                    ],
                }
                for row in members
            ],
        }
        for table, members in groupby(rows, lambda row: row.table)
    ]


def _paper(cell: Cell) -> dict[str, str]:
    benchmark, network, source, paper = describe_papers(cell.papers)
    note = cell.papers[0].note
    return {
        "benchmark": benchmark,
        "note": note,
        "network": network,
        "source": source,
        "paper": paper,
    }


def _rows(cell: Cell) -> list[dict[str, Any]]:
    """Template values of the measurements of a cell."""
    return [
        {
            **_paper(cell),
            "kind": _CLASSES[m.status],
            "status": m.status,
            "measured": format_values(m.values),
            "plain": format_values(m.plain),
            "difference": format_differences(m.values, cell.papers),
            "bars": _bars(cell, m),
            "deviations": m.deviations,
            "file": m.name,
            "how": m.how,
        }
        for m in cell.measurements
    ]


def _bars(cell: Cell, measurement: Measurement) -> list[dict[str, str]]:
    """A bar per number: what was measured, and a mark where the paper's number is."""
    pairs = zip(measurement.values, cell.papers, strict=True)
    return [
        {"title": name_of(paper.metric), "width": f"{value:.1f}", "mark": f"{paper.value:.1f}"}
        for value, paper in pairs
    ]


def _group(group: TestSetResults) -> dict[str, Any]:
    """Template values of the results on one test set."""
    others = [name for name in group.metrics if name not in group.main_metrics]
    return {
        "title": group.title,
        "published": group.published,
        "details": group.details,
        "metrics": [
            {
                "title": name_of(name),
                "bars": [_own_bar(own, name) for own in group.results if _has(own, name)],
            }
            for name in group.main_metrics
        ],
        "other_metrics": [name_of(name) for name in others],
        "results": [_own(own, others) for own in group.results],
    }


def _has(own: OwnResult, name: str) -> bool:
    return own.result.metric(name) is not None


def _own_bar(own: OwnResult, name: str) -> dict[str, Any]:
    value, gain = own.result.metric(name) or 0.0, own.gain(name)
    return {
        "weights": own.weights,
        "random": own.random,
        "width": f"{100 * min(max(value, 0.0), 1.0):.1f}",  # min and max of NaN: the bound
        "value": format_metric(name, value),
        "gain": "" if gain is None else format_signed(gain),
    }


def _own(own: OwnResult, others: Sequence[str]) -> dict[str, Any]:
    return {
        "weights": own.weights,
        "random": own.random,
        "file": own.result.name,
        "claim": describe_benchmark(own.result) if own.reasons else "",
        "reasons": own.reasons,
        "others": [format_metric(name, own.result.metric(name)) for name in others],
        "how": describe_evaluation(own.result),
    }
