"""The neighbour rows of a page: some videos, each with those that are nearest to it in features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.evaluation import Rows, nearest_neighbours
from sce_video.evaluation.functional.clusters import k_centre_greedy, unit_rows
from sce_video.pages.frames import ClipReader, ClipTiles, Quality
from sce_video.pages.parts import Part, render_part, sentence_part


class Neighbour(TypedDict):
    """A row of :func:`neighbour_table`."""

    query: str
    query_label: int
    rank: int
    path: str
    label: int
    similarity: float


def principal_plane(features: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates (N, 2) of l2-normalised features (N, C) on two principal components, N >= 2.

    Behind them the fractions (2,) of the variance, 0 to 1. The sign of a component makes its
    largest entry positive, so the plot does not flip between runs.

    Raises:
        ValueError: The features are not a matrix, or of fewer than two samples.
    """
    if features.ndim != 2 or len(features) < 2:
        raise ValueError(f"a plane needs (N, C) with N >= 2, got {tuple(features.shape)}")
    x = F.normalize(features.double(), dim=1)
    x = x - x.mean(dim=0)
    _, singular, directions = torch.linalg.svd(x, full_matrices=False)
    # Features of one dimension have one direction: the other coordinate is 0.
    plane = F.pad(directions[:2], (0, 0, 0, 2 - min(2, len(directions))))
    largest = plane.gather(1, plane.abs().argmax(dim=1, keepdim=True))
    plane = plane * torch.where(largest < 0, -1.0, 1.0)
    variance = F.pad(singular.square(), (0, 2))
    return x @ plane.T, variance[:2] / variance.sum().clamp(min=1e-12)


def neighbour_table(videos: Rows, k: int = 5, only: Sequence[int] | None = None) -> list[Neighbour]:
    """The k nearest other videos of every video by cosine similarity, as rows of a table.

    ``only`` are the rows of the videos that are looked up; None: all.
    """
    asked = torch.arange(len(videos)) if only is None else torch.tensor(list(only))
    similarity, rows = nearest_neighbours(
        videos.features[asked],
        videos.features,
        k,
        groups=(asked, torch.arange(len(videos))),
    )
    return [
        Neighbour(
            query=videos.paths[row],
            query_label=int(videos.labels[row]),
            rank=rank + 1,
            path=videos.paths[index],
            label=int(videos.labels[index]),
            similarity=float(similarity[slot, rank]),
        )
        for slot, row in enumerate(asked.tolist())
        for rank, index in enumerate(rows[slot].tolist())
        if torch.isfinite(similarity[slot, rank])
    ]


_ID, _TITLE = "neighbours", "Nearest neighbours"
_LEVELS = (
    Quality(120, 65, 16),
    Quality(96, 60, 12),
    Quality(84, 50, 10),
    Quality(64, 45, 8),
    Quality(48, 40, 6),
    Quality(48, 40, 1),
)


def spread_out(features: Tensor, count: int) -> list[int]:
    """At most ``count`` rows of (N, C) far from each other, most typical first, N >= 1.

    Farthest-point sampling: the first is the one nearest to the mean; each further one is the least
    similar, by cosine, to those before it. Equal features are taken once.
    """
    return k_centre_greedy(unit_rows(features), count)


def neighbour_rows(
    rows: Rows,
    class_names: Sequence[str] = (),
    *,
    num_queries: int = 6,
    k: int = 5,
    max_bytes: int = 1_000_000,
    reader: ClipReader | None = None,
) -> Part:
    """Some videos and the k nearest to each, with cosines, as clips that play on hover.

    Args:
        rows: Features, labels and paths of the files.
        class_names: Names of the labels 0, 1, ...
        num_queries: Videos whose neighbours are shown, far from each other in features.
        k: Neighbours of each.
        max_bytes: Of all images together.
        reader: Reads the files; None makes one.

    Returns:
        The part; one with a sentence if there are no two videos or a feature is not finite. Files
        that cannot be read have a placeholder with the reason, and are counted.
    """
    if len(rows) < 2:
        few = "Only one video has features" if len(rows) else "No video has features"
        return sentence_part(_ID, _TITLE, f"{few}: neighbours need two or more.")
    try:
        queries = spread_out(rows.features, num_queries)
        tables = [neighbour_table(rows, k=k, only=[row]) for row in queries]
    except ValueError as error:
        return sentence_part(_ID, _TITLE, f"There are no neighbours to show: {error}")
    found = [neighbour for table in tables for neighbour in table]
    paths = (path for n in found for path in (n["query"], n["path"]))
    tiles = ClipTiles(paths, _LEVELS, max_bytes, reader or ClipReader())

    def video(path: str, label: int) -> dict[str, Any]:
        name = "/".join(Path(path).parts[-2:])
        return {"name": name, "label": label_name(label, class_names) or "", **tiles.tile(path)}

    def neighbour(n: Neighbour) -> dict[str, Any]:
        known = min(n["query_label"], n["label"]) >= 0
        right = n["query_label"] == n["label"] if known else None
        own = {"rank": n["rank"], "cosine": n["similarity"], "right": right}
        return {**video(n["path"], n["label"]), **own}

    labelled = [n for n in found if n["query_label"] >= 0 and n["label"] >= 0]
    values = {
        "rows": [
            {
                "query": video(table[0]["query"], table[0]["query_label"]),
                "neighbours": [neighbour(n) for n in table],
            }
            for table in tables
        ],
        "k": min(k, len(rows) - 1),
        "total": len(rows),
        "labelled": len(labelled),
        "right": sum(n["query_label"] == n["label"] for n in labelled),
        "least": min(n["similarity"] for n in found),
        "unread": tiles.unread,
        **tiles.values,
    }
    return render_part(_ID, _TITLE, "neighbour_rows.html", values)


def label_name(label: int, class_names: Sequence[str]) -> str | None:
    """The name of a class, its number where it has none; None for no label."""
    if label < 0:
        return None
    return class_names[label] if label < len(class_names) else f"class {label}"
