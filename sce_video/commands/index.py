"""Build or update the index of a folder or a table of videos.

    sce-video index VIDEOS --checkpoint CKPT.pth --out INDEX
    sce-video index VIDEOS --checkpoint CKPT.pth --out INDEX --windows 5s --stride 2.5s

With --windows the rows of the index are moments of the videos (docs/long_videos.md).
Running it again embeds only new and changed videos; an interrupted run resumes where it stopped,
--ray runs it on a cluster (docs/jobs.md).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.commands.arguments import (
    Parser,
    add_options,
    check_run,
    check_videos,
    given_windows,
    number,
    progress_bar,
    shown_failures,
)
from sce_video.datasets.sources import is_table
from sce_video.jobs import usable_cores
from sce_video.utils.command import command
from sce_video.utils.printable import printable

if TYPE_CHECKING:
    from sce_video.find.index import IndexReport, VideoIndex
    from sce_video.inference.embed import EmbedOptions

INTERRUPTED = "interrupted; finished videos are saved, the same command resumes from here"
_PER_GPU = 8  # processes of this machine


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(description="build or update the index of a folder")
    parser.add_argument("dir", help="folder of videos, sub-folders too; or a table (v.lance)")
    parser.add_argument(
        "--checkpoint",
        help="pretrained or finetuned checkpoint, or the folder of a run, or a model of "
        "transformers (hf:FOLDER, hf:OWNER/MODEL); an update needs none: the index names its own",
    )
    parser.add_argument("--out", required=True, help="folder of the index")
    add_options(parser, "--config")
    parser.add_argument(
        "--clips", type=number(int, 1), help="clips per video (default: those of the index, else 4)"
    )
    parser.add_argument(
        "--crops", type=int, choices=(1, 3), help="crops per clip (default: likewise, else 1)"
    )
    add_options(parser, "--windows", "--stride", "--shots")
    parser.add_argument(
        "--workers",
        type=number(int, 0),
        help="processes that decode and embed; 0 for none besides this one (default: one per core, "
        "at most 8 per GPU; with --ray the whole cluster)",
    )
    add_options(parser, "--timeout", "--max-views", "--ray", "--processes-per-gpu")
    parser.add_argument("--rebuild", action="store_true", help="discard the existing index")
    parser.add_argument(
        "--retry-failed", action="store_true", help="try unreadable files again, even if unchanged"
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="keep the features in a Lance table, for millions of videos; an index that exists is "
        "moved there, and stays (pip install 'sce-video[lance]')",
    )
    parser.add_argument(
        "--approximate",
        action="store_true",
        help="search the table by a vector index (default: above 200,000 videos)",
    )
    parser.add_argument(
        "--column",
        metavar="NAME",
        help="of a table of videos: also write the features into its column feature_NAME",
    )
    add_options(parser, "--device")
    return parser.parse_args(argv)


def check(args: argparse.Namespace) -> None:
    """Raise ValueError or FileNotFoundError for options or paths that cannot be meant."""
    if args.column is not None and not is_table(args.dir):
        raise ValueError(f"--column names a column of a table of videos; {args.dir} is none")
    check_videos(args.dir)
    given_windows(args)
    if args.checkpoint is not None:
        check_run(args.checkpoint)
    elif args.rebuild or not any(Path(args.out).glob("features*")):
        raise ValueError(f"give --checkpoint: there is no index in {args.out} that names one")


@command(interrupted=INTERRUPTED)
def main(argv: Sequence[str] | None = None) -> int:
    """Build or update an index and print what was done; returns the exit status."""
    args = parse_args(argv)
    check(args)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    import numpy as np

    from sce_video.find.index import build_index, find_store, read_index
    from sce_video.find.search import model_of_index
    from sce_video.find.table_store import write_feature_column
    from sce_video.inference.model import load_model

    stored = None
    if not args.rebuild and find_store(Path(args.out)) is not None:
        stored = read_index(args.out, root=args.dir)
    options = index_options(args, stored)
    windows = given_windows(args, None if stored is None else stored.windows)
    if args.column is not None and windows is not None:
        raise ValueError("--column holds a feature of each whole video: give it without --windows")
    if args.checkpoint is not None:
        model = load_model(args.checkpoint, args.config, args.device)
    elif stored is not None:
        model = model_of_index(stored, None, args.config, args.device)
    else:
        raise ValueError(f"give --checkpoint: there is no index in {args.out} that names one")
    with progress_bar("embedding") as count:
        report = build_index(
            model,
            args.dir,
            args.out,
            options,
            rebuild=args.rebuild,
            retry_failed=args.retry_failed,
            on_video=lambda done, total, reason: count(total, bool(reason)),
            ray=args.ray,
            processes_per_gpu=args.processes_per_gpu,
            table=args.table,
            approximate=args.approximate,
            windows=windows,
        )
    print(describe(report, args.out))
    if args.column is not None:
        index = read_index(args.out, root=args.dir)
        features = index.features[np.arange(len(index))]
        header = index.stored.header
        written = write_feature_column(index.root, args.column, index.paths, features, header)
        print(f"{index.root}: {written} features in the column feature_{args.column}")
    return 0


def index_options(args: argparse.Namespace, stored: VideoIndex | None) -> EmbedOptions:
    """The options of the command line, over the views of the existing index."""
    from sce_video.inference.embed import EmbedOptions

    defaults = EmbedOptions() if stored is None else stored.options
    return EmbedOptions(
        num_clips=defaults.num_clips if args.clips is None else args.clips,
        num_crops=defaults.num_crops if args.crops is None else args.crops,
        max_views=args.max_views,
        num_workers=default_workers(args) if args.workers is None else args.workers,
        timeout=args.timeout,
    )


def default_workers(args: argparse.Namespace) -> int:
    """Processes without ``--workers``; 0 on a cluster stands for all of it."""
    if args.ray is not None:
        return 0
    import torch

    from sce_video.inference.model import select_device

    if select_device(args.device).type != "cuda":
        return usable_cores()
    gpus = 1 if ":" in (args.device or "") else torch.cuda.device_count()
    return min(usable_cores(), _PER_GPU * gpus)


def describe(report: IndexReport, out: str) -> str:
    """Text for the terminal: what a run did."""
    rows = "" if report.windows is None else f"{report.windows} windows of "
    lines = [
        f"{out}: {rows}{report.videos} videos in the index, "
        f"{len(report.failures)} unreadable files",
        f"  this run: {report.new} new, {report.changed} changed, {report.kept} kept, "
        f"{report.dropped} dropped",
    ]
    if report.incomplete:
        lines.append(f"  {len(report.incomplete)} files of which some windows are missing")
    problems = [*report.failures, *report.incomplete]
    lines += shown_failures(problems, f", in {os.path.join(out, 'index.json')}")
    return "\n".join(map(printable, lines))
