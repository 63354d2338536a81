"""Classify new videos with a finetuned checkpoint.

    sce-video predict CHECKPOINT VIDEOS... [--csv OUT] [--top 3] [--views 10x3]
    sce-video predict CHECKPOINT VIDEOS... --windows 2s --stride 0.5s [--csv OUT] [--html PAGE]

VIDEOS are files, folders, whose sub-folders are searched too, tables and rows of them (v.lance,
v.lance/a.mp4), or URLs (s3://bucket/a.mp4), which are downloaded. Network, class names and views
(clips x crops) are read from the checkpoint; the probabilities are those of sce-video test. Prints
the most probable classes of every video; --csv writes them to a file. Files that cannot be decoded
are listed with the reason.

With --windows long videos are divided, and the output are segments: path, start, end, label, score.
A class has one where the mean score of the windows that show a moment reaches --threshold, for
--min-length or longer; --segments LABELS.csv (path,start,end,label) chooses both on labelled
segments. A class named "background" makes no segments.
Exit status: 0 predicted, 1 no file could be decoded, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import os
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sce_video.commands.arguments import command_line, number
from sce_video.datasets.clip_sampling import Windows, parse_seconds
from sce_video.datasets.named_files import check_exists, check_run, check_videos, class_names_of
from sce_video.datasets.segments import Segment, check_segment_files, numbered_segments
from sce_video.datasets.sources import is_table
from sce_video.jobs import usable_cores
from sce_video.utils.command import INTERRUPTED, command, printable, progress_bar, shown_failures
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
    add.shared("--timeout", "--max-views", "--config", "--device", "--all-files")
    long = add.group("segments of long videos")
    long("--windows TIME", "score windows of this length, 2s or 0:30, and join them to segments")
    long("--stride TIME", "from one window to the next (default: a quarter of a window)")
    long("--threshold P", "score of a segment (default: 0.5)", number(float, above=0, most=1))
    long("--min-length TIME", "shortest segment (default: 0)", parse_seconds)
    chosen = "CSV of path,start,end,label: choose both, and print the segment mAP on these videos"
    long("--segments LABELS", chosen)
    long("--data-root", "folder the paths of LABELS are relative to (default: its own)")
    background = "class that makes no segments (default: background)"
    long("--background CLASS", background, default="background")
    long("--json OUT", "scores of all windows, and segments")
    long("--html PAGE", "player and time line, a lane per class")
    long("--clips DIR", "write the segments as files, exact to the frame")
    long("--fast", "with --clips: cut at key frames, without re-encoding", bool)
    args = parser.parse_args(argv)
    only = ("stride", "threshold", "min_length", "segments", "data_root", "json", "html", "clips")
    given = [name for name in only if getattr(args, name) is not None]
    if given and args.windows is None:
        raise ValueError(f"--{given[0].replace('_', '-')} needs --windows: --windows 2s")
    if args.fast and args.clips is None:
        raise ValueError("--fast is how --clips cuts: give --clips DIR")
    return args


def find_videos(given: list[str]) -> list[str]:
    """The given videos, and those of the folders and tables, in the given order.

    Raises:
        FileNotFoundError: there is no file, folder, object or row of that name.
        ValueError: a folder holds no video.
        ObjectStoreError, TableError: a store or a table cannot be read.
    """
    from sce_video.datasets.sources import list_videos, video_exists

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
    check_run(args.checkpoint)
    for path in args.videos:
        check_videos(path) if os.path.isdir(path) else check_exists(path, "video or folder")
    check_exists(args.classes, "file of class names")
    if args.windows is not None:
        return _segments(args)
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


def _windows(args: argparse.Namespace) -> Windows:
    seconds = parse_seconds(args.windows)
    return Windows(seconds, seconds / 4 if args.stride is None else parse_seconds(args.stride))


def _labelled(args: argparse.Namespace) -> list[Segment]:
    """The labelled segments, with the paths of their files; ValueError, with file and line."""
    if args.segments is None:
        return []
    check_exists(args.segments, "file of segments")
    root = os.path.dirname(args.segments) if args.data_root is None else args.data_root
    rows, found = [], []
    for line, segment in numbered_segments(args.segments):
        file = os.path.join(root, segment.path)
        rows.append((f"{args.segments}, line {line}", file, segment.end))
        found.append(replace(segment, path=os.path.realpath(file)))
    check_segment_files(rows)
    if not found:
        raise ValueError(f"{args.segments} has a header and no segment")
    return found


def _segments(args: argparse.Namespace) -> int:
    """Predict the segments of every video, print and write; returns the exit status."""
    windows, labelled = _windows(args), _labelled(args)
    from sce_video.inference.segments import predict_segments
    from sce_video.pages.segments import SegmentReport

    paths = find_videos(args.videos)
    classifier, options = _loaded(args)
    if args.views is None:  # the views of a test are too many for windows that overlap
        clip = classifier.settings.clip_duration
        clips = 1 if clip is None else min(10, max(1, math.ceil(windows.seconds / clip - 1e-6)))
        options = replace(options, num_clips=clips, num_crops=1)
    report = SegmentReport(args.csv, args.json, args.html, classifier.classes, windows)
    failures: list[tuple[str, str]] = []
    interrupted = False
    with report:
        try:
            found = predict_segments(
                *(classifier, paths, windows, options),
                labelled=labelled,
                threshold=args.threshold,
                least=args.min_length,
                background=args.background,
                say=lambda text: print(printable(text), file=sys.stderr, flush=True),
            )
            for path, timeline, segments, reason in found:
                failures += [(path, reason)] if reason else []
                if timeline is not None:
                    report.add(path, timeline, segments)
                if args.csv is None:
                    for s in segments:
                        moment = f"{s.start:.2f}-{s.end:.2f}"
                        print(printable(f"{path}@{moment}: {s.label} {s.score:.3f}"), flush=True)
        except KeyboardInterrupt:  # inside: what was found is kept
            interrupted = True
    if interrupted:
        print("\nsce-video predict: interrupted; files have the videos so far", file=sys.stderr)
        return INTERRUPTED
    files = "".join(f", {out}" for out in (args.csv, args.json, args.html) if out is not None)
    lines = [
        f"predict: {report.segments} segments in {report.videos} of {len(paths)} videos{files}"
    ]
    lines += shown_failures(failures)
    if args.clips is not None:
        from sce_video.inference.clips import write_clips

        written, failures = write_clips(args.clips, report.spans, args.fast)
        lines += [f"clips: {len(written)} in {args.clips}", *shown_failures(failures)]
    print("\n".join(map(printable, lines)), file=sys.stdout if args.csv else sys.stderr)
    return int(report.videos == 0)
