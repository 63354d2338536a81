"""Collect results into one table beside the paper's numbers.

    python tools/report.py work_dirs
    python tools/report.py work_dirs/ucf101 retrieval.json --out reports
    python tools/report.py work_dirs --out results.md --html results.html

Reads every json file below the folders that holds results: results.json of tools/test.py,
splits.json of tools/finetune_splits.py, and what tools/retrieve.py --json wrote. Every number of
the paper that a recipe here reproduces gets its row, measured or not run. What was not measured on
the published test set is listed apart, with the reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sce_video.reporting.report import (
    Report,
    build_report,
    render_html,
    render_markdown,
    write_page,
)
from sce_video.reporting.result_files import collect_results


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Collect results into one table beside the paper's numbers."
    )
    parser.add_argument(
        "sources", nargs="+", metavar="WORK_DIR", help="folders to search, or json files"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="markdown file, or folder for report.md and report.html (default: the first WORK_DIR)",
    )
    parser.add_argument(
        "--html", type=Path, help="HTML file (default: beside, if --out is a folder)"
    )
    return parser.parse_args(argv)


def output_paths(args: argparse.Namespace) -> tuple[Path, Path | None]:
    """Where markdown and HTML go.

    Raises:
        ValueError: a name with an ending that does not fit.
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
    """What a terminal shows: counts, what was left out, and why."""
    counts = report.status_counts()
    lines = [", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))]
    if not any(cell.measurements for cell in report.cells) and not report.others:
        lines.append("no results were found: the table has nothing but the paper's numbers")
    for other in report.others:
        lines.append(f"not beside the paper's: {other.result.name}: {'; '.join(other.reasons)}")
    for name, why in report.foreign:
        lines.append(f"left out: {name}: {why}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Collect and write; returns the exit status."""
    args = parse_args(argv)
    try:
        markdown, page = output_paths(args)
        report = build_report(collect_results(args.sources))
        write_page(markdown, render_markdown(report))
        if page is not None:
            write_page(page, render_html(report))
    except (ValueError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(summarize(report))
    print(f"written: {markdown}" + (f" {page}" if page is not None else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
