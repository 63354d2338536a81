"""A network for other runtimes; or videos with features and map, for the viewers people have.

    sce-video export RUN --to pretrained --out FOLDER           # safetensors and JSON
    sce-video export RUN --to onnx --out model.onnx             # onnxruntime
    sce-video export RUN --to program --out model.pt2           # torch.export

    sce-video export INDEX --to parquet --out videos.parquet    # Embedding Atlas, pandas, DuckDB
    sce-video export INDEX --to projector --out projector       # tensorboard --logdir projector
    sce-video export features.npz --to fiftyone --out fiftyone  # fiftyone

    sce-video export segments.csv --to fiftyone --out fiftyone  # labelled or predicted segments
    sce-video export segments.csv --to activitynet --out segments.json

RUN is the folder of a run or of a pretrained network, or a checkpoint; the source of the others the
folder of `sce-video index` or the file of `sce-video embed`.
Exit status: 0 written, 1 written and some files could not be read for a thumbnail, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence

from sce_video.commands.arguments import command_line, number, output
from sce_video.datasets.named_files import check_exists, check_index, check_run
from sce_video.jobs import usable_cores
from sce_video.utils.command import command, printable, progress_bar, shown_failures

#: Of :mod:`sce_video.interop.export`, whose import takes seconds.
NETWORK_FORMATS, FORMATS = ("pretrained", "onnx", "program"), ("parquet", "projector", "fiftyone")
SEGMENT_FORMATS = ("fiftyone", "activitynet")
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
    parser, add = command_line(
        "Export a network to another runtime, or videos with features to a viewer."
    )
    source = "run or checkpoint; of the viewers, an index, a feature file (.npz) or segments (.csv)"
    add("source", source)
    parser.add_argument("--to", required=True, choices=[*NETWORK_FORMATS, *FORMATS, "activitynet"])
    add("--out", "file or folder; must not exist", output(str), required=True)
    add("--config", "of a network whose checkpoint contains none, as converted files")
    add.shared("--labels", "--data-root")
    add("--classes FILE", "names of its labels, one per line (default: LIST_classes.txt beside it)")
    add("--thumbnail PX", "longest side (default: 128)", number(int, 0, most=1024), default=128)
    add("--no-thumbnails", "do not open the videos", bool)
    add("--neighbours K", "of each video (default: 10)", number(int, 0, most=1024), default=10)
    add("--no-embedding", "leave out the features", bool)
    workers = "processes that read thumbnails (default: one per core, at most 8)"
    add("--workers", workers, number(int, 0), default=min(8, usable_cores()))
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Export; returns the exit status."""
    args = parse_args(argv)
    if os.path.lexists(args.out):
        raise FileExistsError(f"{args.out} exists: remove it, or give another --out")
    if args.to in NETWORK_FORMATS:
        return _export_network(args)
    if args.source.lower().endswith(".csv"):
        return _export_segments(args)
    if args.to == "activitynet" or args.data_root is not None:
        what = "--to activitynet" if args.to == "activitynet" else "--data-root"
        raise ValueError(f"{what} is for a CSV file of segments, got {args.source!r}")
    if args.config is not None:
        raise ValueError(f"--config is for networks, not for --to {args.to}")
    if args.no_embedding and args.to == "projector":
        raise ValueError("the projector shows the features: leave out --no-embedding")
    if args.to == "parquet" and not args.out.endswith(".parquet"):
        raise ValueError(f"a parquet file must end in .parquet to be read as one, got {args.out!r}")
    if args.classes is not None and args.labels is None:
        raise ValueError("names of classes are those of a list of labels: give it too (--labels)")
    check_exists(args.source, "index or feature file")
    check_exists(args.labels, "annotation file")
    check_exists(args.classes, "file of class names")
    if os.path.isdir(args.source):
        check_index(args.source)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.interop.export import export

    beside = f"{os.path.splitext(args.labels or '')[0]}_classes.txt"
    class_file = args.classes or (beside if args.labels and os.path.isfile(beside) else None)
    with progress_bar("reading thumbnails") as count:
        report = export(
            args.source,
            args.to,
            args.out,
            labels=args.labels,
            class_file=class_file,
            thumbnail_side=0 if args.no_thumbnails else args.thumbnail,
            num_neighbours=args.neighbours,
            with_embedding=not args.no_embedding,
            workers=args.workers,
            on_video=count,
        )
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
    print("\n".join(map(printable, lines)))
    return 1 if report.failures else 0


def _export_segments(args: argparse.Namespace) -> int:
    """Export a file of segments and say what was written; returns the exit status."""
    if args.to not in SEGMENT_FORMATS:
        raise ValueError(
            f"segments are exported to {' or '.join(SEGMENT_FORMATS)}, not to {args.to}"
        )
    check_exists(args.source, "file of segments")
    from sce_video.interop.export.segment_formats import export_segments

    segments, videos = export_segments(args.source, args.to, args.out, args.data_root)
    lines = [f"{args.out}: {segments} segments of {videos} videos"]
    if args.to == "fiftyone":
        lines.append("next: " + _NEXT[args.to].format(out=repr(args.out)))
    print("\n".join(map(printable, lines)))
    return 0


def _export_network(args: argparse.Namespace) -> int:
    """Export a network and say what was written; returns the exit status."""
    check_run(args.source)
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
