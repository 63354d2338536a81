"""Late fusion of several tests of the same videos: weighted mean of their class probabilities.

    python tools/fuse_scores.py A.npz B.npz [...] [--weights 1 1] [--json OUT] [--out FUSED.npz]

The files are written by ``tools/test.py CONFIG CHECKPOINT --dump A.npz``. Videos are matched by
path. Prints the accuracies of each file and of the fusion.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from sce_video.engine.checkpoint import file_sha256
from sce_video.evaluation.metrics.base import compute_metrics, telling
from sce_video.evaluation.metrics.classification import MeanClassAccuracy, TopKAccuracy
from sce_video.evaluation.rows import Rows
from sce_video.evaluation.scores import fuse_scores, load_scores, save_scores
from sce_video.utils.command import command
from sce_video.utils.files import write_json

#: Columns of the table and the metric of each.
_COLUMNS = {
    "top-1": "top1",
    "top-5": "top5",
    "class mean": "mean_class_accuracy",
    "1-view top-1": "one_view_top1",
    "1-view top-5": "one_view_top5",
}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Fuse the scores of several tests.")
    parser.add_argument("scores", nargs="+", help="files of scores (.npz), two or more")
    parser.add_argument(
        "--weights", type=float, nargs="+", help="one per file; default: equal weights"
    )
    parser.add_argument("--json", metavar="OUT", help="JSON file for metrics and provenance")
    parser.add_argument("--out", metavar="FUSED.npz", help="file for the fused scores")
    args = parser.parse_args(argv)
    if len(args.scores) < 2:
        parser.error("fusion needs two files of scores or more")
    if args.weights is not None and len(args.weights) != len(args.scores):
        parser.error(f"{len(args.weights)} weights for {len(args.scores)} files")
    return args


def fused_provenance(
    args: argparse.Namespace, fused: Rows, provenances: list[dict], single: list[dict]
) -> dict[str, Any]:
    """The entries that all files share, and hash, weight, provenance and metrics of each file."""
    first, *others = provenances
    agreed = {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }
    weights = args.weights or [1.0] * len(provenances)
    fusion = [
        {
            "path": path,
            "sha256": file_sha256(path),
            "weight": weight,
            "metrics": metrics,
            "protocol": provenance,
        }
        for path, weight, metrics, provenance in zip(
            args.scores, weights, single, provenances, strict=True
        )
    ]
    return {
        **agreed,
        "kind": "recognition",
        "benchmark": None,  # a fusion is not the result of one network
        "videos": len(fused),
        "failures": len(fused.failures),
        "fusion": fusion,
    }


def format_rows(rows: list[tuple[str, dict[str, float]]]) -> str:
    """A table with a line per file and one for the fusion, in percent."""
    width = max(len(name) for name, _ in rows)
    columns = {
        title: key for title, key in _COLUMNS.items() if any(key in values for _, values in rows)
    }
    lines = [" ".join([" " * width, *(f"{title:>12}" for title in columns)])]
    for name, values in rows:
        cells = (
            f"{100 * values[key]:10.2f} %" if key in values else f"{'-':>12}"
            for key in columns.values()
        )
        lines.append(" ".join([f"{name:<{width}}", *cells]))
    return "\n".join(lines)


@command
def main(argv: list[str] | None = None) -> int:
    """Fuse the scores, print and write the results; returns the exit status."""
    args = parse_args(argv)
    for out in (args.json, args.out):
        inputs = [os.path.realpath(path) for path in args.scores]
        if out is not None and os.path.realpath(out) in inputs:
            raise ValueError(f"{out} is an input and would be overwritten")
    loaded = [load_scores(path) for path in args.scores]
    sets = [scores for scores, _ in loaded]
    fused = fuse_scores(sets, args.weights)
    accuracies = [TopKAccuracy(), MeanClassAccuracy()]
    single = [compute_metrics(accuracies, scores) for scores in sets]
    metrics = compute_metrics(accuracies, fused)
    print(f"{len(fused)} videos, {fused.num_classes} classes")
    named = [*zip(args.scores, single, strict=True), ("fused", metrics)]
    print(
        format_rows(
            [(name, telling(each, {"num_classes": fused.num_classes})) for name, each in named]
        )
    )
    provenance = fused_provenance(args, fused, [p for _, p in loaded], single)
    if args.out is not None:
        save_scores(args.out, fused, provenance)
    if args.json is not None:
        failures = [list(pair) for pair in fused.failures]
        content = {"metrics": metrics, "protocol": provenance, "failures": failures}
        write_json(Path(args.json), content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
