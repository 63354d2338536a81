"""Decode every file of a data set completely and list those with problems.

    sce-video verify data/ucf101/train_split1.txt --workers 16
    sce-video verify data/ucf101/test_split1.txt --classes data/ucf101/classes.txt
    sce-video verify my_videos --out report/videos.md

LIST is an annotation list or a folder of videos. The table, train_split1.verify.tsv beside LIST,
names files that are missing, bad (cannot be opened, truncated, more than a tenth of the frames
damaged, too slow or too large), damaged in fewer frames, short, in another container or with
another header than what is decoded, listed more than once, or have a wrong label (with --classes).
The facts about every file go to train_split1.verify.sqlite, from which the same command resumes an
interrupted run; changed files are decoded again, other limits need no decoding. --ray runs it on a
cluster: docs/jobs.md.
Exit status: 0 no problems, 1 problems, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sce_video.commands.arguments import (
    check_source,
    chosen,
    class_names_of,
    command_line,
    file_progress,
    number,
)
from sce_video.data_tools.verify import Limits
from sce_video.datasets.readers.base import MAX_PIXELS
from sce_video.jobs import Workers
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser, add = command_line(
        "Decode every file of a data set completely and list those with problems.",
        epilog="exit status: 0 no problems, 1 problems, 2 wrong usage, 130 interrupted",
    )
    add("list", "annotation list ('path label' per line), or a folder of videos")
    add.shared("--data-root", "--all-files")
    add("--classes", "file of class names, one per line: checks the labels")
    add.shared("--workers", "--ray")
    add("--timeout", "seconds per file (default: 120)", number(float, above=0), default=120.0)
    larger = f"a file with larger frames (height x width) is bad (default: {MAX_PIXELS:,})"
    add("--max-pixels", larger, number(int, 1), default=MAX_PIXELS)
    frames = "a file with fewer frames is short (default: %(default)s)"
    add("--min-frames", frames, number(int, 1))
    seconds = "a file with fewer seconds is short (default: %(default)g)"
    add("--min-duration", seconds, number(float, 0))
    parser.set_defaults(**asdict(Limits()))
    add("--out", "path of the table, .tsv or .md (default: beside the list)", Path)
    add("--restart", "discard the records and decode all files again", bool)
    return parser.parse_args(argv)


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: Sequence[str] | None = None) -> int:
    """Verify and return the exit status."""
    args = parse_args(argv)
    if args.out is not None and args.out.suffix not in (".tsv", ".md"):
        raise ValueError(f"--out must end in .tsv or .md, got {str(args.out)!r}")
    if args.classes is not None and not os.path.isfile(args.classes):
        raise ValueError(f"there is no file of class names {args.classes!r}")
    classes = class_names_of(args.classes)
    if classes == [""]:
        raise ValueError(f"the file of class names {args.classes!r} is empty")
    check_source(args.list, args.data_root)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.data_tools.verify import (
        VerifyJob,
        describe_problems,
        find_problems,
        listed_videos,
        open_records,
        verify_videos,
        write_table,
    )

    videos, root, lines = listed_videos(args.list, args.data_root)
    source = Path(os.path.abspath(args.list))
    name = source.name if source.is_dir() else source.stem
    table = args.out or source.with_name(f"{name}.verify.tsv")
    paths = (videos.path(index) for index in range(len(videos)))
    job = VerifyJob(root, args.timeout, args.max_pixels)
    workers = Workers(args.workers, args.timeout, args.ray)
    show = file_progress("verify", "decoding")
    with open_records(table.with_suffix(".sqlite"), restart=args.restart) as store:
        facts = verify_videos(
            *(paths, job, store, workers),
            lambda done, total, known: show(done + known, total + known, False),
        )
        problems = find_problems(
            *(videos, facts),
            limits=chosen(Limits, args),
            lines=lines,
            num_classes=None if classes is None else len(classes),
        )
    write_table(table, problems)
    print(describe_problems(problems, len(videos)))
    print(f"table: {table}")
    return 1 if problems else 0
