"""Decode every file of a data set and list what is not sound.

    python tools/data/verify.py data/ucf101/train_split1.txt --workers 16
    python tools/data/verify.py data/ucf101/test_split1.txt --classes data/ucf101/classes.txt
    python tools/data/verify.py my_videos --out report/videos.md

LIST is an annotation list or a folder of videos. The table says which files

    missing    are not there
    bad        cannot be opened, break off or are damaged, take too long, or crash the decoder
    short      have too few frames or seconds
    container  are in another container than their ending says
    header     have a header that disagrees with what decodes
    duplicate  are listed more than once
    label      have a label out of range (with --classes)

It is written beside LIST, as train_split1.verify.tsv, and what was found of every file to
train_split1.verify.jsonl. From that a run that was broken off goes on; changed files are decoded
again, and other limits need no decoding.
Exit status: 0 all sound, 1 something is not, 2 wrong usage, 130 stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sce_video.utils.progress import Progress
from sce_video.data_tools.verification import (
    Journal,
    Limits,
    find_problems,
    read_videos,
    summarize,
    verify_videos,
    write_table,
)

_LIMITS = Limits()


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Decode every file of a data set and list what is not sound.",
        epilog="exit status: 0 all sound, 1 something is not, 2 wrong usage, 130 stopped",
    )
    parser.add_argument("list", help="annotation list ('path label' a line), or a folder of videos")
    parser.add_argument(
        "--data-root",
        help="folder the paths are relative to (default: the list's folder or the current one)",
    )
    parser.add_argument("--classes", help="file of class names, one a line: checks the labels")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)"
    )
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds a file may take (default: 120)"
    )
    parser.add_argument(
        "--min-frames",
        type=int,
        default=_LIMITS.min_frames,
        help=f"a file with fewer is short (default: {_LIMITS.min_frames})",
    )
    parser.add_argument(
        "--min-duration",
        type=float,
        default=_LIMITS.min_duration,
        help=f"a file of fewer seconds is short (default: {_LIMITS.min_duration:g})",
    )
    parser.add_argument(
        "--out", type=Path, help="the table, .tsv or .md (default: beside the list)"
    )
    parser.add_argument(
        "--restart", action="store_true", help="decode everything again, also what is known"
    )
    return parser.parse_args(argv)


class ProgressBar:
    """Says what is to be done, then how far it is, on stderr."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def __call__(self, done: int, total: int, known: int) -> None:
        """``done`` of ``total`` files are decoded; ``known`` others needed no decoding."""
        if done == 0:
            words = f", {known} known or missing" if known else ""
            print(f"verify: {total} files to decode{words}", file=sys.stderr)
            self._progress = Progress(total, "decoding")
        elif self._progress is not None:
            self._progress.advance()
            if done == total:
                self._progress.finish()


def default_table(source: str) -> Path:
    """Where the table goes: ``train.txt`` -> ``train.verify.tsv``, ``videos/`` beside it."""
    path = Path(os.path.abspath(source))
    name = path.name if path.is_dir() else path.stem
    return path.with_name(f"{name}.verify.tsv")


def count_classes(path: str | None) -> int | None:
    """Lines of a file of class names; None without one."""
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
    """Raise ValueError for a number out of range or a table that would replace the list."""
    if args.workers < 1:
        raise ValueError(f"--workers must be at least 1, got {args.workers}")
    if not args.timeout > 0:
        raise ValueError(f"--timeout must be positive seconds, got {args.timeout}")
    if args.min_frames < 1:
        raise ValueError(f"--min-frames must be at least 1, got {args.min_frames}")
    if not args.min_duration >= 0:
        raise ValueError(f"--min-duration must be 0 or more seconds, got {args.min_duration}")
    if args.out is not None and args.out.suffix not in (".tsv", ".md"):
        raise ValueError(f"--out must end in .tsv or .md, got {str(args.out)!r}")


def main(argv: Sequence[str] | None = None) -> int:
    """Verify; returns the exit status."""
    args = parse_args(argv)
    try:
        check_args(args)
        num_classes = count_classes(args.classes)
        videos, root, lines = read_videos(args.list, args.data_root)
        table = args.out or default_table(args.list)
        paths = [videos.path(index) for index in range(len(videos))]
        with Journal(table.with_suffix(".jsonl"), restart=args.restart) as journal:
            facts = verify_videos(
                paths,
                root,
                journal,
                workers=args.workers,
                timeout=args.timeout,
                on_progress=ProgressBar(),
            )
        limits = Limits(args.min_frames, args.min_duration)
        problems = find_problems(videos, facts, limits=limits, lines=lines, num_classes=num_classes)
        write_table(table, problems)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"verify: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nverify: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    print(summarize(problems, len(videos)))
    print(f"table: {table}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
