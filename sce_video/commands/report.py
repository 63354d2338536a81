"""``sce-video report`` and ``sce-video compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sce_video.options.command_line import parse
from sce_video.options.measure import CompareOptions, ReportOptions
from sce_video.utils.command import command

if TYPE_CHECKING:
    from sce_video.reporting.report_content import Report


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write pages and the table, and return the exit status."""
    options = parse(ReportOptions, argv)
    # Imported here, so that --help does not load the module of results.
    from sce_video.runs.report import report

    result = report(options)
    for page in result.pages:
        print(f"written: {page}")
    if result.report is not None:
        print(_describe(result.report))
        print("written:", *result.tables)
    return 0


def _describe(report: Report) -> str:
    """Return the cells by status, then what is not compared or skipped, and why."""

    def counts(found: Mapping[str, int]) -> str:
        return ", ".join(f"{status}: {count}" for status, count in sorted(found.items()))

    lines = [counts(report.videos.counts)] if report.videos.listed else []
    if report.images.listed:
        lines.append(f"images: {counts(report.images.counts)}")
    if not (report.videos.measured or report.images.measured or report.others):
        lines.append("no results were found: the table contains the paper's numbers only")
    for other in report.others:
        lines.append(f"not compared: {other.result.name}: {'; '.join(other.reasons)}")
    for name, why in report.skipped:
        lines.append(f"skipped: {name}: {why}")
    return "\n".join(lines)


@command
def compare_main(argv: Sequence[str] | None = None) -> int:
    """Write the page of several runs and return the exit status."""
    options = parse(CompareOptions, argv)
    # Imported here, so that --help does not load the module of runs.
    from sce_video.runs.report import compare

    result = compare(options)
    print(*result.chance.lines(), f"written: {result.out}", sep="\n")
    return 0
