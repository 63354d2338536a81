"""The neighbour rows of a page: some videos, each with the videos nearest to it in features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.evaluation.functional.clusters import k_centre_greedy, unit_rows
from sce_video.evaluation.functional.neighbours import nearest_neighbours
from sce_video.evaluation.rows import Rows
from sce_video.pages.frames import ClipReader, ClipTile, ClipTiles
from sce_video.pages.parts import Part, render_part, sentence_part


def principal_plane(features: Tensor) -> Tensor:
    """Project l2-normalised features (N, C), N >= 2, on two principal components: (N, 2).

    The sign of a component makes its largest entry positive, so the plot does not flip between
    runs.

    Raises:
        ValueError: If the features are not a matrix, or there are fewer than two samples.
    """
    if features.ndim != 2 or len(features) < 2:
        raise ValueError(f"a plane needs (N, C) with N >= 2, got {tuple(features.shape)}")
    x = F.normalize(features.double(), dim=1)
    x = x - x.mean(dim=0)
    _, _, directions = torch.linalg.svd(x, full_matrices=False)
    # Features of one dimension have one direction: the other coordinate is 0.
    plane = F.pad(directions[:2], (0, 0, 0, 2 - min(2, len(directions))))
    largest = plane.gather(1, plane.abs().argmax(dim=1, keepdim=True))
    return x @ (plane * torch.where(largest < 0, -1.0, 1.0)).T


@dataclass(frozen=True)
class ShownVideo:
    """A video of a row. A neighbour also has a rank and a cosine."""

    name: str  # folder and file name
    label: str  # name of its class; empty without one
    tile: ClipTile
    rank: int = 0  # from 1
    cosine: float = 1.0  # similarity to the query
    right: bool | None = None  # whether it has the query's label; None if one has none


class ShownRow(NamedTuple):
    """A video and the videos nearest to it."""

    query: ShownVideo
    neighbours: list[ShownVideo]


_ID = "neighbours"  # anchor of this part of the page
_TITLE = "Nearest neighbours"


def neighbour_rows(
    rows: Rows,
    class_names: Sequence[str] = (),
    *,
    num_queries: int = 6,
    queries: Sequence[int] | None = None,
    k: int = 5,
    max_bytes: int = 1_000_000,
    reader: ClipReader | None = None,
) -> Part:
    """Return some videos and the k nearest to each, with cosines, as clips that play on hover.

    Args:
        rows: Features, labels and paths of the files.
        class_names: Names of the labels 0, 1, ...
        num_queries: Number of videos whose neighbours are shown.
        queries: Numbers of these videos; None for videos that are far from each other in features.
        k: Number of neighbours of each video.
        max_bytes: Maximum size of all images together, bytes.
        reader: Reader of the files. None creates one.

    Returns:
        The part, or a part with a sentence if there are fewer than two videos or a feature is not
        finite. Files that cannot be read have a placeholder with the reason, and are counted.
    """
    if len(rows) < 2:
        few = "Only one video has features" if len(rows) else "No video has features"
        return sentence_part(_ID, _TITLE, f"{few}: neighbours need two or more.")
    try:
        if queries is None:
            queries = k_centre_greedy(unit_rows(rows.features), num_queries)
        chosen = torch.tensor(list(queries))
        everybody = torch.arange(len(rows))
        cosines, nearest = nearest_neighbours(
            rows.features[chosen], rows.features, k, groups=(chosen, everybody)
        )
    except ValueError as error:
        return sentence_part(_ID, _TITLE, f"There are no neighbours to show: {error}")
    # If there are fewer than k others, a slot without a video has no finite similarity.
    found = [
        (int(query), [(int(i), float(c)) for i, c in zip(others, near, strict=True) if c > -2])
        for query, others, near in zip(chosen, nearest, cosines, strict=True)
    ]
    paths = (rows.paths[i] for query, others in found for i in (query, *(i for i, _ in others)))
    tiles = ClipTiles(paths, max_bytes, reader or ClipReader())
    labels = rows.labels.tolist()

    def shown_video(row: int) -> ShownVideo:
        name = "/".join(Path(rows.paths[row]).parts[-2:])
        label = label_name(labels[row], class_names) or ""
        return ShownVideo(name, label, tiles.tile(rows.paths[row]))

    def neighbour(query: int, rank: int, row: int, cosine: float) -> ShownVideo:
        right = labels[query] == labels[row] if min(labels[query], labels[row]) >= 0 else None
        return replace(shown_video(row), rank=rank, cosine=cosine, right=right)

    shown = [
        ShownRow(
            shown_video(query),
            [neighbour(query, rank, *other) for rank, other in enumerate(others, 1)],
        )
        for query, others in found
    ]
    compared = [n.right for row in shown for n in row.neighbours if n.right is not None]
    values = {
        "rows": shown,
        "k": min(k, len(rows) - 1),
        "total": len(rows),
        "labelled": len(compared),
        "right": sum(compared),
        "least": min(cosine for _, others in found for _, cosine in others),
        **tiles.values,
    }
    return render_part(_ID, _TITLE, "neighbour_rows.html", values)


def label_name(label: int, class_names: Sequence[str]) -> str | None:
    """Return the name of a class, its number if it has none; None for no label."""
    if label < 0:
        return None
    return class_names[label] if label < len(class_names) else f"class {label}"
