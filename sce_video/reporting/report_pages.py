"""A report as markdown and as one HTML page: two templates of the same values."""

from __future__ import annotations

import html
import os
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from sce_video.reporting import phrases
from sce_video.reporting.own_results import group_results
from sce_video.reporting.paper_cells import Half, Report
from sce_video.reporting.phrases import describe_metric, format_values, name_of
from sce_video.utils.files import regular_file, write_text
from sce_video.utils.html_template import render_template

#: Title by which a report is recognised before it is replaced.
TITLE = "Results compared with those of the paper"


class MissingRow(NamedTuple):
    """The numbers of one row of a table of the paper that have no result, as one text."""

    table: str
    row: str
    numbers: str


def missing_rows(half: Half) -> list[MissingRow]:
    """Return the numbers without a result by table and row, as the paper prints them."""
    rows: dict[tuple[str, str], list[str]] = {}
    for papers in (cell.papers for cell in half.missing):
        first, metric = papers[0], describe_metric(papers)
        what = name_of(first.dataset) + ("" if metric == "top-1" else f" ({metric})")
        text = f"{what} {format_values([p.value for p in papers], papers)}"
        rows.setdefault((first.table, first.row), []).append(text)
    return [MissingRow(*key, "; ".join(texts)) for key, texts in rows.items()]


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
    halves = (report.videos, report.images)
    return {
        "phrases": phrases,
        "missing_rows": missing_rows,
        "zip": zip,
        "title": TITLE,
        "report": report,
        "halves": halves,
        "counts": sum((half.counts for half in halves if half.listed), Counter()),
        "found": bool(report.others or any(half.measured for half in halves)),
        "groups": group_results(report.others),
    }


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
