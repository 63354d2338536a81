"""Videos with their features, map, labels and thumbnails, for the viewers that people have.

    sce-video export INDEX --to parquet --out videos.parquet    # Embedding Atlas, pandas, DuckDB
    sce-video export INDEX --to projector --out projector       # tensorboard --logdir projector
    sce-video export features.npz --to fiftyone --out fiftyone  # fiftyone

The source is the folder of `sce-video index` or the file of `sce-video embed`.
Exit status: 0 written, 1 written and some files could not be read for a thumbnail, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence

from sce_video.apis.exporting import FORMATS, ExportReport, export
from sce_video.utils.command import command
from sce_video.utils.printable import printable
from sce_video.utils.progress import Progress

_SHOWN_FAILURES = 20
_NEXT = {
    "parquet": "embedding-atlas {out} --x x --y y{columns}",
    "projector": "tensorboard --logdir {out}",
    "fiftyone": "in Python, fiftyone.Dataset.from_dir({out}, fiftyone.types.FiftyOneDataset)",
}


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Export videos with features, map, labels and thumbnails to a viewer."
    )
    parser.add_argument("source", help="folder of an index, or a feature file (.npz)")
    parser.add_argument("--to", required=True, choices=list(FORMATS))
    parser.add_argument("--out", required=True, help="file (parquet) or folder; must not exist")
    parser.add_argument("--labels", metavar="LIST", help="list with 'path label' on every line")
    parser.add_argument(
        "--classes", metavar="FILE", help="names of its labels, one per line (default: the file "
        "LIST_classes.txt beside it, if there is one)"
    )  # fmt: skip
    parser.add_argument(
        "--thumbnail", type=int, default=128, metavar="PX", help="longest side (default: 128)"
    )
    parser.add_argument("--no-thumbnails", action="store_true", help="do not open the videos")
    parser.add_argument(
        "--neighbours", type=int, default=10, metavar="K", help="of each video (default: 10)"
    )
    parser.add_argument("--no-embedding", action="store_true", help="leave out the features")
    parser.add_argument(
        "--workers",
        type=int,
        default=min(8, len(os.sched_getaffinity(0))),
        help="processes that read thumbnails (default: one per core, at most 8)",
    )
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Export; returns the exit status."""
    args = parse_args(argv)
    if args.no_embedding and args.to == "projector":
        raise ValueError("the projector shows the features: leave out --no-embedding")
    progress: Progress | None = None

    def show(total: int, failed: bool) -> None:
        nonlocal progress
        if progress is None:
            progress = Progress(total, "reading thumbnails", unit="videos")
        progress.advance(failed)

    try:
        report = export(
            args.source,
            args.to,
            args.out,
            labels=args.labels,
            class_file=args.classes or _class_file(args.labels),
            thumbnail_side=0 if args.no_thumbnails else args.thumbnail,
            num_neighbours=args.neighbours,
            with_embedding=not args.no_embedding,
            workers=args.workers,
            on_video=show,
        )
    finally:
        if progress is not None:
            progress.finish()
    print(describe(report, args))
    return 1 if report.failures else 0


def _class_file(labels: str | None) -> str | None:
    """The class names beside a list: of labels.txt, labels_classes.txt."""
    if labels is None:
        return None
    beside = f"{os.path.splitext(labels)[0]}_classes.txt"
    return beside if os.path.isfile(beside) else None


def describe(report: ExportReport, args: argparse.Namespace) -> str:
    """Text for the terminal: what was written and what shows it."""
    lines = [
        f"{report.path}: {report.videos} videos, {report.labelled} with a label, map by "
        f"{report.map_name}, {len(report.failures)} without a thumbnail"
    ]
    lines += report.notes
    lines += [f"  {path}: {reason}" for path, reason in report.failures[:_SHOWN_FAILURES]]
    if len(report.failures) > _SHOWN_FAILURES:
        lines.append(f"  and {len(report.failures) - _SHOWN_FAILURES} more")
    columns = " --neighbors neighbors" * (args.neighbours > 0 and report.videos > 1)
    columns += " --image thumbnail" * (args.thumbnail > 0 and not args.no_thumbnails)
    out = repr(str(report.path)) if args.to == "fiftyone" else shlex.quote(str(report.path))
    lines.append("next: " + _NEXT[args.to].format(out=out, columns=columns))
    return "\n".join(map(printable, lines))
