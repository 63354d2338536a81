"""``sce-video report`` and ``sce-video compare``: pages of runs, and the table of results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.options.measure import CompareOptions, ReportOptions
from sce_video.reporting.paper_cells import Report, assign_results
from sce_video.reporting.report_pages import render_html, render_markdown, write_report
from sce_video.reporting.result_files import collect_results
from sce_video.utils.run_files import check_run_folder, is_run_folder

if TYPE_CHECKING:
    from sce_video.pages.compare_page import Chance


@dataclass(frozen=True)
class ReportResult:
    """Result of a report.

    Attributes:
        pages: The pages of the runs.
        report: The results next to the numbers of the paper; None if only pages were written.
        tables: The files with the report.
    """

    pages: tuple[Path, ...]
    report: Report | None = None
    tables: tuple[Path, ...] = ()


def report(options: ReportOptions) -> ReportResult:
    """Write the pages of runs, and a table of all results next to the numbers of the paper.

    Raises:
        FileNotFoundError: If there is no such folder or file.
        ValueError: If ``features`` is given for anything but one run, or a file that is not a
            report is in the way.
    """
    out, html = _places(options)
    runs = [source for source in options.sources if is_run_folder(source)]
    if options.features is not None and len(runs) != 1:
        raise ValueError(f"--features is for the folder of one run, but {len(runs)} are given")
    collection = collect_results(options.sources)
    pages: tuple[Path, ...] = ()
    if runs:
        # Imported here because tables of results need no torch.
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


@dataclass(frozen=True)
class CompareResult:
    """Result of a comparison.

    Attributes:
        out: The page.
        chance: Means over seeds, and which differences of the results are within chance.
    """

    out: Path
    chance: Chance


def compare(options: CompareOptions) -> CompareResult:
    """Write the page of two or more runs.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If a folder contains no run, or is given twice.
    """
    for run in options.runs:
        check_run_folder(run)
    # Imported here because a wrong path is answered without torch.
    from sce_video.runs.compare import write_comparison

    return CompareResult(Path(options.out), write_comparison(options.runs, options.out))
