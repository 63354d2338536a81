"""Re-encode a data set for fast reading of clips: every frame a key frame, small frames.

    python tools/data/repack.py data/kinetics400 data/kinetics400_256
    python tools/data/repack.py data/kinetics400/k400_train.txt data/k400_256 --workers 32
    python tools/data/repack.py my_videos packed --short-side none --keyint 8 --crf 20
    python tools/data/repack.py LIST DST --shard 2/4     (on the second of four machines)
    python tools/data/repack.py LIST DST --merge         (write the list, if no shard did)

SRC is a folder of videos or an annotation list (`path label` per line). DST gets the same relative
paths with the extension .mp4 (a.avi becomes a.avi.mp4 if there is also an a.mp4), the list with the
new paths under its name, and

    repack.json   LIST.repack.json    size, time, PSNR, settings, failures
    failed.txt    LIST.failed.txt     files that failed and why; they are not in the list
    .repack/                          journals, from which an interrupted run is resumed

Several lists may go to one DST, one after the other; shards of one list at the same time.
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

from sce_video.data_tools.repack import (
    Options,
    Plan,
    Settings,
    StorageError,
    make_plan,
    merge,
    repack,
)
from sce_video.data_tools.repack.report import summarize
from sce_video.data_tools.repack.settings import CRF_RANGE, PRESETS
from sce_video.data_tools.verification import read_videos
from sce_video.datasets.video_list import VIDEO_EXTENSIONS
from sce_video.utils.command import command
from sce_video.utils.progress import Progress
from sce_video.utils.shard import Shard

_SETTINGS, _OPTIONS = Settings(), Options()


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Re-encode a data set for fast reading of clips.",
        epilog="exit status: 0 all done, 1 files failed, 2 wrong usage or disk full, "
        "130 interrupted",
    )
    parser.add_argument("source", metavar="SRC", help="folder of videos, or an annotation list")
    parser.add_argument("destination", metavar="DST", help="output folder")
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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    group.add_argument(
        "--workers", type=int, default=cores or 1, help="processes (default: one per core)"
    )
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
    group.add_argument("--shard", default="1/1", metavar="I/N", help="part I of N of the files")
    group.add_argument(
        "--merge", action="store_true", help="only write the list and report of all shards"
    )
    group.add_argument(
        "--force",
        action="store_true",
        help="repack all files again, and replace other files, lists or reports at their paths",
    )


class ProgressBar:
    """Prints the number of files to repack, then the progress, to stderr."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def __call__(self, done: int, total: int, failed: bool) -> None:
        if self._progress is None:
            print(f"repack: {total - done} of {total} files to do", file=sys.stderr)
            self._progress = Progress(total, "repacking", begin=done)
            if done == total:
                return
        else:
            self._progress.advance(failed)
        if done == total:
            self._progress.finish()


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


def read_plan(args: argparse.Namespace) -> Plan:
    """The files of a command line."""
    if os.path.exists(args.destination) and not os.path.isdir(args.destination):
        raise ValueError(f"DST {args.destination!r} exists and is not a folder")
    if os.path.isdir(args.source):
        if args.data_root is not None:
            raise ValueError(f"{args.source} is a folder: --data-root goes with an annotation list")
        extensions = tuple(
            extension if extension.startswith(".") else f".{extension}"
            for extension in args.extensions.lower().split(",")
            if extension
        )
        return make_plan(args.source, args.destination, extensions=extensions)
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
    options = Options(
        workers=args.workers,
        threads=args.threads,
        timeout=args.timeout,
        min_psnr=args.min_psnr,
        shard=Shard.parse(args.shard),
        force=args.force,
    )
    plan = read_plan(args)
    if args.merge:
        result = merge(plan, args.destination, settings, options)
        if not result.complete:
            raise ValueError(
                f"{result.missing} of {len(plan.items)} files are neither done nor failed "
                "with these options: run all shards first, with the same options"
            )
    else:
        try:
            result = repack(plan, args.destination, settings, options, on_progress=ProgressBar())
        except StorageError as error:
            raise StorageError(f"{error}; the same command resumes from here") from error
    print_text(summarize(result.report))
    if not result.complete:
        print_text(f"{result.missing} files of other shards are still to do")
    for path in result.written:
        print_text(f"written: {path}")
    return 1 if result.failed else 0
