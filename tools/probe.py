r"""kNN and linear probe from feature files.

    python tools/probe.py --train B.npz --test Q.npz [--protocols knn linear] [--json OUT]
                          [--k 20] [--temperature 0.07] [--seed 0] [--pairs ssv2]
                          [--factors '{appearance}_{motion}']
    python tools/probe.py --test Q.npz --group-pattern 'person(\d+)'     # leave one group out

The files are those of sce-video embed, or others with ``features``, ``labels`` and
``paths``. The weight decay of the linear probe is selected on a validation split of the training
features. The protocol time needs features of altered clips too, which the test loop dumps.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from sce_video.commands.arguments import FOLDS, fold_count
from sce_video.evaluation.chance import chance_levels
from sce_video.evaluation.feature_files import FeaturePair, load_feature_pair
from sce_video.evaluation.functional.folds import divide
from sce_video.evaluation.functional.statistics import group_ids
from sce_video.evaluation.metrics import PROTOCOLS
from sce_video.evaluation.metrics.base import (
    RowMetric,
    compute_metrics,
    format_metric_lines,
    listed_metrics,
    metric_settings,
    outcomes_of,
    outcomes_path,
    save_outcomes,
    telling,
)
from sce_video.evaluation.metrics.feature_metrics import FeatureStatistics
from sce_video.utils.command import command
from sce_video.utils.files import write_json

#: Command-line options and the protocol that each belongs to.
_OPTIONS = {
    "k": "knn",
    "temperature": "knn",
    "seed": "linear",
    "pairs": "time",
    "factors": "time",
}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="kNN and linear probe from feature files.")
    parser.add_argument("--test", "--query", required=True, help="features to evaluate (.npz)")
    parser.add_argument("--train", "--bank", help="labelled training features (.npz)")
    parser.add_argument(
        "--group-pattern",
        metavar="REGEX",
        help="instead of --train: its one group, searched in the path, is left out as a whole",
    )
    parser.add_argument("--folds", metavar="K|loo", type=fold_count, help=FOLDS)
    parser.add_argument(
        "--protocols", nargs="+", choices=sorted(PROTOCOLS), default=["knn", "linear"]
    )
    parser.add_argument("--k", type=int, help="number of neighbours (20)")
    parser.add_argument("--temperature", type=float, help="temperature of their weights (0.07)")
    parser.add_argument("--seed", type=int, help="seed of the validation split (0)")
    parser.add_argument("--pairs", choices=["ssv2"], help="pairs of opposite classes, for time")
    parser.add_argument("--factors", metavar="FORM", help="form of the class names, for time")
    parser.add_argument("--json", metavar="OUT", help="JSON file for metrics and provenance")
    args = parser.parse_args(argv)
    if (args.train is None) == (args.group_pattern is None):
        parser.error("give either --train, or --group-pattern to leave one group out")
    if args.folds is not None and args.group_pattern is None:
        parser.error("--folds divides groups: add --group-pattern")
    for option, protocol in _OPTIONS.items():
        if getattr(args, option) is not None and protocol not in args.protocols:
            parser.error(
                f"--{option} belongs to the protocol {protocol}, which is not in --protocols"
            )
    return args


def chosen_metrics(args: argparse.Namespace) -> list[RowMetric]:
    """The metrics of the chosen protocols, with their options, and the collapse metrics."""
    given: dict[str, dict] = {name: {} for name in args.protocols}
    for option, protocol in _OPTIONS.items():
        if getattr(args, option) is not None:
            given[protocol][option] = getattr(args, option)
    return [*(PROTOCOLS[name](**options) for name, options in given.items()), FeatureStatistics()]


def check_apart(pair: FeaturePair) -> None:
    """Check that no test video is among the training videos.

    Raises:
        ValueError: the two files share videos; the first is named.
    """
    assert pair.gallery is not None
    trained = set(pair.gallery.paths)
    shared = [path for path in pair.queries.paths if path in trained]
    if shared:
        raise ValueError(
            f"{len(shared)} of {len(pair.queries)} test videos of {pair.queries.source} are in "
            f"{pair.gallery.source} too, the first is {shared[0]}: remove them from one, or "
            "evaluate one file with --group-pattern"
        )


@command
def main(argv: list[str] | None = None) -> int:
    """Compute the metrics, print and write them; returns the exit status."""
    args = parse_args(argv)
    chosen = chosen_metrics(args)
    pair = load_feature_pair(args.test, args.train, "probing")
    provenance = {
        **pair.provenance,
        "protocol_name": "probe",
        "protocols": metric_settings(chosen),
    }
    queries = pair.queries
    if pair.gallery is None:
        groups, names = group_ids(queries.paths, args.group_pattern)
        folds = divide(queries.labels, groups, folds=args.folds)
        queries = replace(queries, groups=groups, folds=folds.numbers)
        provenance |= {"group_pattern": args.group_pattern, "groups": names}
        provenance |= folds.described()
        against = f"leaving out {folds.text}"
    else:
        check_apart(pair)
        against = f"against {len(pair.gallery)} of {args.train}"
    for metric in chosen:
        metric.dataset_meta = {"classes": pair.provenance.get("test", {}).get("classes")}
    metrics = compute_metrics(chosen, queries, pair.gallery)
    details = {name: value for metric in chosen for name, value in metric.details.items()}
    listed, texts = listed_metrics(chosen, metrics)
    levels = chance_levels(metrics, queries, pair.gallery)
    shown = telling(listed, {"num_classes": len(queries.labels.unique())}, levels)
    outcomes = outcomes_of(chosen, queries)
    intervals = {} if outcomes is None else outcomes.intervals()
    title, baselines = f"{len(queries)} videos of {args.test}, {against}", {"chance": levels}
    print(format_metric_lines(shown, title, intervals, baselines))
    print(*texts, sep="\n", end="\n" if texts else "")
    for note in pair.notes:
        print(f"  note: {note}")
    if args.json is not None:
        details["chance"] = levels
        content = {"metrics": metrics, **details, "protocol": provenance, "failures": pair.failures}
        if outcomes is not None:
            content["intervals"] = intervals
            save_outcomes(outcomes_path(args.json), outcomes)
        write_json(Path(args.json), content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
