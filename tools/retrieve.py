"""Video retrieval from feature files: R@k by cosine, centred and plain, side by side.

    python tools/retrieve.py --query Q.npz --bank B.npz [--ks 1 5 10] [--json OUT]
                             [--backend exact|faiss] [--neighbours OUT.npz]

The files are those of tools/extract_features.py, or others with ``features``, ``labels`` and
``paths``. Exact and in blocks: beyond the features, memory depends on the blocks alone. A video of
the gallery (--bank) with the path of the query is not counted as its neighbour, so both may be one
file.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from sce_video.evaluation import RetrievalResult, retrieve
from sce_video.evaluation.feature_pairs import FeaturePair, load_feature_pair
from sce_video.evaluation.functional.neighbours import ROW_BLOCK
from sce_video.evaluation.npz_files import write_npz
from sce_video.utils.atomic_file import write_json


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="R@k of feature files, centred and plain.")
    parser.add_argument("--query", "--test", required=True, help="features of the queries (.npz)")
    parser.add_argument("--bank", "--train", required=True, help="features of the gallery (.npz)")
    parser.add_argument("--ks", type=int, nargs="+", default=[1, 5, 10], help="ranks")
    parser.add_argument("--json", metavar="OUT", help="write metrics and provenance there")
    parser.add_argument(
        "--neighbours", metavar="OUT.npz", help="write the nearest rows of the gallery there"
    )
    parser.add_argument("--backend", choices=["exact", "faiss"], default="exact")
    parser.add_argument(
        "--faiss-index",
        default="Flat",
        metavar="FACTORY",
        help="index of the faiss backend: Flat (exact, the default), SQfp16, SQ8, HNSW32, ...",
    )
    parser.add_argument("--block", type=int, default=1024, help="queries compared at a time")
    parser.add_argument(
        "--bank-block", type=int, default=ROW_BLOCK, help="rows of the gallery compared at a time"
    )
    return parser.parse_args(argv)


def format_recall(outcome: RetrievalResult) -> str:
    """A row for every rank: centred and plain, in percent."""
    lines = [f"  {'':8} {'centred':>10} {'plain':>10}"]
    for k, value in outcome.centred.items():
        lines.append(f"  {f'R@{k}':8} {100 * value:8.2f} % {100 * outcome.plain[k]:8.2f} %")
    return "\n".join(lines)


def notes(pair: FeaturePair, outcome: RetrievalResult, gallery: str) -> list[str]:
    """What limits the numbers."""
    found = list(pair.notes)
    if outcome.shared:
        found.append(
            f"{outcome.shared} of {len(pair.queries)} queries are in {gallery} too: left out as "
            "neighbours of themselves"
        )
    if outcome.unseen:
        found.append(
            f"{outcome.unseen} of {len(pair.queries)} queries have a class that {gallery} lacks: "
            "counted as missed"
        )
    return found


def report(args: argparse.Namespace, pair: FeaturePair, outcome: RetrievalResult) -> dict:
    """The content of the JSON file."""
    protocol = {
        **pair.protocol,
        "protocol_name": "retrieval",
        "ks": list(outcome.centred),
        "backend": args.backend,
        "shared_paths": outcome.shared,
        "queries_of_unseen_classes": outcome.unseen,
    }
    if outcome.shared:
        protocol["benchmark"] = None  # query and gallery are apart in every published number
    if args.backend == "faiss":
        protocol["faiss_index"] = args.faiss_index
    return {
        "metrics": outcome.metrics(),
        "centred": {f"R@{k}": value for k, value in outcome.centred.items()},
        "plain": {f"R@{k}": value for k, value in outcome.plain.items()},
        "protocol": protocol,
        "failures": pair.failures,
    }


def save_neighbours(path: str, pair: FeaturePair, outcome: RetrievalResult, protocol: dict) -> None:
    """Write ``paths`` (N,) of the queries and, of both rankings, ``indices``, ``similarities``
    and ``hits`` (N, k): ``centred_indices`` and so on are rows of the gallery, nearest first."""
    arrays = {"paths": np.array(pair.queries.paths, dtype=np.str_)}
    for name, ranking in outcome.rankings.items():
        arrays[f"{name}_indices"] = ranking.indices.numpy()
        arrays[f"{name}_similarities"] = ranking.similarities.numpy()
        arrays[f"{name}_hits"] = ranking.hits.numpy()
    write_npz(path, arrays, protocol)


def check_outputs(args: argparse.Namespace) -> None:
    """Refuse to write over what is read.

    Raises:
        ValueError: an output is an input.
    """
    for out in (args.json, args.neighbours):
        for given in (args.query, args.bank):
            if out is not None and os.path.realpath(out) == os.path.realpath(given):
                raise ValueError(f"{out} is an input and would be overwritten")
    if args.neighbours is not None and not args.neighbours.endswith(".npz"):
        raise ValueError(f"--neighbours writes a .npz file, got {args.neighbours}")


def main(argv: list[str] | None = None) -> int:
    """Search, print and write; returns the exit status."""
    args = parse_args(argv)
    try:
        check_outputs(args)
        pair = load_feature_pair(args.query, args.bank, "retrieval")
        assert pair.gallery is not None
        outcome = retrieve(
            pair.queries,
            pair.gallery,
            ks=sorted(set(args.ks)),
            backend=args.backend,
            faiss_index=args.faiss_index,
            block=args.block,
            gallery_block=args.bank_block,
        )
        print(
            f"retrieval: {len(pair.queries)} queries of {args.query} in {len(pair.gallery)} videos "
            f"of {args.bank}, {pair.queries.features.shape[1]} dimensions, cosine, {args.backend}"
        )
        print(format_recall(outcome))
        for note in notes(pair, outcome, args.bank):
            print(f"  note: {note}")
        content = report(args, pair, outcome)
        if args.neighbours is not None:
            save_neighbours(args.neighbours, pair, outcome, content["protocol"])
        if args.json is not None:
            write_json(Path(args.json), content)
    except (ValueError, OSError, ImportError) as error:
        print(f"retrieve: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
