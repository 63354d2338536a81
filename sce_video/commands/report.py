"""Collect results into one table next to the paper's numbers.

    python tools/report.py work_dirs
    python tools/report.py work_dirs/ucf101 retrieval.json --out reports
    python tools/report.py work_dirs --out results.md --html results.html

Reads every JSON file with results below the folders: results.json of tools/test.py, splits.json of
tools/finetune_splits.py, and the output of tools/retrieve.py and tools/transfer.py --json. Every
number of the paper that a recipe of this repository reproduces is listed, measured or not; those
on images, or on videos, are one line if no result is on them. A result stands beside a number only
if network, pretraining (data, method, epochs) and test set are known and those of the paper. The
others follow by test set, random weights beside pretrained ones, with the reason.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from sce_video.reporting.markdown import render_markdown
from sce_video.reporting.page import render_html, write_page
from sce_video.reporting.report import Report, build_report
from sce_video.reporting.result_files import collect_results
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Collect results into one table next to the paper's numbers."
    )
    parser.add_argument(
        "sources", nargs="+", metavar="WORK_DIR", help="folders to search, or JSON files"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="markdown file, or folder for report.md and report.html (default: the first WORK_DIR)",
    )
    parser.add_argument(
        "--html", type=Path, help="HTML file (default: report.html, if --out is a folder)"
    )
    return parser.parse_args(argv)


def output_paths(args: argparse.Namespace) -> tuple[Path, Path | None]:
    """The markdown file and the HTML file, None for no HTML.

    Raises:
        ValueError: a file name has the wrong extension.
    """
    out, page = args.out, args.html
    if page is not None and page.suffix not in (".html", ".htm"):
        raise ValueError(f"--html must end in .html, got {str(page)!r}")
    if out is None:
        first = Path(args.sources[0])
        out = first if first.is_dir() else first.parent
    if out.is_dir() or not out.suffix:
        return out / "report.md", page or out / "report.html"
    if out.suffix != ".md":
        raise ValueError(f"--out must be a folder or end in .md, got {str(out)!r}")
    return out, page


def summarize(report: Report) -> str:
    """Text for the terminal: cells by status, then what is not compared or skipped, and why."""
    lines = []
    if report.with_videos:
        lines.append(_counts(report.status_counts()))
    if report.with_images:
        lines.append(f"images: {_counts(report.status_counts(report.images))}")
    cells = (*report.cells, *report.images)
    if not any(cell.measurements for cell in cells) and not report.others:
        lines.append("no results were found: the table holds the paper's numbers only")
    for other in report.others:
        lines.append(f"not compared: {other.result.name}: {'; '.join(other.reasons)}")
    for name, why in report.skipped:
        lines.append(f"skipped: {name}: {why}")
    return "\n".join(lines)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Collect and write; returns the exit status."""
    args = parse_args(argv)
    markdown, page = output_paths(args)
    report = build_report(collect_results(args.sources))
    write_page(markdown, render_markdown(report))
    if page is not None:
        write_page(page, render_html(report))
    print(summarize(report))
    print(f"written: {markdown}" + (f" {page}" if page is not None else ""))
    return 0
