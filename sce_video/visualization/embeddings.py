"""Features in the plane: projection on two principal components, and nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.evaluation import Rows, nearest_neighbours
from sce_video.visualization.figures import save_figure

_MARKERS = "os^Dv"
_MAX_LEGEND = 30


class Neighbour(TypedDict):
    """A row of :func:`neighbour_table`."""

    query: str
    query_label: int
    rank: int
    path: str
    label: int
    similarity: float


def principal_plane(features: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates of the l2-normalised features on their first two principal components.

    Args:
        features: (N, C), N >= 2.

    Returns:
        Coordinates (N, 2) and the fractions (2,) of the variance, 0 to 1. The sign of a component
        makes its largest entry positive, so the plot does not flip between runs.

    Raises:
        ValueError: fewer than two features.
    """
    if features.ndim != 2 or len(features) < 2:
        raise ValueError(f"a plane needs (N, C) with N >= 2, got {tuple(features.shape)}")
    x = F.normalize(features.double(), dim=1)
    x = x - x.mean(dim=0)
    _, singular, directions = torch.linalg.svd(x, full_matrices=False)
    plane = F.pad(directions[:2], (0, 0, 0, 2 - min(2, len(directions))))
    largest = plane.gather(1, plane.abs().argmax(dim=1, keepdim=True))
    plane = plane * torch.where(largest < 0, -1.0, 1.0)
    variance = F.pad(singular.square(), (0, 2))
    return x @ plane.T, variance[:2] / variance.sum().clamp(min=1e-12)


def draw_embeddings(
    features: Rows,
    path: str | Path,
    class_names: Sequence[str] = (),
    title: str = "",
) -> None:
    """Write a scatter plot of the principal plane, one colour and marker per class.

    Args:
        features: One point each; label -1 is drawn grey as "no label".
        path: Image file to write, for example ``embeddings.png``.
        class_names: Names of the labels 0, 1, ...; a label without name is shown as number.
        title: Title of the plot.
    """
    from matplotlib import colormaps  # imported here: a slow import
    from matplotlib.figure import Figure

    points, fraction = principal_plane(features.features)
    figure = Figure(figsize=(7.5, 5.5), layout="constrained")
    axes = figure.add_subplot()
    colours = colormaps["tab10"]
    classes = features.labels.unique().tolist()
    for label in classes:
        own = points[features.labels == label]
        name = class_names[label] if 0 <= label < len(class_names) else f"class {label}"
        axes.scatter(
            own[:, 0].numpy(),
            own[:, 1].numpy(),
            s=28,
            alpha=0.8,
            color="0.7" if label < 0 else colours(label % 10),
            marker=_MARKERS[label // 10 % len(_MARKERS)] if label >= 0 else "x",
            linewidths=0,
            label="no label" if label < 0 else name,
        )
    axes.set_xlabel(f"first principal direction ({100 * fraction[0]:.0f} % of the variance)")
    axes.set_ylabel(f"second ({100 * fraction[1]:.0f} %)")
    axes.set_aspect("equal", adjustable="datalim")
    axes.grid(alpha=0.3)
    axes.set_title(title or f"{len(features)} videos")
    if len(classes) <= _MAX_LEGEND:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    save_figure(figure, path, dpi=120)


def neighbour_table(
    queries: Rows, gallery: Rows | None = None, k: int = 5, only: Sequence[int] | None = None
) -> list[Neighbour]:
    """The k nearest videos of every video by cosine similarity, as rows of a table.

    Args:
        queries: Videos whose neighbours are searched.
        gallery: Videos that are searched; None searches the queries, without the video itself.
        k: Neighbours of each video.
        only: The queries that are looked up, by their row; None: all.
    """
    asked = torch.arange(len(queries)) if only is None else torch.tensor(list(only))
    among = queries if gallery is None else gallery
    similarity, rows = nearest_neighbours(
        queries.features[asked],
        among.features,
        k,
        query_groups=asked if gallery is None else None,
        gallery_groups=torch.arange(len(queries)) if gallery is None else None,
    )
    return [
        Neighbour(
            query=queries.paths[row],
            query_label=int(queries.labels[row]),
            rank=rank + 1,
            path=among.paths[index],
            label=int(among.labels[index]),
            similarity=float(similarity[slot, rank]),
        )
        for slot, row in enumerate(asked.tolist())
        for rank, index in enumerate(rows[slot].tolist())
        if torch.isfinite(similarity[slot, rank])
    ]
