"""``sce-video index``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sce_video.options.features import IndexOptions
from sce_video.utils.command import RESUMABLE, command, printable, shown_failures

if TYPE_CHECKING:
    from sce_video.find.index import IndexReport
    from sce_video.find.indexing import IndexResult


@command(options=IndexOptions, interrupted=RESUMABLE)
def main(options: IndexOptions) -> int:
    """Build, update or check the index, and return 1 if a checked index is damaged, else 0."""
    from sce_video.find.indexing import index

    result = index(options)
    lines = _checked(result) if result.report is None else _built(result, result.report)
    if result.column is not None:
        written = f"{result.column} features in the column feature_{options.column}"
        lines.append(f"{options.videos}: {written}")
    print("\n".join(map(printable, lines)))
    return 1 if result.damaged else 0


def _checked(result: IndexResult) -> list[str]:
    """Describe a checked index."""
    if not result.damaged:
        return [f"{result.checked}: all files are intact"]
    advice = "Restore them from a copy, or build the index again with --rebuild."
    return [*result.damaged, advice]


def _built(result: IndexResult, report: IndexReport) -> list[str]:
    """Describe a built or updated index by its numbers of videos and files."""
    rows = "" if report.windows is None else f"{report.windows} windows of "
    lines = [
        f"{result.out}: {rows}{report.videos} videos in the index, "
        f"{len(report.failures)} unreadable files",
        f"  this run: {report.new} new, {report.changed} changed, {report.kept} kept, "
        f"{report.dropped} dropped",
    ]
    lines += [f"  {line}" for line in result.repeated]
    if report.incomplete:
        lines.append(f"  {len(report.incomplete)} files with damaged or missing frames")
    problems = [*report.failures, *report.incomplete]
    return lines + shown_failures(problems, f", in {os.path.join(result.out, 'index.json')}")
