"""Build or update the index of a folder or a table of videos.

    sce-video index VIDEOS --checkpoint CKPT.pth --out INDEX
    sce-video index VIDEOS --checkpoint CKPT.pth --out INDEX --windows 5s --stride 2.5s
    sce-video index LABELS.csv --checkpoint CKPT.pth --out INDEX [--data-root VIDEOS]
    sce-video index VIDEOS --out INDEX --check

With --windows the rows of the index are moments of the videos, with LABELS.csv (path,start,end,
label) the segments that it lists, with their labels (docs/long_videos.md).
Running it again embeds only new and changed videos; an interrupted run resumes where it stopped,
--ray runs it on a cluster (docs/jobs.md).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sce_video.commands.arguments import RUN, command_line, given_windows, number, output
from sce_video.datasets.labelled import LabelledVideos, read_labelled
from sce_video.datasets.named_files import check_run, check_videos
from sce_video.datasets.sources import is_table
from sce_video.datasets.video_list import VIDEO_EXTENSIONS, video_of
from sce_video.jobs import usable_cores
from sce_video.utils.command import command, printable, progress_bar, shown_failures

INTERRUPTED = "interrupted; finished videos are saved, the same command resumes from here"
_PER_GPU = 8  # processes of this machine


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; an error for options or paths that cannot be meant."""
    parser, add = command_line("build or update the index of a folder")
    add("dir", "folder of videos, sub-folders too; table (v.lance); list or CSV file with labels")
    add("--checkpoint", f"{RUN}; an update needs none: the index names its own")
    add("--out", "folder of the index", output(str), required=True)
    add.shared("--data-root", "--all-files", "--config")
    add("--clips", "clips per video (default: those of the index, else 4)", number(int, 1))
    add("--crops", "crops per clip (default: likewise, else 1)", int, choices=(1, 3))
    add.shared("--windows", "--stride", "--shots")
    workers = "0: none besides this one (default: a core each, at most 8 per GPU; with --ray all)"
    add("--workers", workers, number(int, 0))
    add.shared("--timeout", "--max-views", "--ray", "--processes-per-gpu")
    add("--rebuild", "discard the existing index", bool)
    add("--retry-failed", "try unreadable files again, even if unchanged", bool)
    table = "features in a Lance table, for millions of videos; an index that exists moves there"
    add("--table", table, bool)
    add("--approximate", "search the table by a vector index (default: above 200,000 videos)", bool)
    add("--check", "read the index alone and report damaged files (exit status 1)", bool)
    add("--column NAME", "of a table: also write the features into its column feature_NAME")
    add.shared("--device")
    args = parser.parse_args(argv)
    if args.check:
        return args
    if args.column is not None and not is_table(args.dir):
        raise ValueError(f"--column names a column of a table of videos; {args.dir} is none")
    if args.dir.lower().endswith(VIDEO_EXTENSIONS) and os.path.isfile(args.dir):
        check_videos(args.dir)
    if os.path.isfile(args.dir):
        if args.windows is not None:
            raise ValueError(f"--windows divides whole videos, and {args.dir} lists segments")
    elif args.data_root is not None and (os.path.isdir(args.dir) or is_table(args.dir)):
        raise ValueError(f"--data-root is that of a list or a CSV file; {args.dir} is none")
    elif args.data_root is not None or args.dir.lower().endswith((".csv", ".tsv", ".txt")):
        raise ValueError(
            f"there is no list or CSV file {args.dir!r}: if it was moved, give its new path, and "
            "with --data-root the folder of its videos"
        )
    else:
        check_videos(args.dir)
    given_windows(args)
    if args.checkpoint is not None:
        check_run(args.checkpoint)
    elif args.rebuild or not any(Path(args.out).glob("features*")):
        raise ValueError(f"give --checkpoint: there is no index in {args.out} that names one")
    return args


