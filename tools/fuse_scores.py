"""Fuse the scores of several tests of the same videos: the weighted mean of their softmax scores.

    python tools/fuse_scores.py A.npz B.npz [...] [--weights 1 1] [--json OUT] [--out FUSED.npz]

The files are written by ``tools/test.py CONFIG CHECKPOINT --dump A.npz``. Videos are matched by
path. Prints the accuracies of every file alone and of the fusion.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from sce_video.evaluation import (
    MeanClassAccuracy,
    Rows,
    TopKAccuracy,
    compute_metrics,
    fuse_scores,
    load_scores,
    save_scores,
)
from sce_video.evaluation.provenance import file_sha256
from sce_video.utils.atomic_file import write_json

#: Columns of the table and the metrics in them.
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
    parser.add_argument("--weights", type=float, nargs="+", help="one a file; default: all equal")
    parser.add_argument("--json", metavar="OUT", help="write metrics and provenance there")
    parser.add_argument("--out", metavar="FUSED.npz", help="write the fused scores there")
    args = parser.parse_args(argv)
    if len(args.scores) < 2:
        parser.error("fusion needs two files of scores or more")
    if args.weights is not None and len(args.weights) != len(args.scores):
        parser.error(f"{len(args.weights)} weights for {len(args.scores)} files")
    return args


def fused_protocol(
    args: argparse.Namespace, fused: Rows, protocols: list[dict], alone: list[dict]
) -> dict[str, Any]:
    """What all files agree on, and of each file its hash, weight, protocol and accuracies."""
    first, *others = protocols
    agreed = {
        name: value
        for name, value in first.items()
        if all(name in p and p[name] == value for p in others)
    }
    weights = args.weights or [1.0] * len(protocols)
    fusion = [
        {
            "path": path,
            "sha256": file_sha256(path),
            "weight": weight,
            "metrics": metrics,
            "protocol": protocol,
        }
        for path, weight, metrics, protocol in zip(
            args.scores, weights, alone, protocols, strict=True
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
    """A row for every file and for the fusion, in percent."""
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


def main(argv: list[str] | None = None) -> int:
    """Fuse, print and write; returns the exit status."""
    args = parse_args(argv)
    try:
        for out in (args.json, args.out):
            inputs = [os.path.realpath(path) for path in args.scores]
            if out is not None and os.path.realpath(out) in inputs:
                raise ValueError(f"{out} is an input and would be overwritten")
        loaded = [load_scores(path) for path in args.scores]
        sets = [scores for scores, _ in loaded]
        fused = fuse_scores(sets, args.weights)
        metrics_of = [TopKAccuracy(), MeanClassAccuracy()]
        alone = [compute_metrics(metrics_of, scores) for scores in sets]
        metrics = compute_metrics(metrics_of, fused)
        print(f"{len(fused)} videos, {fused.num_classes} classes")
        print(format_rows([*zip(args.scores, alone, strict=True), ("fused", metrics)]))
        protocol = fused_protocol(args, fused, [p for _, p in loaded], alone)
        if args.out is not None:
            save_scores(args.out, fused, protocol)
        if args.json is not None:
            failures = [list(pair) for pair in fused.failures]
            content = {"metrics": metrics, "protocol": protocol, "failures": failures}
            write_json(Path(args.json), content)
    except (ValueError, OSError) as error:
        print(f"fuse_scores: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
