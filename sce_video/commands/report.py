"""Write the page of a run, a table of results next to the paper's numbers, a page of several runs.

    sce-video report RUN
    sce-video report RUN --features features.npz
    sce-video report work_dirs
    sce-video report work_dirs/ucf101 retrieval.json --out reports
    sce-video report work_dirs --out results.md --html results.html
    sce-video compare RUN RUN ... --out compare.html

Reads every JSON file with results below the folders: results.json of tools/test.py, splits.json of
tools/finetune_splits.py, and the output of tools/retrieve.py and tools/transfer.py --json. Every
number of the paper that a recipe of this repository reproduces is listed, measured or not; those
on images, or on videos, are one line if no result is on them. A result stands beside a number only
if network, pretraining (data, method, epochs) and test set are known and those of the paper. The
others follow by test set, random weights beside pretrained ones, with the reason.

A folder that holds a training gets a page, RUN/run.html, also while it trains: state and alarms,
curves, views, nearest neighbours, a map of the features, data, command and settings. Without a
result in it there is only the page. `compare` shows curves, results and differences of the configs
of several runs, which may be running still, and tests differences of results on the outcomes of the
same videos; runs that differ in their seed only count as one group, with their mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from sce_video.commands.arguments import Parser, number
from sce_video.reporting.paper_cells import Report, assign_results
from sce_video.reporting.report_pages import render_html, render_markdown, write_report
from sce_video.reporting.result_files import collect_results
from sce_video.utils.command import command
from sce_video.utils.run_files import check_run_folder, is_run_folder


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        description="Write the page of a run, and collect results into one table next to the "
        "paper's numbers."
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
    page = parser.add_argument_group("the page of a run")
    page.add_argument(
        "--videos",
        type=number(int, 0),
        default=64,
        metavar="N",
        help="training videos that are embedded with the newest checkpoint and shown (default: "
        "%(default)s); 0 builds no network and reads no video",
    )
    page.add_argument(
        "--features",
        type=Path,
        metavar="FILE.npz",
        help="features of sce-video embed for the map, of a checkpoint of this run",
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


def describe(report: Report) -> str:
    """Text for the terminal: cells by status, then what is not compared or skipped, and why."""

    def counts(found: Mapping[str, int]) -> str:
        return ", ".join(f"{status}: {count}" for status, count in sorted(found.items()))

    lines = [counts(report.status_counts())] if report.with_videos else []
    if report.with_images:
        lines.append(f"images: {counts(report.status_counts(report.images))}")
    cells = (*report.cells, *report.images)
    if not any(cell.measurements for cell in cells) and not report.others:
        lines.append("no results were found: the table holds the paper's numbers only")
    for other in report.others:
        lines.append(f"not compared: {other.result.name}: {'; '.join(other.reasons)}")
    for name, why in report.skipped:
        lines.append(f"skipped: {name}: {why}")
    return "\n".join(lines)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Collect and write; returns the exit status."""
    args = parse_args(argv)
    markdown, page = output_paths(args)
    runs = [source for source in args.sources if is_run_folder(source)]
    if args.features is not None and len(runs) != 1:
        raise ValueError(f"--features is for the folder of one training, got {len(runs)} of them")
    collection = collect_results(args.sources)
    if runs:
        # Imported here: tables of results need no torch.
        from sce_video.runs.page import PageOptions, write_run_page

        options = PageOptions(args.videos, args.features)
        for run in runs:
            print(f"written: {write_run_page(run, options)}", flush=True)
    # Only runs without results: their pages are all that was asked for.
    if len(runs) == len(args.sources) and not collection.results and args.out is None:
        return 0
    report = assign_results(collection)
    write_report(markdown, render_markdown(report))
    if page is not None:
        write_report(page, render_html(report))
    print(describe(report))
    print(f"written: {markdown}" + (f" {page}" if page is not None else ""))
    return 0


@command
def compare_main(argv: Sequence[str] | None = None) -> int:
    """Write the page of several runs; returns the exit status."""
    parser = Parser(
        description="Curves, results and differences of the configs of several runs, on one page."
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of trainings, two or more")
    parser.add_argument(
        "--out", type=Path, default=Path("compare.html"), help="HTML file (default: compare.html)"
    )
    args = parser.parse_args(argv)
    if len(args.runs) < 2:
        raise ValueError("give two runs or more; sce-video report RUN shows a single one")
    for run in args.runs:
        check_run_folder(run)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.runs.compare import write_comparison

    for line in write_comparison(args.runs, args.out).lines():
        print(line)
    print(f"written: {args.out}")
    return 0
