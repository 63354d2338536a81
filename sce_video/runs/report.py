"""``sce-video report`` and ``sce-video compare``: pages of runs, and the table of results."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sce_video.options.measure import CompareOptions, ReportOptions
from sce_video.reporting import phrases
from sce_video.reporting.phrases import describe_metric, format_values, name_of
from sce_video.reporting.report_content import Half, Report, assign_results, group_results
from sce_video.reporting.result_files import collect_results
from sce_video.utils.files import regular_file, write_text
from sce_video.utils.html_template import render_template
from sce_video.utils.run_files import check_run_folder, is_run_folder

if TYPE_CHECKING:
    from sce_video.pages.compare_page import Chance

#: Title by which an existing report is recognised before it is replaced
TITLE = "Results compared with those of the paper"


@dataclass(frozen=True)
class ReportResult:
    """Result of a report.

    Attributes:
        pages: Pages of the runs.
        report: Results next to the paper's numbers; None if only pages were written.
        tables: Files that contain the report.
    """

    pages: tuple[Path, ...]
    report: Report | None = None
    tables: tuple[Path, ...] = ()


def report(options: ReportOptions) -> ReportResult:
    """Write the pages of runs, and a table of all results next to the paper's numbers.

    Raises:
        FileNotFoundError: If a folder or file does not exist.
        ValueError: If ``features`` is given with several runs or none, or a file that is not a
            report would be replaced.
    """
    out, html = _places(options)
    runs = [source for source in options.sources if is_run_folder(source)]
    if options.features is not None and len(runs) != 1:
        raise ValueError(f"--features needs the folder of exactly one run, got {len(runs)}")
    collection = collect_results(options.sources)
    pages: tuple[Path, ...] = ()
    if runs:
        # Imported here, because a results table does not need torch.
        from sce_video.runs.page import PageOptions, write_run_page

        features = None if options.features is None else Path(options.features)
        shown = PageOptions(options.videos, features)
        pages = tuple(write_run_page(run, shown) for run in runs)
    # If all sources are runs without results, only their pages are wanted.
    if len(runs) == len(options.sources) and not collection.results and options.out is None:
        return ReportResult(pages)
    found = assign_results(collection)
    write_report(out, render_markdown(found))
    if html is not None:
        write_report(html, render_html(found))
    return ReportResult(pages, found, (out,) if html is None else (out, html))


def _places(options: ReportOptions) -> tuple[Path, Path | None]:
    """Return the paths of the markdown file and of the HTML file."""
    first = Path(options.sources[0])
    default = first if first.is_dir() else first.parent
    out = default if options.out is None else Path(options.out)
    html = None if options.html is None else Path(options.html)
    if out.is_dir() or not out.suffix:
        return out / "report.md", html or out / "report.html"
    if out.suffix != ".md":
        raise ValueError(f"--out must be a folder or end in .md, got {str(out)!r}")
    return out, html


class MissingRow(NamedTuple):
    """Numbers without a result in one row of a table in the paper, as one text."""

    table: str
    row: str
    numbers: str


def missing_rows(half: Half) -> list[MissingRow]:
    """Return the numbers without a result, by table and row, as the paper prints them."""
    rows: dict[tuple[str, str], list[str]] = {}
    for papers in (cell.papers for cell in half.missing):
        first, metric = papers[0], describe_metric(papers)
        what = name_of(first.dataset) + ("" if metric == "top-1" else f" ({metric})")
        text = f"{what} {format_values([p.value for p in papers], papers)}"
        rows.setdefault((first.table, first.row), []).append(text)
    return [MissingRow(*key, "; ".join(texts)) for key, texts in rows.items()]


def render_html(report: Report) -> str:
    """Return the report as an HTML page that loads no files and runs no scripts."""
    return render_template("sce_video.reporting", "report.html", _values(report))


def render_markdown(report: Report) -> str:
    """Return the report as Markdown, with tables in GitHub's format."""
    from markupsafe import Markup  # imported here, because only reports need it

    def literal(text: str) -> Markup:
        """Escape text so that Markdown shows it unchanged, in one line."""
        text = text.translate({ord(character): f"\\{character}" for character in "\\`*_[]|"})
        return Markup(" ".join(escape(text, quote=False).split()))

    def code(text: str) -> Markup:
        """Return inline code as ``<code>``, because backticks do not protect a bar in a table."""
        entities = {ord(character): f"&#{ord(character)};" for character in "|`*_"}
        escaped = escape(" ".join(text.split()), quote=False).translate(entities)
        return Markup(f"<code>{escaped}</code>")

    values = {**_values(report), "code": code}
    return render_template("sce_video.reporting", "report.md", values, literal).rstrip() + "\n"


def _values(report: Report) -> dict[str, Any]:
    """Return the values that both templates show, and the functions that they call."""
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
    """Write a report atomically. An existing report is replaced.

    Raises:
        ValueError: If the file exists and is not a report that this function wrote.
    """
    path = Path(path)
    if path.exists():  # it may be the user's own file
        with open(path, encoding="utf-8", errors="replace", opener=regular_file) as file:
            if TITLE not in file.read(500):
                raise ValueError(
                    f"{path} exists and is not a report. Move it, or choose another name"
                )
    write_text(path, text)


@dataclass(frozen=True)
class CompareResult:
    """Result of a comparison.

    Attributes:
        out: Path of the page.
        chance: Means over seeds, and which differences between results are within chance.
    """

    out: Path
    chance: Chance


def compare(options: CompareOptions) -> CompareResult:
    """Write a page that compares two or more runs.

    Raises:
        FileNotFoundError: If a folder does not exist.
        ValueError: If a folder contains no run, or is given twice.
        WriteError: If the page cannot be written.
    """
    folders = [Path(run).resolve() for run in options.runs]
    for run, folder in zip(options.runs, folders, strict=True):
        check_run_folder(run)
        if folders.count(folder) > 1:
            raise ValueError(f"{run} is given twice. Remove one of them")
    # Imported here, so that a wrong path is reported before torch loads.
    from sce_video.pages.compare_page import chance_of_differences, render_comparison
    from sce_video.pages.run_record import different_settings
    from sce_video.runs.folder import read_run

    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):  # distinguish equal names by their relative paths
        shared = os.path.commonpath(folders)
        names = [str(folder.relative_to(shared)) for folder in folders]
    records = [
        replace(read_run(folder), name=name) for folder, name in zip(folders, names, strict=True)
    ]
    settings = different_settings([record.config for record in records])
    chance = chance_of_differences(records)
    write_text(options.out, render_comparison(records, settings, chance))
    return CompareResult(Path(options.out), chance)
