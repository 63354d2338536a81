"""Video retrieval from feature files: R@k by cosine similarity, centred and plain.

    python tools/retrieve.py --query Q.npz --bank B.npz [--ks 1 5 10] [--json OUT]
                             [--neighbours OUT.npz]

The files are those of sce-video embed, or others with ``features``, ``labels`` and
``paths``. The search is exact and in blocks: besides the features, memory depends on the block
sizes only. A gallery video (--bank) with the path of the query is excluded, so both options may
name the same file.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from sce_video.evaluation.feature_files import FeaturePair, load_feature_pair
from sce_video.evaluation.functional.neighbours import ROW_BLOCK
from sce_video.evaluation.metrics.feature_metrics import RetrievalResult, retrieve
from sce_video.inference.npz_files import write_npz
from sce_video.utils.command import command
from sce_video.utils.files import write_json


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="R@k of feature files, centred and plain.")
    parser.add_argument("--query", "--test", required=True, help="features of the queries (.npz)")
    parser.add_argument("--bank", "--train", required=True, help="features of the gallery (.npz)")
    parser.add_argument("--ks", type=int, nargs="+", default=[1, 5, 10], help="ranks")
    parser.add_argument("--json", metavar="OUT", help="JSON file for metrics and provenance")
    parser.add_argument(
        "--neighbours", metavar="OUT.npz", help="file for the nearest gallery rows of each query"
    )
    parser.add_argument("--block", type=int, default=1024, help="queries compared at a time")
    parser.add_argument(
        "--bank-block", type=int, default=ROW_BLOCK, help="rows of the gallery compared at a time"
    )
    return parser.parse_args(argv)


def format_recall(outcome: RetrievalResult) -> str:
    """A line per rank: R@k with centred and with plain features, in percent."""
    lines = [f"  {'':8} {'centred':>10} {'plain':>10}"]
    for k, value in outcome.centred.items():
        lines.append(f"  {f'R@{k}':8} {100 * value:8.2f} % {100 * outcome.plain[k]:8.2f} %")
    return "\n".join(lines)


def notes(pair: FeaturePair, outcome: RetrievalResult, gallery: str) -> list[str]:
    """Remarks for the user on what limits the metrics."""
    found = list(pair.notes)
    if outcome.shared:
        found.append(
            f"{outcome.shared} of {len(pair.queries)} queries are in {gallery} too: each is "
            "excluded from its own neighbours"
        )
    if outcome.unseen:
        found.append(
            f"{outcome.unseen} of {len(pair.queries)} queries have a class not in {gallery}: "
            "counted as misses"
        )
    return found


def report(pair: FeaturePair, outcome: RetrievalResult) -> dict:
    """The content of the JSON file."""
    provenance = {
        **pair.provenance,
        "protocol_name": "retrieval",
        "ks": list(outcome.centred),
        "shared_paths": outcome.shared,
        "queries_of_unseen_classes": outcome.unseen,
    }
    if outcome.shared:
        provenance["benchmark"] = None  # no published result has shared videos
    return {
        "metrics": outcome.metrics(),
        "centred": {f"R@{k}": value for k, value in outcome.centred.items()},
        "plain": {f"R@{k}": value for k, value in outcome.plain.items()},
        "protocol": provenance,
        "failures": pair.failures,
    }


def save_neighbours(
    path: str, pair: FeaturePair, outcome: RetrievalResult, provenance: dict
) -> None:
    """Write the rankings to a .npz file.

    ``paths`` (N,) of the queries; ``centred_indices`` and ``plain_indices`` (N, k), gallery rows in
    descending order of similarity; and likewise ``*_similarities`` and ``*_hits``.
    """
    arrays = {"paths": np.array(pair.queries.paths, dtype=np.str_)}
    for name, ranking in outcome.rankings.items():
        arrays[f"{name}_indices"] = ranking.indices.numpy()
        arrays[f"{name}_similarities"] = ranking.similarities.numpy()
        arrays[f"{name}_hits"] = ranking.hits.numpy()
    write_npz(path, arrays, provenance)


def check_outputs(args: argparse.Namespace) -> None:
    """Check that no output overwrites an input.

    Raises:
        ValueError: an output is an input, or ``--neighbours`` is no .npz file.
    """
    for out in (args.json, args.neighbours):
        for given in (args.query, args.bank):
            if out is not None and os.path.realpath(out) == os.path.realpath(given):
                raise ValueError(f"{out} is an input and would be overwritten")
    if args.neighbours is not None and not args.neighbours.endswith(".npz"):
        raise ValueError(f"--neighbours writes a .npz file, got {args.neighbours}")


@command
def main(argv: list[str] | None = None) -> int:
    """Run the search, print and write the results; returns the exit status."""
    args = parse_args(argv)
    check_outputs(args)
    pair = load_feature_pair(args.query, args.bank, "retrieval")
    assert pair.gallery is not None
    outcome = retrieve(
        pair.queries,
        pair.gallery,
        ks=sorted(set(args.ks)),
        block=args.block,
        gallery_block=args.bank_block,
    )
    print(
        f"retrieval: {len(pair.queries)} queries of {args.query} in {len(pair.gallery)} videos "
        f"of {args.bank}, {pair.queries.features.shape[1]} dimensions, cosine, exact"
    )
    print(format_recall(outcome))
    for note in notes(pair, outcome, args.bank):
        print(f"  note: {note}")
    content = report(pair, outcome)
    if args.neighbours is not None:
        save_neighbours(args.neighbours, pair, outcome, content["protocol"])
    if args.json is not None:
        write_json(Path(args.json), content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
