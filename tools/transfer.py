"""Transfer learning from feature files: many-shot linear classifiers, low-shot SVMs on VOC2007.

    python tools/transfer.py linear --set dtd --train TRAIN.npz --val VAL.npz --test TEST.npz
    python tools/transfer.py linear --metric top1 --train TRAIN.npz --test TEST.npz   # your own set
    python tools/transfer.py svm --labels ROOT/lists --train TRAIN.npz --val VAL.npz --test TEST.npz

The files are those of sce-video embed on the lists of sce-video prepare. C of the
linear classifiers is chosen on the validation split, or on a fifth of the training images where
the set has none; test images are used for the last score only. See docs/transfer.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from sce_video.evaluation.transfer import (
    C_GRID,
    LOW_SHOT_PUBLISHED,
    MANY_SHOT_SETS,
    evaluate_low_shot,
    evaluate_many_shot,
    load_transfer_parts,
    on_dataset,
)
from sce_video.utils.command import command
from sce_video.utils.files import write_json


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Transfer learning from feature files.")
    protocols = parser.add_subparsers(dest="protocol", required=True)
    linear = protocols.add_parser("linear", help="many-shot logistic regression (tab:many-shot)")
    what = linear.add_mutually_exclusive_group(required=True)
    what.add_argument("--set", choices=sorted(MANY_SHOT_SETS), help="a set of the paper")
    what.add_argument("--metric", choices=["top1", "mean_class"], help="for a set of your own")
    linear.add_argument("--c", type=float, help="C of scikit-learn, instead of choosing one")
    svm = protocols.add_parser("svm", help="SVMs on VOC2007 (tab:low-shot-voc)")
    svm.add_argument(
        "--shots",
        nargs="+",
        type=shot,
        default=[16, 32, 64, None],
        metavar="K",
        help="training images per class, or 'full' (default: 16 32 64 full)",
    )
    svm.add_argument("--draws", type=int, default=5, help="training sets drawn for each K (5)")
    svm.add_argument("--seed", type=int, default=0, help="seed of the draws (0)")
    for protocol in (linear, svm):
        protocol.add_argument("--train", required=True, help="features of the training split")
        protocol.add_argument("--val", help="features of the official validation split")
        protocol.add_argument("--test", required=True, help="features of the test split")
        protocol.add_argument(
            "--labels",
            type=Path,
            metavar="DIR",
            required=protocol is svm,
            help="folder of {train,val,test}_labels.txt (VOC2007)",
        )
        protocol.add_argument("--json", metavar="OUT", help="JSON file for metrics and provenance")
    return parser.parse_args(argv)


def shot(word: str) -> int | None:
    """A number of images per class; None for "full"."""
    if word == "full":
        return None
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of images, and not 'full'")
    return int(word)


def linear(args: argparse.Namespace, parts: Any) -> dict[str, Any]:
    """Evaluate by logistic regression, print the metric beside the paper's."""
    if args.set is not None:
        metric, official_val, published = MANY_SHOT_SETS[args.set]
    else:
        metric, official_val, published = args.metric, args.val is not None, None
    grid = C_GRID if args.c is None else (args.c,)
    content = on_dataset(evaluate_many_shot(parts, metric, official_val, grid), args.set)
    content["protocol"]["published"] = published
    chosen = content["protocol"]["c"]
    score = 100 * content["metrics"][f"many_shot_{metric}"]
    print(f"{args.set or 'many-shot'}: {metric} {score:.2f} %, C = {chosen:.4g}")
    if published is not None:
        print(f"  tab:many-shot, SCE: {published}")
    if args.c is None and chosen in (C_GRID[0], C_GRID[-1]):
        print("  note: the chosen C is the end of the range that was tried")
    return content


def svm(args: argparse.Namespace, parts: Any) -> dict[str, Any]:
    """Evaluate by SVMs, print mAP beside the paper's."""
    content = on_dataset(evaluate_low_shot(parts, args.shots, args.draws, args.seed), "voc2007")
    for k in args.shots:
        name = "full" if k is None else k
        line = f"  {name:>5}: mAP {100 * content['metrics'][f'low_shot_map_{name}']:6.2f} %"
        if k in LOW_SHOT_PUBLISHED:
            line += f"   tab:low-shot-voc, SCE: {LOW_SHOT_PUBLISHED[k]}"
        print(line)
    return content


@command
def main(argv: list[str] | None = None) -> int:
    """Evaluate, print and write the results; returns the exit status."""
    args = parse_args(argv)
    files = {"train": args.train, "val": args.val, "test": args.test}
    for path in files.values():
        if path and args.json and os.path.realpath(path) == os.path.realpath(args.json):
            raise ValueError(f"{args.json} is an input and would be overwritten")
    parts = load_transfer_parts(files, args.labels)
    content = (linear if args.protocol == "linear" else svm)(args, parts)
    for note in parts.notes:
        print(f"  note: {note}")
    if args.json is not None:
        write_json(Path(args.json), content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
