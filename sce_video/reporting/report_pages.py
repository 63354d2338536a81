"""A report as markdown and as one HTML page: two templates of the same values."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from sce_video.published.paper_results import PaperResult
from sce_video.reporting import phrases
from sce_video.reporting.own_results import group_results
from sce_video.reporting.paper_cells import Cell, Report
from sce_video.reporting.phrases import format_values, name_of
from sce_video.utils.files import regular_file, write_text
from sce_video.utils.html_template import render_template

#: By its title a report is recognised before it is replaced.
TITLE = "Results compared with those of the paper"
#: Tables of the video ablations, and the test sets of their columns.
_ABLATIONS = frozenset(
    f"tab:video-{name}" for name in ("baseline", "lambda-vary", "temp", "color", "time", "best")
)
_ABLATION_SETS = ("kinetics200", "ucf101", "hmdb51")
_METHOD = "SCE, "  # left out where all rows have it


@dataclass(frozen=True)
class AblationRow:
    """A row of an ablation with the numbers that have no result, by test set.

    Its first number is ``paper``.
    """

    paper: PaperResult
    values: list[str]

    @property
    def count(self) -> int:
        """How many numbers the row has."""
        return sum(map(bool, self.values))


class MissingImages(TypedDict):
    """The numbers on images of one table and data set that have no result, as one text."""

    title: str
    table: str
    dataset: str
    count: int
    numbers: str


def render_html(report: Report) -> str:
    """Return the report as one HTML page that loads nothing and runs nothing."""
    return render_template("sce_video.reporting", "report.html", _values(report))


def render_markdown(report: Report) -> str:
    """Return the report as markdown, with tables as on GitHub."""
    from markupsafe import Markup  # imported here, like jinja2, since only the pages need it

    def literal(text: str) -> Markup:
        """Return text that markdown shows as it is, in one line."""
        text = text.translate({ord(character): f"\\{character}" for character in "\\`*_[]|"})
        return Markup(" ".join(html.escape(text, quote=False).split()))

    def code(text: str) -> Markup:
        """Return inline code as ``<code>``: in a table, backticks do not protect a bar."""
        entities = {ord(character): f"&#{ord(character)};" for character in "|`*_"}
        escaped = html.escape(" ".join(text.split()), quote=False).translate(entities)
        return Markup(f"<code>{escaped}</code>")

    values = {**_values(report), "code": code}
    return render_template("sce_video.reporting", "report.md", values, literal).rstrip() + "\n"


def _values(report: Report) -> dict[str, Any]:
    """Return what both templates show, and the functions that they call."""
    missing, ablations = _missing(report)
    halves = {"videos": report.cells, "images": report.images}
    measured = {
        unit: [m for cell in cells for m in cell.measurements] for unit, cells in halves.items()
    }
    return {
        "phrases": phrases,
        "zip": zip,
        "title": TITLE,
        "report": report,
        "measured": measured,
        "found": bool(report.others or any(measured.values())),
        "groups": group_results(report.others),
        "missing": missing,
        "ablations": ablations,
        "ablation_sets": [name_of(name) for name in _ABLATION_SETS],
        "missing_images": missing_images(report),
    }


def _missing(report: Report) -> tuple[list[Cell], list[AblationRow]]:
    """Return the numbers on videos without a result: others, and the ablations' by row."""
    others: list[Cell] = []
    ablations: dict[tuple[str, str], AblationRow] = {}
    for cell in (cell for cell in report.cells if not cell.measurements):
        paper = cell.papers[0]
        if paper.table not in _ABLATIONS or paper.pretraining is None:
            others.append(cell)
            continue
        row = ablations.setdefault((paper.table, paper.row), AblationRow(paper, ["", "", ""]))
        row.values[_ABLATION_SETS.index(paper.dataset)] = f"{paper.value:.1f}"
    return others, list(ablations.values())


def missing_images(report: Report) -> list[MissingImages]:
    """Return the numbers on images without a result, each after the name that distinguishes it."""
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
        texts = [f"{name.removeprefix(strip)}: {value}" for name, value in numbers.items()]
        rows.append(
            MissingImages(
                title=name_of(table),
                table=table,
                dataset=name_of(dataset),
                count=len(numbers),
                numbers="; ".join(texts),
            )
        )
    return rows


def write_report(path: str | os.PathLike[str], text: str) -> None:
    """Write a page as an atomic file; an existing report is replaced.

    Raises:
        ValueError: If the file exists and is not a report written by this function.
    """
    path = Path(path)
    if path.exists():  # a file of the user's own may have that name
        with open(path, encoding="utf-8", errors="replace", opener=regular_file) as file:
            if TITLE not in file.read(500):
                raise ValueError(
                    f"{path} exists and is not a report: move it, or choose another name"
                )
    write_text(path, text)
