"""A report as markdown and as one HTML page: one model of its tables, two renderings."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sce_video.reporting.own_results import OwnResult, TestSetResults, group_results
from sce_video.reporting.paper_cells import DEVIATING, MEASURED, NOT_RUN, Cell, Measurement, Report
from sce_video.reporting.phrases import (
    describe_benchmark,
    describe_evaluation,
    describe_papers,
    format_signed,
    format_values,
    format_with_interval,
    name_of,
    table_title,
)
from sce_video.utils.files import regular_file, write_text
from sce_video.utils.html_template import render_template

TITLE = "Results compared with those of the paper"
_LEGEND = (
    "Percent, as in the paper; differences in percentage points. A result stands beside a number "
    "of the paper only if the config of its trainings is the recipe's and the data are known. "
    "Retrieval is centred: the mean feature of each set is subtracted first; plain is without "
    "that. Deviations from the paper's evaluation protocol are listed with the result."
)
_ABLATION_LEGEND = (
    "Ablations: ResNet3D-18, 8 x 224², pretrained on Kinetics-200; linear evaluation on "
    "Kinetics-200, finetuned on split 1 of UCF101 and HMDB51, top-1. An empty cell is measured, or "
    "listed with another table."
)
_IMAGE_LEGEND = (
    "Linear evaluation of a frozen network on the data set of its pretraining, one view of each "
    "test image; transfer of the network of tab:sota-multi-crop. The linear numbers of the paper "
    "are those of the epoch that is best on the test split; a result here is the last epoch, "
    "unless it says otherwise."
)
#: Tables of the video ablations, and the test sets of their columns.
_ABLATIONS = frozenset(
    f"tab:video-{name}" for name in ("baseline", "lambda-vary", "temp", "color", "time", "best")
)
_ABLATION_SETS = ("kinetics200", "ucf101", "hmdb51")
_COLUMNS = ("benchmark", "network", "pretrained on", "paper", "measured", "difference", "status")
_SOURCE, _FILES = "table and row of the paper", "results and protocol"
_METHOD = "SCE, "  # left out where all rows have it
_KINDS = {MEASURED: "measured", DEVIATING: "deviates", NOT_RUN: "not-run"}

_Values = dict[str, Any]


# -- the model -----------------------------------------------------------------------------


def _halves(report: Report) -> Iterator[_Values]:
    """The measured numbers on videos, and those on images: a row for each measurement."""
    for title, legend, cells in (
        ("Beside the paper", "", report.cells),
        ("Beside the paper: images", _IMAGE_LEGEND, report.images),
    ):
        found = [(cell, m) for cell in cells for m in cell.measurements]
        if found:
            rows = [_measured(cell, m) for cell, m in found]
            yield {"title": title, "legend": legend, "rows": rows}


def _measured(cell: Cell, m: Measurement) -> _Values:
    pairs = list(zip(m.values, cell.papers, strict=True))
    # Of the rounded numbers, so that differences agree with what is shown.
    points = [(round(v, p.decimals) - p.value, p.decimals) for v, p in pairs]
    return {
        **describe_papers(cell.papers),
        **vars(m),
        "kind": _KINDS[m.status],
        "status": m.status,
        "measured": format_values(m.values, cell.papers),
        "plain": format_values(m.plain, cell.papers) if m.plain else "",
        "difference": " / ".join(format_signed(*point) for point in points),
        "bars": [
            {"title": name_of(p.metric), "width": f"{v:.1f}", "mark": f"{p.value:.1f}"}
            for v, p in pairs
        ],
    }


def _missing(report: Report) -> tuple[list[_Values], list[_Values]]:
    """Numbers on videos without a result: others, and those of the ablations by row."""
    others: list[_Values] = []
    ablations: dict[tuple[str, str], _Values] = {}
    for cell in (cell for cell in report.cells if not cell.measurements):
        paper = cell.papers[0]
        if paper.table not in _ABLATIONS or paper.pretraining is None:
            others.append(describe_papers(cell.papers))
            continue
        empty = {"pretraining": name_of(paper.pretraining), "values": [""] * len(_ABLATION_SETS)}
        texts = describe_papers(cell.papers)
        row = ablations.setdefault((paper.table, paper.row), {**texts, **empty})
        row["values"][_ABLATION_SETS.index(paper.dataset)] = f"{paper.value:.1f}"
    return others, list(ablations.values())


def missing_images(report: Report) -> list[_Values]:
    """Numbers on images without a result: a row for each data set of a table.

    A row has ``title`` and label (``table``) of the table, ``dataset``, ``count`` of its numbers,
    and these as one text (``numbers``), each behind what tells it from the others.
    """
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for paper in (cell.papers[0] for cell in report.images if not cell.measurements):
        name = name_of(paper.pretraining if paper.protocol == "linear" else paper.metric)
        if paper.protocol == "linear" and paper.pretraining_epochs is not None:
            name = f"{paper.pretraining_epochs} epochs"
        numbers = groups.setdefault((paper.table, paper.dataset), {})
        numbers[name] = format_values([paper.value], [paper])
    rows = []
    for (table, dataset), numbers in groups.items():
        strip = _METHOD if all(name.startswith(_METHOD) for name in numbers) else ""
        texts = (f"{name.removeprefix(strip)}: {value}" for name, value in numbers.items())
        row = {"title": table_title(table), "table": table, "dataset": name_of(dataset)}
        rows.append({**row, "count": len(numbers), "numbers": "; ".join(texts)})
    return rows


def _notes(report: Report) -> list[str]:
    """Sentences on results that are missing."""
    measured = any(cell.measurements for cell in (*report.cells, *report.images))
    lines = [] if measured or report.others else ["No results were found."]
    if report.skipped:
        lines.append(f"JSON files without results, listed at the end: {len(report.skipped)}.")
    return lines


# -- HTML ----------------------------------------------------------------------------------


def render_html(report: Report) -> str:
    """The report as one HTML page that loads nothing and runs nothing.

    It lists all numbers of the paper; its counts are of the halves that :attr:`Report.with_videos`
    and :attr:`Report.with_images` tell to list.
    """
    shown = report.cells * report.with_videos + report.images * report.with_images
    counts = report.status_counts(shown)
    # The page has everything, folded where a half of the paper has no result.
    (missing, ablations), on_images = _missing(report), missing_images(report)

    def by_table(row: _Values) -> str:
        return f"{table_title(row['table'])} · {row['table']}"

    def by_row(row: _Values) -> str:
        return f"{by_table(row)}, row: {row['row']}"

    def sections(rows: Sequence[_Values], key: Callable[[_Values], str] = by_row) -> list[_Values]:
        return [{"title": title, "rows": list(members)} for title, members in groupby(rows, key)]

    values = {
        "title": TITLE,
        "tiles": (
            ("measured", counts[MEASURED], "cells of the paper measured"),
            ("deviates", counts[DEVIATING], "measured with deviations only"),
            ("own", len(report.others), "own results, not comparable with the paper"),
            ("not-run", counts[NOT_RUN], "cells of the paper not run"),
        ),
        "notes": _notes(report),
        "legend": _LEGEND,
        "halves": [{**h, "sections": sections(h["rows"])} for h in _halves(report)],
        "groups": [_group(group) for group in group_results(report.others)],
        "missing": sections(missing),
        "ablations": sections(ablations, by_table),
        "ablation_count": sum(value != "" for row in ablations for value in row["values"]),
        "ablation_sets": [name_of(name) for name in _ABLATION_SETS],
        "ablation_legend": _ABLATION_LEGEND,
        "missing_images": on_images,
        "missing_image_count": sum(row["count"] for row in on_images),
        "report": report,
    }
    return render_template("sce_video.reporting", "report.html", values)


def _group(group: TestSetResults) -> _Values:
    """Template values of the results on one test set: bars of the main metrics, then a table."""
    others = [name for name in group.metrics if name not in group.main_metrics]

    def bars(name: str) -> Iterator[_Values]:
        for own in group.results:
            value, gain = own.result.metric(name), own.gain(name)
            if value is not None:
                yield {
                    "weights": own.weights,
                    "random": own.random,
                    "width": f"{100 * min(max(value, 0.0), 1.0):.1f}",  # of NaN: the bound
                    "value": format_with_interval(name, own.result),
                    "gain": "" if gain is None else format_signed(gain),
                }

    results = [
        {
            "weights": own.weights,
            "file": own.result.name,
            "verdict": _verdict(own),
            "reasons": own.reasons,
            "others": [format_with_interval(name, own.result) for name in others],
            "how": describe_evaluation(own.result),
        }
        for own in group.results
    ]
    return {
        "title": group.title,
        "published": group.published,
        "details": group.details,
        "metrics": [{"title": name_of(n), "bars": list(bars(n))} for n in group.main_metrics],
        "other_metrics": [name_of(name) for name in others],
        "results": results,
    }


def write_report(path: str | os.PathLike[str], text: str) -> None:
    """Write a page as an atomic file; an existing report is replaced.

    Raises:
        ValueError: The file exists and is not a report written by this function.
    """
    path = Path(path)
    if path.exists():  # a file of the user's own may have that name
        with open(path, encoding="utf-8", errors="replace", opener=regular_file) as file:
            if TITLE not in file.read(500):
                raise ValueError(
                    f"{path} exists and is not a report: move it, or choose another name"
                )
    write_text(path, text)


# -- markdown ------------------------------------------------------------------------------


def render_markdown(report: Report) -> str:
    """The report as markdown (tables as on GitHub): what was measured first, then what was not."""
    halves = (
        ("videos", report.cells, report.with_videos),
        ("images", report.images, report.with_images),
    )
    lines = [f"# {TITLE}", ""]
    for what, cells, listed in halves:
        counts = report.status_counts(cells)
        numbers = (
            f"{counts[MEASURED]} measured, {counts[DEVIATING]} measured with deviations from the "
            f"paper's protocol, {counts[NOT_RUN]} not run."
        )
        if cells or listed:
            said = numbers if listed else "none measured."
            lines.append(f"{len(cells)} cells of the paper on {what}: {said}")
    if report.others:
        lines.append(f"Own results, not comparable with the paper: {len(report.others)}.")
    lines += [*_notes(report), "", _LEGEND, ""]
    for half in _halves(report):
        head = (*_COLUMNS, _SOURCE, _FILES)
        lines += [f"## {half['title']}", "", *([half["legend"], ""] if half["legend"] else ())]
        if not half["legend"]:
            lines += _table(head, map(_measured_row, half["rows"]))
            continue
        for table, rows in groupby(half["rows"], lambda row: row["table"]):
            lines += [f"### {_escaped(table_title(table))}", ""]
            lines += _table(head, map(_measured_row, rows))
    lines += ["## Own results", ""] if report.others else []
    for group in group_results(report.others):
        names = (_escaped(name_of(name)) for name in group.metrics)
        details = [_escaped(group.details), ""] if group.details else []
        rows_of_group = [_own_row(own, group.metrics) for own in group.results]
        lines += [f"### {_escaped(group.title)}", "", *details]
        lines += _table(("weights", *names, _FILES), rows_of_group)
    lines += _not_run(report)
    for what, cells, listed in halves:
        if cells and not listed:
            lines += [f"Of {len(cells)} numbers on {what} none was measured.", ""]
    if report.skipped:
        lines += ["## Files without results", ""]
        lines.extend(f"- {_code(name)}: {_escaped(why)}" for name, why in report.skipped)
    return "\n".join(lines).rstrip() + "\n"


def _not_run(report: Report) -> list[str]:
    """Numbers without a result, of the halves of the paper that have one."""
    missing, ablations = _missing(report) if report.with_videos else ([], [])
    on_images = missing_images(report) if report.with_images else []
    lines = ["## Not run", ""] if missing or ablations or on_images else []
    if missing:
        rows = [[*_paper_texts(row), NOT_RUN, _source(row)] for row in missing]
        lines += _table((*_COLUMNS[:4], "status", _SOURCE), rows)
    if ablations:
        heads = ("pretraining", *map(name_of, _ABLATION_SETS), _SOURCE)
        rows = [
            [_escaped(row["pretraining"]), *row["values"], _source({**row, "note": ""})]
            for row in ablations
        ]
        lines += [_ABLATION_LEGEND, "", *_table(heads, rows)]
    if on_images:
        texts = [(f"{r['title']} ({r['table']})", r["dataset"], r["numbers"]) for r in on_images]
        head = ("table", "data set", "numbers of the paper")
        lines += ["### Images", "", *_table(head, [list(map(_escaped, row)) for row in texts])]
    return lines


def _measured_row(row: _Values) -> list[str]:
    value = f"**{row['measured']}**" + (f"<br>plain {row['plain']}" if row["plain"] else "")
    status = row["status"]
    if status != MEASURED:
        status += f": {_escaped('; '.join(row['deviations']))}"
    if row["notes"]:
        status += f" ({_escaped('; '.join(row['notes']))})"
    file = _code(row["name"]) + (f"<br>{_escaped(row['how'])}" if row["how"] else "")
    return [*_paper_texts(row), value, row["difference"], status, _source(row), file]


def _paper_texts(row: _Values) -> list[str]:
    return [_escaped(row[name]) for name in ("benchmark", "network", "source", "paper")]


def _source(row: _Values) -> str:
    note = f" ({row['note']})" if row["note"] else ""
    return _escaped(f"{row['table']}, row: {row['row']}{note}")


def _verdict(own: OwnResult) -> str:
    """What the reasons of a result mean."""
    if own.result.benchmark:
        return f"not comparable with the paper ({describe_benchmark(own.result)})"
    return "its numbers contradict each other"


def _own_row(own: OwnResult, metrics: Sequence[str]) -> list[str]:
    cells = []
    for name in metrics:
        gain, shown = own.gain(name), format_with_interval(name, own.result)
        cells.append(shown if gain is None else f"{shown} ({format_signed(gain)})")
    notes = [_code(own.result.name), _escaped(describe_evaluation(own.result))]
    if own.reasons:
        notes.append(f"{_escaped(_verdict(own))}: {_escaped('; '.join(own.reasons))}")
    return [_escaped(own.weights), *cells, "<br>".join(note for note in notes if note)]


def _table(head: Sequence[str], rows: Iterator[list[str]] | list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""]


def _escaped(text: str) -> str:
    """Text that markdown shows literally, in one line."""
    text = text.translate({ord(character): f"\\{character}" for character in "\\`*_[]|"})
    return " ".join(html.escape(text, quote=False).split())


def _code(text: str) -> str:
    """Inline code as ``<code>``: in a table, backticks do not protect a bar."""
    entities = {ord(character): f"&#{ord(character)};" for character in "|`*_"}
    escaped = html.escape(" ".join(text.split()), quote=False).translate(entities)
    return f"<code>{escaped}</code>"
