"""A report as one HTML page, and writing either form to a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sce_video.reporting.own_results import OwnResult, TestSetResults
from sce_video.reporting.paper_cells import Report
from sce_video.reporting.phrases import (
    ABLATION_SETS,
    ABLATIONS,
    DEVIATING,
    IMAGES,
    LEGEND,
    MEASURED,
    NOT_RUN,
    TITLE,
    AblationRow,
    Cell,
    Measurement,
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
from sce_video.utils.files import write_text
from sce_video.utils.html_template import render_template

#: CSS class of a row by its status.
_CLASSES = {MEASURED: "measured", DEVIATING: "deviates", NOT_RUN: "not-run"}


def render_html(report: Report) -> str:
    """The report as one HTML page that loads nothing and runs nothing."""
    videos, images = report.with_videos, report.with_images
    shown = (*(report.cells if videos else ()), *(report.images if images else ()))
    counts = report.status_counts(shown)
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
        "halves": [
            {"title": title, "legend": legend, "sections": _measured(cells)}
            for title, legend, cells in (
                ("Beside the paper", "", report.cells),
                ("Beside the paper: images", IMAGES, report.images),
            )
            if any(cell.measurements for cell in cells)
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
        "with_videos": report.with_videos,
        "video_count": len(report.cells),
        **_missing_images(report),
        "skipped": report.skipped,
    }
    return render_template("sce_video.reporting", "report.html", values)


def write_report(path: str | os.PathLike[str], text: str) -> None:
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
        (f"{table_title(table)} · {table}, row: {row}", list(members))
        for (table, row), members in groups
    ]


def _measured(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Template values of the cells with a result, by table and row of the paper."""
    return [
        {"title": title, "rows": [row for cell in members for row in _rows(cell)]}
        for title, members in _sections([cell for cell in cells if cell.measurements])
    ]


def _missing_images(report: Report) -> dict[str, Any]:
    """Template values of the numbers on images that were not measured; the listed ones first."""
    tables = report.missing_images()
    missing = [cell for cell in report.images if not cell.measurements]
    folded = {table.table: set(table.counts) for table in tables}
    others = [c for c in missing if c.papers[0].dataset in folded[c.papers[0].table]]
    return {
        "listed_images": [
            {"title": table_title(table), "table": table, "dataset": dataset, "numbers": numbers}
            for table, dataset, numbers in describe_missing(tables)
        ],
        "folded_images": [_missing_row(cell) for cell in others],
        "image_count": len(report.images),
        "with_images": report.with_images,
    }


def _missing_row(cell: Cell) -> dict[str, str]:
    return {**_paper(cell), "table": cell.papers[0].table}


def _ablations(rows: Sequence[AblationRow]) -> list[dict[str, Any]]:
    """Template values of the rows of the ablations, by table."""
    return [
        {
            "title": f"{table_title(table)} · {table}",
            "rows": [
                {
                    "pretraining": name_of(row.pretraining),
                    "row": row.row,
                    "values": [
                        f"{row.values[name]:.1f}" if name in row.values else ""
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
    note = cell.papers[0].remark
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
            "measured": format_values(m.values, cell.papers),
            "plain": format_values(m.plain, cell.papers) if m.plain else "",
            "difference": format_differences(m.values, cell.papers),
            "bars": _bars(cell, m),
            "deviations": m.deviations,
            "notes": m.notes,
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
        "value": format_with_interval(name, own.result),
        "gain": "" if gain is None else format_signed(gain),
    }


def _own(own: OwnResult, others: Sequence[str]) -> dict[str, Any]:
    return {
        "weights": own.weights,
        "random": own.random,
        "file": own.result.name,
        "claim": describe_benchmark(own.result) if own.reasons else "",
        "reasons": own.reasons,
        "others": [format_with_interval(name, own.result) for name in others],
        "how": describe_evaluation(own.result),
    }
