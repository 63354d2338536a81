"""Decode every file of a data set completely and list those with problems.

    sce-video verify data/ucf101/train_split1.txt --workers 16
    sce-video verify data/ucf101/test_split1.txt --classes data/ucf101/classes.txt
    sce-video verify my_videos --out report/videos.md

LIST is an annotation list or a folder of videos. The table names the files with these problems:

    missing    there is no such file
    bad        cannot be opened, is truncated or damaged, takes too long, crashes the decoder, or
               has frames of more than --max-pixels
    short      has too few frames or seconds
    container  the container does not match the file extension
    header     the header disagrees with the decoded frames
    duplicate  is listed more than once
    label      has a label that is missing or out of range (with --classes)

The table is written beside LIST, as train_split1.verify.tsv, and the facts about every file to the
records train_split1.verify.sqlite. The same command resumes an interrupted run from them; changed
files are decoded again, other limits need no decoding. --ray runs it on a cluster: docs/jobs.md.
Exit status: 0 no problems, 1 problems, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sce_video.commands.arguments import Parser, add_options, check_source
from sce_video.data_tools.verify import Limits
from sce_video.datasets.readers.limits import MAX_PIXELS
from sce_video.jobs import Workers
from sce_video.utils.command import command
from sce_video.utils.progress import Progress

_LIMITS = Limits()


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        description="Decode every file of a data set completely and list those with problems.",
        epilog="exit status: 0 no problems, 1 problems, 2 wrong usage, 130 interrupted",
    )
    parser.add_argument(
        "list", help="annotation list ('path label' per line), or a folder of videos"
    )
    parser.add_argument(
        "--data-root",
        help="folder the paths are relative to (default: the list's folder or the current one)",
    )
    parser.add_argument("--classes", help="file of class names, one per line: checks the labels")
    parser.add_argument(
        "--workers", type=int, help="processes (default: all cores, of the cluster with --ray)"
    )
    add_options(parser, "--ray")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds per file (default: 120)"
    )
    parser.add_argument(
        "--max-pixels",
        type=int,
        default=MAX_PIXELS,
        help="a file with larger frames (height x width) is bad; it is not decoded (default: "
        f"{MAX_PIXELS:,})",
    )
    parser.add_argument(
        "--min-frames",
        type=int,
        default=_LIMITS.min_frames,
        help=f"a file with fewer frames is short (default: {_LIMITS.min_frames})",
    )
    parser.add_argument(
        "--min-duration",
        type=float,
        default=_LIMITS.min_duration,
        help=f"a file with fewer seconds is short (default: {_LIMITS.min_duration:g})",
    )
    parser.add_argument(
        "--out", type=Path, help="path of the table, .tsv or .md (default: beside the list)"
    )
    parser.add_argument(
        "--restart", action="store_true", help="discard the records and decode all files again"
    )
    return parser.parse_args(argv)


class ProgressBar:
    """Prints the number of files to decode, then the progress, to stderr."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def __call__(self, done: int, total: int, known: int) -> None:
        """Show that ``done`` of ``total`` files are decoded; ``known`` others need no decoding."""
        if done == 0:
            words = f", {known} known or missing" if known else ""
            print(f"verify: {total} files to decode{words}", file=sys.stderr)
            self._progress = Progress(total, "decoding")
        elif self._progress is not None:
            self._progress.advance()
            if done == total:
                self._progress.finish()


def default_table(source: str) -> Path:
    """Path of the table: ``train.verify.tsv`` for ``train.txt``, ``videos.verify.tsv`` for
    ``videos/``."""
    path = Path(os.path.abspath(source))
    name = path.name if path.is_dir() else path.stem
    return path.with_name(f"{name}.verify.tsv")


def count_classes(path: str | None) -> int | None:
    """Number of class names in a file; None without a file."""
    if path is None:
        return None
    if not os.path.isfile(path):
        raise ValueError(f"there is no file of class names {path!r}")
    with open(path, encoding="utf-8") as file:
        names = file.read().rstrip("\n").split("\n")
    if names == [""]:
        raise ValueError(f"the file of class names {path!r} is empty")
    return len(names)


def check_args(args: argparse.Namespace) -> None:
    """Raise ValueError for a number out of range or an unknown table format."""
    if args.workers is not None and args.workers < 1:
        raise ValueError(f"--workers must be at least 1, got {args.workers}")
    if not args.timeout > 0:
        raise ValueError(f"--timeout must be positive seconds, got {args.timeout}")
    if args.max_pixels < 1:
        raise ValueError(f"--max-pixels must be at least 1, got {args.max_pixels}")
    if args.min_frames < 1:
        raise ValueError(f"--min-frames must be at least 1, got {args.min_frames}")
    if not args.min_duration >= 0:
        raise ValueError(f"--min-duration must be 0 or more seconds, got {args.min_duration}")
    if args.out is not None and args.out.suffix not in (".tsv", ".md"):
        raise ValueError(f"--out must end in .tsv or .md, got {str(args.out)!r}")


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: Sequence[str] | None = None) -> int:
    """Verify and return the exit status."""
    args = parse_args(argv)
    check_args(args)
    num_classes = count_classes(args.classes)
    check_source(args.list, args.data_root)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.data_tools.verify import (
        VerifyJob,
        describe_problems,
        find_problems,
        open_records,
        read_videos,
        verify_videos,
        write_table,
    )

    videos, root, lines = read_videos(args.list, args.data_root)
    table = args.out or default_table(args.list)
    paths = (videos.path(index) for index in range(len(videos)))
    job = VerifyJob(root, args.timeout, args.max_pixels)
    workers = Workers(args.workers, args.timeout, args.ray)
    with open_records(table.with_suffix(".sqlite"), restart=args.restart) as store:
        facts = verify_videos(paths, job, store, workers, ProgressBar())
        limits = Limits(args.min_frames, args.min_duration)
        problems = find_problems(videos, facts, limits=limits, lines=lines, num_classes=num_classes)
    write_table(table, problems)
    print(describe_problems(problems, len(videos)))
    print(f"table: {table}")
    return 1 if problems else 0
