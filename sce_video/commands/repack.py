"""Re-encode a data set for fast reading of clips: every frame a key frame, small frames.

    sce-video repack data/kinetics400 data/kinetics400_256
    sce-video repack data/kinetics400/k400_train.txt data/k400_256 --workers 32
    sce-video repack my_videos packed --short-side none --keyint 8 --crf 20
    sce-video repack LIST DST --ray auto      (on a Ray cluster: docs/jobs.md)
    sce-video repack segments.csv DST --data-root VIDEOS      (parts of long videos)
    sce-video repack LIST --to TABLE.lance    (into a table, with no files in between)

SRC is a folder of videos, an annotation list (`path label` per line), or a table of segments of
long videos that ends in .csv (columns path, start, end, output and perhaps label), each of which
becomes a file. DST gets the same relative
paths with the extension .mp4 (a.avi becomes a.avi.mp4 if there is also an a.mp4), the list with the
new paths under its name, and

    repack.json   LIST.repack.json    size, time, PSNR, settings, failures
    failed.txt    LIST.failed.txt     files that failed and why; they are not in the list
    .repack/                          records, from which an interrupted run is resumed

Several lists may go to one DST, one after the other.
With --to every video becomes a row of a table (Lance), at a path or a URI such as s3://bucket/x.lance,
like the rows of sce-video import DST TABLE: docs/tables.md. Rows of unchanged files are kept.
A video of constant frame rate keeps its rate and its number of frames; one of variable rate becomes
constant, and each output frame is the frame that the source shows at its time. Rotation is applied,
audio is dropped. Every output is decoded and compared with its source before it is renamed to its
final path. See docs/repack.md.
Exit status: 0 all done, 1 some files failed, 2 wrong usage or disk full, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sce_video.commands.arguments import (
    FileProgress,
    Parser,
    add_options,
    check_source,
)
from sce_video.data_tools.repack.plan import CRF_RANGE, PRESETS, RepackOptions, Settings
from sce_video.datasets.video_list import VIDEO_EXTENSIONS, VideoList, scan_folder
from sce_video.jobs import StorageError
from sce_video.utils.command import command

if TYPE_CHECKING:
    from sce_video.data_tools.repack.plan import RepackPlan

_SETTINGS, _OPTIONS = Settings(), RepackOptions()


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        description="Re-encode a data set for fast reading of clips.",
        epilog="exit status: 0 all done, 1 files failed, 2 wrong usage or disk full, "
        "130 interrupted",
    )
    parser.add_argument(
        "source",
        metavar="SRC",
        help="folder of videos, annotation list, or table of segments (.csv)",
    )
    parser.add_argument("destination", metavar="DST", nargs="?", help="output folder")
    parser.add_argument(
        "--to",
        metavar="TABLE",
        help="write rows of a table instead of files: videos.lance, s3://bucket/videos.lance",
    )
    parser.add_argument(
        "--data-root",
        help="folder the paths of a list are relative to (default: the list's or the current one)",
    )
    parser.add_argument(
        "--extensions",
        default=",".join(VIDEO_EXTENSIONS),
        help="extensions of videos in a folder, separated by commas (default: %(default)s)",
    )
    _add_settings(parser.add_argument_group("settings of the outputs"))
    _add_options(parser.add_argument_group("options of the run"))
    return parser.parse_args(argv)


def _add_settings(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--short-side",
        default=str(_SETTINGS.short_side),
        metavar="PIXELS",
        help="length of the shorter side, even; 'none' keeps the size (default: %(default)s)",
    )
    group.add_argument("--enlarge", action="store_true", help="also scale up smaller videos")
    group.add_argument(
        "--keyint",
        type=int,
        default=_SETTINGS.keyint,
        metavar="N",
        help="every N-th frame is a key frame; a larger N saves disk but reads slower (default: "
        "%(default)s)",
    )
    group.add_argument(
        "--crf",
        default="auto",
        help="x264's quality, 0 to 51, lower is better; 'auto' uses for each file the highest "
        f"from {CRF_RANGE[0]:g} to {CRF_RANGE[1]:g} that reaches --psnr (default: %(default)s)",
    )
    group.add_argument(
        "--psnr",
        type=float,
        default=_SETTINGS.psnr,
        metavar="DB",
        help="PSNR of luma and all planes that --crf auto reaches (default: %(default)g)",
    )
    group.add_argument(
        "--preset", default=_SETTINGS.preset, help=f"{', '.join(PRESETS)} (default: %(default)s)"
    )
    group.add_argument(
        "--tune",
        default=_SETTINGS.tune,
        help="x264's tunings, separated by commas; '' for none (default: %(default)s)",
    )


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workers", type=int, help="processes (default: all cores, of the cluster with --ray)"
    )
    add_options(group, "--ray")
    group.add_argument(
        "--threads",
        type=int,
        default=_OPTIONS.threads,
        help="threads of the encoder in each process (default: %(default)s)",
    )
    group.add_argument(
        "--min-psnr",
        type=float,
        default=_OPTIONS.min_psnr,
        metavar="DB",
        help="an output with a lower PSNR fails (default: %(default)g)",
    )
    group.add_argument(
        "--timeout",
        type=float,
        default=_OPTIONS.timeout,
        metavar="SECONDS",
        help="a file that takes longer fails (default: %(default)g)",
    )
    group.add_argument(
        "--max-pixels",
        type=int,
        default=_OPTIONS.max_pixels,
        metavar="PIXELS",
        help="a file with larger frames (height x width) fails (default: %(default)s)",
    )
    group.add_argument(
        "--force",
        action="store_true",
        help="repack all files again, and replace other files, lists or reports at their paths, or "
        "rows of the table",
    )


def read_settings(args: argparse.Namespace) -> Settings:
    """The settings of a command line; ValueError for an invalid value."""
    try:
        short_side = None if args.short_side == "none" else int(args.short_side)
    except ValueError:
        raise ValueError(
            f"--short-side must be a number of pixels or 'none', got {args.short_side!r}"
        ) from None
    try:
        crf = None if args.crf == "auto" else float(args.crf)
    except ValueError:
        raise ValueError(f"--crf must be a number or 'auto', got {args.crf!r}") from None
    return Settings(
        short_side=short_side,
        enlarge=args.enlarge,
        keyint=args.keyint,
        crf=crf,
        psnr=args.psnr,
        preset=args.preset,
        tune=args.tune,
    )


def check_output(args: argparse.Namespace) -> None:
    """Raise ValueError unless there is one output, and options that suit it."""
    if (args.destination is None) == (args.to is None):
        raise ValueError("give either DST, an output folder, or --to TABLE")
    if args.to is not None and args.source.endswith(".csv"):
        raise ValueError("segments become files first: repack them to DST, then import DST TABLE")
    if args.to is None and os.path.exists(args.destination) and not os.path.isdir(args.destination):
        raise ValueError(f"DST {args.destination!r} exists and is not a folder")


def read_extensions(args: argparse.Namespace) -> tuple[str, ...]:
    """Extensions of videos in a folder, with their dots."""
    return tuple(
        extension if extension.startswith(".") else f".{extension}"
        for extension in args.extensions.lower().split(",")
        if extension
    )


def _read_source(args: argparse.Namespace) -> tuple[VideoList, str]:
    """The videos of a command line, and the root of their paths."""
    if os.path.isdir(args.source) and args.data_root is None:
        return scan_folder(args.source, read_extensions(args)), args.source
    from sce_video.data_tools.verify import read_videos

    videos, root, _ = read_videos(args.source, args.data_root)
    return videos, root


def read_plan(args: argparse.Namespace) -> RepackPlan:
    """The files of a command line with an output folder."""
    from sce_video.data_tools.repack.plan import make_plan, plan_segments
    from sce_video.data_tools.verify import read_videos

    if os.path.isdir(args.source) and args.data_root is None:
        return make_plan(args.source, args.destination, extensions=read_extensions(args))
    if args.source.endswith(".csv"):
        return plan_segments(args.source, args.destination, args.data_root)
    videos, root, _ = read_videos(args.source, args.data_root)
    return make_plan(args.source, args.destination, data_root=root, read_list=videos)


def print_text(text: str) -> None:
    """Print to stdout; characters that it cannot encode become ``?``."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: Sequence[str] | None = None) -> int:
    """Repack and return the exit status."""
    args = parse_args(argv)
    settings = read_settings(args)
    options = RepackOptions(
        workers=args.workers,
        threads=args.threads,
        timeout=args.timeout,
        min_psnr=args.min_psnr,
        max_pixels=args.max_pixels,
        force=args.force,
        ray=args.ray,
    )
    check_output(args)
    check_source(args.source, args.data_root, read_extensions(args))
    try:
        if args.to is not None:
            return repack_into_table(args, settings, options)
        return repack_into_folder(args, settings, options)
    except StorageError as error:
        raise StorageError(f"{error}; the same command resumes from here") from error


def repack_into_table(args: argparse.Namespace, settings: Settings, options: RepackOptions) -> int:
    """Write rows, print what was done, and return the exit status."""
    from sce_video.data_tools.repack.run import repack_to_table
    from sce_video.data_tools.tables.writer import describe_import

    videos, root = _read_source(args)
    progress = FileProgress("repack", "repacking")
    result = repack_to_table(videos, root, args.to, settings, options, on_progress=progress)
    print_text(describe_import(result, args.to, "repacked"))
    return 0 if result.complete else 1


def repack_into_folder(args: argparse.Namespace, settings: Settings, options: RepackOptions) -> int:
    """Write files, lists and reports, print what was done, and return the exit status."""
    from sce_video.data_tools.repack.report import describe_repack
    from sce_video.data_tools.repack.run import repack

    plan = read_plan(args)
    progress = FileProgress("repack", "repacking")
    report, written = repack(plan, args.destination, settings, options, on_progress=progress)
    print_text(describe_repack(report))
    for path in written:
        print_text(f"written: {path}")
    return 1 if report["failed"] else 0
