"""``sce-video report`` and ``sce-video compare``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sce_video.options.measure import CompareOptions, ReportOptions
from sce_video.utils.command import command

if TYPE_CHECKING:
    from sce_video.reporting.report_content import Report


@command(options=ReportOptions)
def main(options: ReportOptions) -> int:
    """Write the pages and the table, and return 0."""
    from sce_video.runs.report import report

    result = report(options)
    for page in result.pages:
        print(f"written: {page}")
    if result.report is not None:
        print(_describe(result.report))
        print("written:", *result.tables)
    return 0


def _describe(report: Report) -> str:
    """Count the table cells by status, and explain which results are not compared or skipped."""

    def counts(found: Mapping[str, int]) -> str:
        return ", ".join(f"{status}: {count}" for status, count in sorted(found.items()))

    lines = [counts(report.videos.counts)] if report.videos.listed else []
    if report.images.listed:
        lines.append(f"images: {counts(report.images.counts)}")
    if not (report.videos.measured or report.images.measured or report.others):
        lines.append("no results were found, so the table contains only the paper's numbers")
    for other in report.others:
        lines.append(f"not compared: {other.result.name}: {'; '.join(other.reasons)}")
    for name, why in report.skipped:
        lines.append(f"skipped: {name}: {why}")
    return "\n".join(lines)


@command(options=CompareOptions)
def compare_main(options: CompareOptions) -> int:
    """Write the page that compares several runs, and return 0."""
    from sce_video.runs.report import compare

    result = compare(options)
    print(*result.chance.lines(), f"written: {result.out}", sep="\n")
    return 0
