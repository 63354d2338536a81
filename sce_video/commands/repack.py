"""Re-encode a data set for fast reading of clips: every frame a key frame, small frames.

    sce-video repack data/kinetics400 data/kinetics400_256
    sce-video repack data/kinetics400/k400_train.txt data/k400_256 --workers 32
    sce-video repack my_videos packed --short-side none --keyint 8 --crf 20
    sce-video repack LIST DST --ray auto      (on a Ray cluster: docs/jobs.md)
    sce-video repack segments.csv DST --data-root VIDEOS      (parts of long videos)
    sce-video repack LIST --to TABLE.lance    (into a table, with no files in between)

SRC is a folder of videos, an annotation list (`path label` per line), or a table of segments of
long videos that ends in .csv (columns path, start, end, output and perhaps label), each of which
becomes a file. DST gets the same relative paths with the extension .mp4 (a.avi becomes a.avi.mp4 if
there is also an a.mp4), the list with the new paths under its name, and

    repack.json   LIST.repack.json    size, time, PSNR, settings, failures
    failed.txt    LIST.failed.txt     files that failed and why; they are not in the list
    .repack/                          records, from which an interrupted run is resumed

Several lists may go to one DST, one after the other. With --to every video becomes a row of a table
(Lance), at a path or a URI such as s3://bucket/x.lance: docs/tables.md. A video keeps its frames,
one of variable rate becomes constant; rotation is applied, audio is dropped; every output is
decoded and compared with its source before it gets its final path. See docs/repack.md.
Exit status: 0 all done, 1 some files failed, 2 wrong usage or disk full, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sce_video.commands.arguments import chosen, command_line
from sce_video.data_tools.repack.plan import CRF_RANGE, PRESETS, RepackOptions, Settings
from sce_video.datasets.named_files import check_source
from sce_video.datasets.sources import is_table, scan_folder
from sce_video.jobs import StorageError
from sce_video.utils.command import command, file_progress


def _number_or(word: str, kind: type, what: str) -> Callable[[str], Any]:
    """The ``type`` of an option that takes a number, or a word that stands for None."""

    def read(text: str) -> Any:
        try:
            return None if text == word else kind(text)
        except ValueError:
            message = f"must be {what} or {word!r}, got {text!r}"
            raise argparse.ArgumentTypeError(message) from None

    return read


def _extensions(text: str) -> tuple[str, ...]:
    """Extensions of videos in a folder, with their dots."""
    return tuple(f".{name.removeprefix('.')}" for name in text.lower().split(",") if name)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser, add = command_line(
        "Re-encode a data set for fast reading of clips.",
        epilog="exit status: 0 all done, 1 files failed, 2 wrong usage or disk full, "
        "130 interrupted",
    )
    add("source SRC", "folder of videos, annotation list, or table of segments (.csv)")
    add("destination DST", "output folder", nargs="?")
    to = "write rows of a table instead of files: videos.lance, s3://bucket/videos.lance"
    add("--to TABLE", to)
    add("--extensions", "of videos in a folder (default: all that are read)", _extensions)
    add.shared("--data-root", "--all-files")
    output = add.group("settings of the outputs")
    side = "of the shorter side, even; 'none' keeps the size (default: %(default)s)"
    output("--short-side PIXELS", side, _number_or("none", int, "a number of pixels"))
    output("--enlarge", "also scale up smaller videos", bool)
    output("--keyint N", "a key frame every N; more: smaller, slower (default: %(default)s)", int)
    crf = "x264's quality, 0 to 51, lower is better; 'auto' uses for each file the highest of "
    crf += f"{CRF_RANGE[0]:g} to {CRF_RANGE[1]:g} that reaches --psnr (default: %(default)s)"
    output("--crf", crf, _number_or("auto", float, "a number"))
    psnr = "PSNR of luma and all planes that --crf auto reaches (default: %(default)g)"
    output("--psnr DB", psnr, float)
    output("--preset", f"{', '.join(PRESETS)} (default: %(default)s)")
    output("--tune", "x264's tunings, separated by commas; '' for none (default: %(default)s)")
    run = add.group("options of the run")
    run("--workers", "processes (default: all cores, of the cluster with --ray)", int)
    run.shared("--ray")
    run("--threads", "threads of the encoder in each process (default: %(default)s)", int)
    run("--min-psnr DB", "an output with a lower PSNR fails (default: %(default)g)", float)
    run("--timeout SECONDS", "a file that takes longer fails (default: %(default)g)", float)
    pixels = "a file with larger frames (height x width) fails (default: %(default)s)"
    run("--max-pixels PIXELS", pixels, int)
    run("--force", "repack all files again, and replace other files, lists, reports or rows", bool)
    parser.set_defaults(**asdict(Settings()) | {"crf": "auto"})
    parser.set_defaults(**asdict(RepackOptions(workers=None)))
    return parser.parse_args(argv)


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: Sequence[str] | None = None) -> int:
    """Repack and return the exit status."""
    args = parse_args(argv)
    settings, options = chosen(Settings, args), chosen(RepackOptions, args)
    if (args.destination is None) == (args.to is None):
        raise ValueError("give either DST, an output folder, or --to TABLE")
    if args.to is not None and not is_table(args.to):
        raise ValueError(f"a table has a name that ends with .lance, got {args.to!r}")
    if args.to is not None and args.source.endswith(".csv"):
        raise ValueError("segments become files first: repack them to DST, then import DST TABLE")
    if args.to is None and os.path.exists(args.destination) and not os.path.isdir(args.destination):
        raise ValueError(f"DST {args.destination!r} exists and is not a folder")
    check_source(args.source, args.data_root, args.extensions)
    try:
        return (_write_files if args.to is None else _write_rows)(args, settings, options)
    except StorageError as error:
        raise StorageError(f"{error}; the same command resumes from here") from error


def _write_rows(args: argparse.Namespace, settings: Settings, options: RepackOptions) -> int:
    """Write rows of a table, print what was done, and return the exit status."""
    from sce_video.data_tools.repack.run import repack_to_table
    from sce_video.data_tools.tables.writer import describe_import
    from sce_video.data_tools.verify import listed_videos

    if os.path.isdir(args.source):
        videos, root = scan_folder(args.source, args.extensions), args.source
    else:
        videos, root, _ = listed_videos(args.source, args.data_root)
    progress = file_progress("repack", "repacking")
    result = repack_to_table(videos, root, args.to, settings, options, on_progress=progress)
    print(describe_import(result, args.to, "repacked"))
    return 0 if result.complete else 1


def _write_files(args: argparse.Namespace, settings: Settings, options: RepackOptions) -> int:
    """Write files, lists and reports, print what was done, and return the exit status."""
    from sce_video.data_tools.repack.plan import make_plan, plan_segments
    from sce_video.data_tools.repack.report import describe_repack
    from sce_video.data_tools.repack.run import repack
    from sce_video.data_tools.verify import listed_videos

    if os.path.isdir(args.source):
        plan = make_plan(args.source, args.destination, extensions=args.extensions)
    elif args.source.endswith(".csv"):
        plan = plan_segments(args.source, args.data_root)
    else:
        videos, root, _ = listed_videos(args.source, args.data_root)
        plan = make_plan(args.source, args.destination, data_root=root, read_list=videos)
    progress = file_progress("repack", "repacking")
    report, written = repack(plan, args.destination, settings, options, on_progress=progress)
    print(describe_repack(report))
    for path in written:
        print(f"written: {path}")
    return 1 if report["failed"] else 0
