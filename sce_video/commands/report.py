"""Write the page of a run, a table of results next to the paper's numbers, a page of several runs.

    sce-video report RUN
    sce-video report RUN --features features.npz
    sce-video report work_dirs
    sce-video report work_dirs/ucf101 retrieval.json --out reports
    sce-video report work_dirs --out results.md --html results.html
    sce-video compare RUN RUN ... --out compare.html

Reads every JSON file with results below the folders: results.json of tools/test.py, splits.json of
tools/finetune_splits.py, the output of tools/retrieve.py and tools/transfer.py --json. Every number
of the paper that a recipe reproduces is listed, measured or not; a result stands beside it only if
network, pretraining and test set are those of the paper. The others follow, with the reason.

A folder that holds a training gets a page, RUN/run.html, also while it trains. `compare` shows
curves, results and differences of the configs of several runs, and tests differences of results on
the same videos; runs that differ in their seed only count as one group, with their mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sce_video.commands.arguments import command_line, number
from sce_video.reporting.paper_cells import Report, assign_results
from sce_video.reporting.report_pages import render_html, render_markdown, write_report
from sce_video.reporting.result_files import collect_results
from sce_video.utils.command import command
from sce_video.utils.run_files import check_run_folder, is_run_folder


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
    parser, add = command_line(
        "Write the page of a run, and collect results into one table next to the paper's numbers."
    )
    add("sources WORK_DIR", "folders to search, or JSON files", nargs="+")
    where = "markdown file, or folder for report.md and report.html (default: the first WORK_DIR)"
    add("--out", where, Path)
    add("--html", "HTML file (default: report.html, if --out is a folder)", Path)
    page = add.group("the page of a run")
    count = "training videos shown, by the newest checkpoint (default: 64); 0 reads no video"
    page("--videos N", count, number(int, 0), default=64)
    page("--features FILE.npz", "of sce-video embed, of a checkpoint of this run: the map", Path)
    args = parser.parse_args(argv)
    out, page = args.out, args.html
    if page is not None and page.suffix not in (".html", ".htm"):
        raise ValueError(f"--html must end in .html, got {str(page)!r}")
    if out is None:
        first = Path(args.sources[0])
        out = first if first.is_dir() else first.parent
    if out.is_dir() or not out.suffix:
        out, page = out / "report.md", page or out / "report.html"
    elif out.suffix != ".md":
        raise ValueError(f"--out must be a folder or end in .md, got {str(out)!r}")
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
    write_report(out, render_markdown(report))
    if page is not None:
        write_report(page, render_html(report))
    print(describe(report))
    print(f"written: {out}" + (f" {page}" if page is not None else ""))
    return 0


@command
def compare_main(argv: Sequence[str] | None = None) -> int:
    """Write the page of several runs; returns the exit status."""
    parser, add = command_line(
        "Curves, results and differences of the configs of several runs, on one page."
    )
    add("runs RUN", "folders of trainings, two or more", nargs="+")
    add("--out", "HTML file (default: compare.html)", Path, default=Path("compare.html"))
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
