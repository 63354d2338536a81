r"""Search with plain and with centred similarities: which finds more videos of the query's class.

    python benchmarks/centring.py CHECKPOINT... --videos FOLDER [--sizes 8 16 32 64 128]
                                  [--group-pattern 'person(\d+)'] [--json OUT]

FOLDER has a sub-folder per class; labels are used to count only. All videos are embedded as
``tools/search.py index`` does. Then, for every size, random videos are drawn as the index, and all
others are queries, as a user's would be; ``--group-pattern`` leaves out videos of the query's own
person. The last row is the whole folder, each video once as query. Per row: precision among the 1
and the 5 most similar, plain and centred by the mean feature of the index, as means over the draws;
and the range in which the plain similarities of a query to the index lie (5 and 95 % quantile).
Several checkpoints (seeds) are averaged, and listed in the JSON file. ``--random`` measures their
networks with random weights instead, each with another seed.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from sce_video.apis import EmbedOptions, VideoModel, embed_files, load_model
from sce_video.datasets import scan_folder
from sce_video.evaluation.functional.groups import group_ids
from sce_video.evaluation.functional.neighbours import (
    feature_mean,
    nearest_neighbours,
    normalised,
)
from sce_video.registry import MODELS

_RANKS = (1, 5)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Search with plain and centred similarities.")
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT")
    parser.add_argument("--videos", required=True, help="folder with a sub-folder per class")
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[8, 16, 32, 64, 128], help="videos of the index"
    )
    parser.add_argument("--draws", type=int, default=50, help="random indexes per size")
    parser.add_argument("--clips", type=int, default=4, help="clips per video")
    parser.add_argument("--group-pattern", metavar="REGEX", help="one group, e.g. the person")
    parser.add_argument("--random", action="store_true", help="random weights instead")
    parser.add_argument("--workers", type=int, default=1, help="decoding processes")
    parser.add_argument("--json", metavar="OUT", help="also write the numbers as JSON")
    return parser.parse_args(argv)


def precisions(
    features: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor, rows: torch.Tensor
) -> dict[str, float]:
    """Precision at each rank, plain and centred, with ``rows`` as the index.

    Videos that are not in the index are the queries; if all are, each is one, without its group.
    """
    outside = torch.ones(len(features), dtype=torch.bool)
    outside[rows] = False
    queries = outside.nonzero().flatten() if bool(outside.any()) else rows
    gallery, mean = features[rows], feature_mean(features[rows])
    found = {}
    for name, centre in (("plain", None), ("centred", mean)):
        similar, where = nearest_neighbours(
            features[queries],
            gallery,
            max(_RANKS),
            query_groups=groups[queries],
            gallery_groups=groups[rows],
            query_mean=centre,
            gallery_mean=centre,
        )
        hits = (labels[rows][where] == labels[queries, None]) & (similar > -torch.inf)
        found |= {f"{name}_p{k}": float(hits[:, :k].double().mean()) for k in _RANKS}
    cosines = (normalised(features[queries]) @ normalised(gallery).T).flatten()
    low, high = torch.quantile(cosines[:1_000_000], torch.tensor([0.05, 0.95])).tolist()
    return {**found, "low": low, "high": high}


def with_random_weights(model: VideoModel, seed: int) -> VideoModel:
    """The same network and input settings before any training."""
    torch.manual_seed(seed)
    settings = model.settings
    preprocessor = dict(type="VideoDataPreprocessor", mean=settings.mean, std=settings.std)
    encoder = MODELS.build(
        dict(type="Encoder", backbone=settings.backbone, data_preprocessor=preprocessor)
    )
    return replace(model, encoder=encoder.to(model.device).eval())


def measure(args: argparse.Namespace, checkpoint: str, seed: int) -> dict[str, dict[str, float]]:
    """The means over the draws, for every size of the index."""
    listed = scan_folder(args.videos)
    paths = [os.path.join(args.videos, listed.path(i)) for i in range(len(listed))]
    options = EmbedOptions(num_clips=args.clips, num_workers=args.workers)
    model = load_model(checkpoint)
    found = embed_files(with_random_weights(model, seed) if args.random else model, paths, options)
    features = torch.from_numpy(found.features)
    labels = torch.from_numpy(listed.labels[found.indices])
    groups = torch.arange(len(labels))
    if args.group_pattern:
        groups, _ = group_ids(found.paths, args.group_pattern)
    draw = torch.Generator().manual_seed(0)
    results = {}
    for size in [size for size in args.sizes if size < len(labels)] + [len(labels)]:
        repeats = args.draws if size < len(labels) else 1
        rows = [torch.randperm(len(labels), generator=draw)[:size] for _ in range(repeats)]
        values = [precisions(features, labels, groups, chosen) for chosen in rows]
        results[str(size)] = {
            name: float(np.mean([value[name] for value in values])) for name in values[0]
        }
    return results


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """A Markdown table of the means over the checkpoints, percent."""
    lines = [
        "| videos | P@1 plain | P@1 centred | P@5 plain | P@5 centred | similarities |",
        "|---|---|---|---|---|---|",
    ]
    for size in next(iter(results.values())):
        rows = [result[size] for result in results.values()]
        mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        cells = [
            f"{100 * mean[f'{kind}_p{k}']:.1f}" for k in _RANKS for kind in ("plain", "centred")
        ]
        lines.append(f"| {size} | {' | '.join(cells)} | {mean['low']:.2f} to {mean['high']:.2f} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    results = {name: measure(args, name, seed) for seed, name in enumerate(args.checkpoints)}
    print(table(results))
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
