"""Classify new videos with a finetuned checkpoint.

    sce-video predict CHECKPOINT VIDEOS... [--csv OUT] [--top 3] [--views 10x3]

VIDEOS are files, folders, whose sub-folders are searched too, tables and rows of them (v.lance,
v.lance/a.mp4), or URLs (s3://bucket/a.mp4), which are downloaded. Network, class names and views
(clips x crops) are read from the checkpoint; the probabilities are those of sce-video test. Prints
the most probable classes of every video; --csv writes them to a file. Files that cannot be decoded
are listed with the reason.
Exit status: 0 predicted, 1 no file could be decoded, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sce_video.commands.arguments import (
    check_exists,
    check_run,
    check_videos,
    class_names_of,
    command_line,
    number,
    progress_bar,
    shown_failures,
)
from sce_video.datasets.sources import is_table
from sce_video.jobs import usable_cores
from sce_video.utils.command import INTERRUPTED, command, printable
from sce_video.utils.files import atomic_file

if TYPE_CHECKING:
    from sce_video.inference.classifier import VideoClassifier
    from sce_video.inference.embed import EmbedOptions


def _views(text: str) -> tuple[int, int]:
    """Clips and crops of ``10x3``."""
    if re.fullmatch(r"[1-9]\d{0,3}x[13]", text) is None:
        raise argparse.ArgumentTypeError(
            f"must be CLIPSxCROPS with 1 or 3 crops, for example 10x3, got {text}"
        )
    clips, crops = map(int, text.split("x"))
    return clips, crops


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser, add = command_line("Classify new videos with a finetuned checkpoint.")
    add("checkpoint", "checkpoint of a finetuning, or the folder of its run (its newest one)")
    add("videos", "files, folders, tables (v.lance), URLs", nargs="+")
    add("--csv OUT", "write a row per file instead of printing it")
    add("--top", "classes per video (default: 3)", number(int, 1), default=3)
    views = "for example 10x3 or 1x1, the fastest (default: those of the test in its config)"
    add("--views CLIPSxCROPS", views, _views)
    add("--classes FILE", "class names, one per line, if the checkpoint has none")
    workers = "decoding processes (default: one per core, at most 8)"
    add("--workers", workers, number(int, 0), default=min(8, usable_cores()))
    add.shared("--timeout", "--max-views", "--config", "--device")
    return parser.parse_args(argv)


def find_videos(given: list[str]) -> list[str]:
    """The given videos, and those of the folders and tables, in the given order.

    Raises:
        FileNotFoundError: there is no file, folder, object or row of that name.
        ValueError: a folder holds no video.
        ObjectStoreError, TableError: a store or a table cannot be read.
    """
    from sce_video.datasets import list_videos, video_exists

    paths = []
    for path in given:
        if is_table(path) or os.path.isdir(path):
            found = list_videos(path)
            paths += sorted(os.path.join(path, found.path(i)) for i in range(len(found)))
        elif video_exists(path):
            paths.append(path)
        else:
            raise FileNotFoundError(f"no video or folder at {path}")
    return paths


def _loaded(args: argparse.Namespace) -> tuple[VideoClassifier, EmbedOptions]:
    """The classifier, and its views or those of ``--views``."""
    from sce_video.inference.classifier import load_classifier

    classes = class_names_of(args.classes)
    classifier = load_classifier(args.checkpoint, args.config, args.device, classes)
    given = {"num_workers": args.workers, "timeout": args.timeout, "max_views": args.max_views}
    if args.views is not None:
        clips, crops = args.views
        if classifier.settings.clip_duration is None and clips != 1:
            raise ValueError(
                "this network sees the whole video as one clip: --views "
                f"1x{crops}, not {clips}x{crops}"
            )
        given |= {"num_clips": clips, "num_crops": crops}
    if not classifier.named:
        print(
            f"sce-video predict: {classifier.checkpoint} contains no class names (its training "
            "read lists, not folders): classes are numbers, --classes FILE names them",
            file=sys.stderr,
        )
    return classifier, replace(classifier.options, **given)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Predict, print and write; returns the exit status."""
    args = parse_args(argv)
    for path in args.videos:
        check_videos(path) if os.path.isdir(path) else check_exists(path, "video or folder")
    check_exists(args.classes, "file of class names")
    check_run(args.checkpoint)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.inference.classifier import top_classes
    from sce_video.inference.embed import iterate_embeddings

    # Before the network is loaded: a missing file is said at once.
    paths = find_videos(args.videos)
    classifier, options = _loaded(args)
    failures: list[tuple[str, str]] = []
    top = min(args.top, len(classifier.classes))
    interrupted = False
    with ExitStack() as stack:
        write = None
        if args.csv is not None:
            unfinished = stack.enter_context(atomic_file(args.csv))
            how: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
            write = csv.writer(stack.enter_context(open(unfinished, "w", **how))).writerow
            names = ((f"class_{n + 1}", f"probability_{n + 1}") for n in range(top))
            write(["path", *itertools.chain(*names), "failure"])
        count = stack.enter_context(progress_bar("predicting"))
        try:
            rows = iterate_embeddings(classifier, paths, options)
            for path, (probabilities, reason) in zip(paths, rows, strict=True):
                found = []
                if probabilities is None:
                    failures.append((path, reason))
                else:
                    found = top_classes(probabilities, classifier.classes, top)
                if write is not None:
                    cells = [cell for name, p in found for cell in (name, f"{p:.6f}")]
                    write([path, *cells, *[""] * (2 * (top - len(found))), reason])
                    count(len(paths), not found)
                elif found:
                    words = ", ".join(f"{name} {p:.3f}" for name, p in found)
                    print(printable(f"{path}: {words}"), flush=True)
        except KeyboardInterrupt:  # inside: the file is kept
            interrupted = True
    if interrupted:
        kept = f"; {args.csv} has the videos so far" if args.csv else ""
        print(f"\nsce-video predict: interrupted{kept}", file=sys.stderr)
        return INTERRUPTED
    where = f", written to {args.csv}" if args.csv else ""
    lines = [f"predict: {len(paths) - len(failures)} of {len(paths)} files classified{where}"]
    lines += shown_failures(failures, f", in {args.csv}" if args.csv else "")
    # Without --csv the standard output is the predictions alone.
    print("\n".join(map(printable, lines)), file=sys.stdout if args.csv else sys.stderr)
    return int(len(failures) == len(paths))