@command(interrupted=INTERRUPTED)
def main(argv: Sequence[str] | None = None) -> int:
    """Build or update an index and print what was done; returns the exit status.

    It is 0 with unreadable files, too: these are listed. With --check it is 1 for a damaged index.
    """
    args = parse_args(argv)
    if args.check:
        return _check(args.out)
    source: str | LabelledVideos = args.dir
    if os.path.isfile(args.dir):
        source = read_labelled(args.dir, args.data_root, fewest=1)
        _tell_outside(source)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.find.index import build_index, find_store, read_index
    from sce_video.find.search import model_of_index
    from sce_video.inference.embed import ViewOptions
    from sce_video.inference.model import load_model

    stored = None
    if not args.rebuild and find_store(Path(args.out)) is not None:
        stored = read_index(args.out, root=args.dir)
    views = {"num_clips": args.clips, "num_crops": args.crops}
    options = replace(
        ViewOptions() if stored is None else stored.options,
        **{name: value for name, value in views.items() if value is not None},
        max_views=args.max_views,
        timeout=args.timeout,
        num_workers=_default_workers(args) if args.workers is None else args.workers,
    )
    windows = given_windows(args, None if stored is None else stored.windows)
    if args.column is not None and windows is not None:
        raise ValueError("--column holds a feature of each whole video: give it without --windows")
    if args.checkpoint is not None:
        model = load_model(args.checkpoint, args.config, args.device)
    elif stored is not None:
        model = model_of_index(stored, None, args.config, args.device)
    else:
        raise ValueError(f"give --checkpoint: there is no index in {args.out} that names one")
    names = "rebuild", "retry_failed", "ray", "processes_per_gpu", "table", "approximate"
    with progress_bar("embedding") as count:
        report = build_index(
            *(model, source, args.out, options),
            **{name: getattr(args, name) for name in names},
            on_video=lambda done, total, reason: count(total, bool(reason)),
            windows=windows,
        )
    rows = "" if report.windows is None else f"{report.windows} windows of "
    lines = [
        f"{args.out}: {rows}{report.videos} videos in the index, "
        f"{len(report.failures)} unreadable files",
        f"  this run: {report.new} new, {report.changed} changed, {report.kept} kept, "
        f"{report.dropped} dropped",
    ]
    if isinstance(source, LabelledVideos):
        lines += [f"  {line}" for line in source.repeated("; its first label counts")]
    if report.incomplete:
        lines.append(f"  {len(report.incomplete)} files with damaged or missing frames")
    problems = [*report.failures, *report.incomplete]
    lines += shown_failures(problems, f", in {os.path.join(args.out, 'index.json')}")
    print("\n".join(map(printable, lines)))
    if args.column is not None:
        _write_column(args)
    return 0


def _check(out: str) -> int:
    """Print which files of an index are damaged; returns 1 if any is."""
    from sce_video.find.index import find_store

    store = find_store(Path(out))
    if store is None:
        raise ValueError(f"there is no index in {out}: give the folder of one with --out")
    damaged = store.check()
    lines = damaged or [f"{store.file}: all files are intact"]
    if damaged:
        lines.append("Restore them from a copy, or build the index again with --rebuild.")
    print("\n".join(map(printable, lines)))
    return 1 if damaged else 0


def _tell_outside(listed: LabelledVideos) -> None:
    """Print how many videos are outside the root, of which the page shows no files."""
    root = os.path.realpath(listed.root)
    files = {os.path.normpath(video_of(os.path.join(root, path))) for path in listed.paths()}
    outside = sorted(f for f in files if os.path.relpath(f, root).split(os.sep)[0] == "..")
    if outside:
        above = os.path.commonpath([root, *outside])
        text = (
            f"{len(outside)} of {len(files)} videos of {listed.source} are outside {root}, the "
            f"first is {outside[0]}: the search page will not show them. Give --data-root {above}, "
            "and paths that are absolute or relative to it"
        )
        print(printable(text), flush=True)


def _write_column(args: argparse.Namespace) -> None:
    from sce_video.find.index import read_index
    from sce_video.find.table_store import write_feature_column

    index = read_index(args.out, root=args.dir)
    found = index.paths, index.features, index.header
    written = write_feature_column(index.root, args.column, *found)
    print(f"{index.root}: {written} features in the column feature_{args.column}")


def _default_workers(args: argparse.Namespace) -> int:
    """Processes without ``--workers``; 0 on a cluster stands for all of it."""
    if args.ray is not None:
        return 0
    import torch

    from sce_video.inference.model import select_device

    if select_device(args.device).type != "cuda":
        return usable_cores()
    gpus = 1 if ":" in (args.device or "") else torch.cuda.device_count()
    return min(usable_cores(), _PER_GPU * gpus)
