"""A network for other runtimes; or videos with features and map, for the viewers people have.

    sce-video export RUN --to pretrained --out FOLDER           # safetensors and JSON
    sce-video export RUN --to onnx --out model.onnx             # onnxruntime
    sce-video export RUN --to program --out model.pt2           # torch.export

    sce-video export INDEX --to parquet --out videos.parquet    # Embedding Atlas, pandas, DuckDB
    sce-video export INDEX --to projector --out projector       # tensorboard --logdir projector
    sce-video export features.npz --to fiftyone --out fiftyone  # fiftyone

RUN is the folder of a run or of a pretrained network, or a checkpoint; the source of the others the
folder of `sce-video index` or the file of `sce-video embed`.
Exit status: 0 written, 1 written and some files could not be read for a thumbnail, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sce_video.commands.arguments import (
    Parser,
    add_options,
    add_workers_option,
    check_exists,
    check_index,
    check_run,
    number,
    progress_bar,
    shown_failures,
)
from sce_video.utils.command import command
from sce_video.utils.printable import printable

if TYPE_CHECKING:
    from sce_video.interop.export import ExportReport

#: Of :mod:`sce_video.interop.export`, whose import takes seconds.
NETWORK_FORMATS, FORMATS = ("pretrained", "onnx", "program"), ("parquet", "projector", "fiftyone")
_NEXT = {
    "pretrained": "sce-video embed VIDEOS --checkpoint {out} --out features.npz",
    "onnx": "python examples/onnx_features.py {out} VIDEO",
    "program": "in Python, torch.export.load({out}).module()(clips)",
    "parquet": "embedding-atlas {out} --x x --y y{columns}",
    "projector": "tensorboard --logdir {out}",
    "fiftyone": "in Python, fiftyone.Dataset.from_dir({out}, fiftyone.types.FiftyOneDataset)",
}


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        description="Export a network to another runtime, or videos with features to a viewer."
    )
    parser.add_argument(
        "source", help="run or checkpoint; of the viewers, an index or a feature file (.npz)"
    )
    parser.add_argument("--to", required=True, choices=[*NETWORK_FORMATS, *FORMATS])
    parser.add_argument("--out", required=True, help="file or folder; must not exist")
    parser.add_argument(
        "--config", help="of a network whose checkpoint contains none, as converted files"
    )
    add_options(parser, "--labels")
    parser.add_argument(
        "--classes", metavar="FILE", help="names of its labels, one per line (default: the file "
        "LIST_classes.txt beside it, if there is one)"
    )  # fmt: skip
    parser.add_argument(
        "--thumbnail",
        type=number(int, 0, most=1024),
        default=128,
        metavar="PX",
        help="longest side (default: 128)",
    )
    parser.add_argument("--no-thumbnails", action="store_true", help="do not open the videos")
    parser.add_argument(
        "--neighbours",
        type=number(int, 0, most=1024),
        default=10,
        metavar="K",
        help="of each video (default: 10)",
    )
    parser.add_argument("--no-embedding", action="store_true", help="leave out the features")
    add_workers_option(parser, "processes that read thumbnails")
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Export; returns the exit status."""
    args = parse_args(argv)
    check(args)
    if args.to in NETWORK_FORMATS:
        return export_a_network(args)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.interop.export import export

    with progress_bar("reading thumbnails") as count:
        report = export(
            args.source,
            args.to,
            args.out,
            labels=args.labels,
            class_file=args.classes or class_file_beside(args.labels),
            thumbnail_side=0 if args.no_thumbnails else args.thumbnail,
            num_neighbours=args.neighbours,
            with_embedding=not args.no_embedding,
            workers=args.workers,
            on_video=count,
        )
    print(describe(report, args))
    return 1 if report.failures else 0


def check(args: argparse.Namespace) -> None:
    """Raise an error of the user for options or paths that cannot be meant."""
    if os.path.lexists(args.out):
        raise FileExistsError(f"{args.out} exists: remove it, or give another --out")
    if args.to in NETWORK_FORMATS:
        check_run(args.source)
        return
    if args.config is not None:
        raise ValueError(f"--config is for networks, not for --to {args.to}")
    if args.no_embedding and args.to == "projector":
        raise ValueError("the projector shows the features: leave out --no-embedding")
    if args.to == "parquet" and not args.out.endswith(".parquet"):
        raise ValueError(f"a parquet file must end in .parquet to be read as one, got {args.out!r}")
    if args.classes is not None and args.labels is None:
        raise ValueError("names of classes are those of a list of labels: give it too (--labels)")
    for path, what in (
        (args.source, "index or feature file"),
        (args.labels, "annotation file"),
        (args.classes, "file of class names"),
    ):
        if path is not None:
            check_exists(path, what)
    if os.path.isdir(args.source):
        check_index(args.source)


def export_a_network(args: argparse.Namespace) -> int:
    """Export a network and say what was written; returns the exit status."""
    # Imported here: the formats of viewers need no network.
    from sce_video.interop.export.networks import export_network
    from sce_video.interop.pretrained import load_network

    report = export_network(load_network(args.source, args.config, "cpu"), args.to, args.out)
    lines = [f"{report.path}: {' and '.join(report.outputs)} of uint8 clips (N, T, H, W, 3)"]
    if report.difference is not None:
        sizes = "batch, length and size" if report.any_size else "the batch"
        lines += [
            f"{sizes} of the clips may vary from call to call",
            f"largest difference from PyTorch on random clips: {report.difference:.1e}",
        ]
    lines.append("next: " + _NEXT[args.to].format(out=shlex.quote(str(report.path))))
    print("\n".join(map(printable, lines)))
    return 0


def class_file_beside(labels: str | None) -> str | None:
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
    lines += shown_failures(report.failures)
    columns = " --neighbors neighbors" * (args.neighbours > 0 and report.videos > 1)
    columns += " --image thumbnail" * (args.thumbnail > 0 and not args.no_thumbnails)
    out = repr(str(report.path)) if args.to == "fiftyone" else shlex.quote(str(report.path))
    lines.append("next: " + _NEXT[args.to].format(out=out, columns=columns))
    return "\n".join(map(printable, lines))
