"""Parts of a page that show features: a map of all videos, and rows of nearest neighbours."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.evaluation.functional.clusters import k_centre_greedy, unit_rows
from sce_video.evaluation.functional.neighbours import check_features, nearest_neighbours
from sce_video.evaluation.rows import Rows
from sce_video.pages.frames import (
    ClipReader,
    ClipTile,
    ClipTiles,
    Quality,
    Strip,
    clip_frames,
    fitting,
    make_strip,
)
from sce_video.pages.parts import Part, label_name, render_part, sentence_part

#: Maximum number of features for t-SNE and UMAP, which would take minutes for more.
MAX_NEIGHBOUR_MAP = 3000
#: Number of principal components that t-SNE and UMAP receive.
_COMPONENTS = 50
#: Largest coordinate of a unit vector that may be just a rounding error.
_ROUNDING = 1e-5


def projections(features: Tensor, seed: int = 0) -> dict[str, np.ndarray]:
    """Project l2-normalised features (N, C) to the plane, (N, 2) float32 for each method.

    The methods are ``PCA`` and, for 10 to 3000 features that are not all equal, ``UMAP`` if
    umap-learn is installed, or ``t-SNE`` if only scikit-learn is installed.

    Raises:
        ValueError: If there are fewer than two features.
    """
    found = {"PCA": principal_plane(features).numpy().astype(np.float32)}
    if not 10 <= len(features) <= MAX_NEIGHBOUR_MAP:
        return found
    centred, directions = _principal_directions(features)
    x = (centred @ directions[:_COMPONENTS].T).float().numpy()
    # Stop if all features are equal, because scikit-learn's t-SNE would divide by zero and crash
    # the process.
    if np.abs(x).max() <= _ROUNDING:
        return found
    if importlib.util.find_spec("umap") is not None:
        import umap

        reducer = umap.UMAP(n_neighbors=min(15, len(x) - 1), random_state=seed)
        found["UMAP"] = reducer.fit_transform(x).astype(np.float32)
    elif importlib.util.find_spec("sklearn") is not None:
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(x) - 1) / 3)
        found["t-SNE"] = TSNE(perplexity=perplexity, random_state=seed).fit_transform(x)
    return found


_MAP_ID = "map"  # anchor of this part of the page
_MAP_TITLE = "Map of the features"
_LEVELS = (Quality(110, 55, 12), Quality(90, 50, 10), Quality(72, 45, 8), Quality(56, 40, 6))


def feature_map_part(
    rows: Rows,
    class_names: Sequence[str] = (),
    *,
    planes: Mapping[str, np.ndarray] | None = None,
    max_clips: int = 80,
    max_bytes: int = 1_500_000,
    reader: ClipReader | None = None,
) -> Part:
    """Return the part with a map of the features, coloured by label or folder.

    If there are fewer than two videos or a feature is not finite, the part is a sentence.

    Args:
        rows: Features, labels and paths of the files.
        class_names: Names of the labels 0, 1, ...
        planes: Coordinates (N, 2) by the name of the method; None for :func:`projections`.
        max_clips: Largest number of clips, which belong to different points all over the map.
        max_bytes: Largest total size of all clips in bytes.
        reader: Reader of the files; None for a new one.
    """
    if len(rows) < 2:
        found = "Only one video has features" if len(rows) else "No video has features"
        return sentence_part(_MAP_ID, _MAP_TITLE, f"{found}, but a map needs at least two.")
    try:
        check_features(rows.features, rows.name)
        planes = projections(rows.features) if planes is None else planes
    except ValueError as error:
        return sentence_part(_MAP_ID, _MAP_TITLE, f"There is no map to show: {error}")
    reader = reader or ClipReader()
    # Choose points with different features. If not all clips fit, the points that were chosen last
    # are left out.
    chosen = k_centre_greedy(unit_rows(rows.features), max_clips) if max_clips > 0 else []
    entries = reader.read_all(rows.paths[row] for row in chosen)
    shown = [row for row in chosen if not entries[rows.paths[row]].problem]

    def animation(row: int, quality: Quality) -> Strip:
        return make_strip(*clip_frames(entries[rows.paths[row]]), quality, animated=True)

    clips: list[str | None] = [None] * len(rows)
    for row, strip in zip(shown, fitting(shown, animation, _LEVELS, max_bytes), strict=True):
        clips[row] = strip.uri or None
    values = {
        "data": _map_data(rows, class_names, planes, clips),
        "total": len(rows),
        "with_clips": sum(clip is not None for clip in clips),
        "problems": [(e.name, e.problem) for e in entries.values() if e.problem and not e.skipped],
        "skipped": sum(entry.skipped for entry in entries.values()),
        "tried": len(entries),
        "seconds": reader.seconds,
        "methods": list(planes),
    }
    # Compute the percentage of the variance that PCA shows, unless all features are equal.
    x = F.normalize(rows.features.float(), dim=1)
    total = float((x - x.mean(dim=0)).square().sum())
    values["kept"] = None
    if "PCA" in planes and total > 1e-9:
        values["kept"] = round(100 * float(np.square(planes["PCA"]).sum()) / total)
    return render_part(_MAP_ID, _MAP_TITLE, "feature_map.html", values)


def _map_data(
    rows: Rows,
    class_names: Sequence[str],
    planes: Mapping[str, np.ndarray],
    clips: Sequence[str | None],
) -> dict[str, object]:
    """Return the data for ``feature_map.js``, as lists with an entry for each point."""
    names, groups = relative_names(rows.paths)
    labels = [label_name(label, class_names) for label in rows.labels.tolist()]
    shown: dict[str, dict[str, list[float]]] = {}
    data: dict[str, object] = {"projections": shown, "name": names, "label": labels}
    for name, plane in planes.items():
        # Round to a ten-thousandth of the range, which is less than a pixel.
        spread = max(float(np.ptp(plane, axis=0).max()), 1e-12)
        digits = 4 - int(np.ceil(np.log10(spread)))
        x, y = np.round(np.asarray(plane, np.float64), digits).T.tolist()
        shown[name] = {"x": x, "y": y}
    # Offer colours by folder only if the folders differ from the labels.
    pairs = set(zip(labels, groups, strict=True))
    if not len(pairs) == len(set(labels)) == len(set(groups)):
        data["group"] = groups
    if any(clips):
        data["clip"] = list(clips)
    return data


def relative_names(paths: Sequence[str]) -> tuple[list[str], list[str | None]]:
    """Return paths relative to their common folder, and the first sub-folder of each, if any."""
    parts = [PurePath(path).parts for path in paths]
    shared = 0
    while all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
        shared += 1
    names = ["/".join(p[shared:]) for p in parts]
    return names, [p[shared] if len(p) > shared + 1 else None for p in parts]


def principal_plane(features: Tensor) -> Tensor:
    """Project l2-normalised features (N, C), N >= 2, to their two principal components (N, 2).

    The largest entry of a component is positive, so that the plot is never flipped.

    Raises:
        ValueError: If the features are not a matrix, or there are fewer than two samples.
    """
    if features.ndim != 2 or len(features) < 2:
        raise ValueError(f"features must be (N, C) with N >= 2, got {tuple(features.shape)}")
    x, directions = _principal_directions(features)
    # One-dimensional features have only one direction, so the other coordinate is 0.
    plane = F.pad(directions[:2], (0, 0, 0, 2 - min(2, len(directions))))
    largest = plane.gather(1, plane.abs().argmax(dim=1, keepdim=True))
    return x @ (plane * torch.where(largest < 0, -1.0, 1.0)).T


def _principal_directions(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return centred l2-normalised features (N, C) float64, and their principal directions."""
    x = F.normalize(features.double(), dim=1)
    x = x - x.mean(dim=0)
    return x, torch.linalg.svd(x, full_matrices=False)[2]


@dataclass(frozen=True)
class ShownVideo:
    """Video in a row: the query, or a neighbour with rank and cosine."""

    name: str  # name of the file and its folder
    label: str  # class name; empty if there is no label
    tile: ClipTile
    rank: int = 0  # from 1
    cosine: float = 1.0  # similarity to the query
    right: bool | None = None  # whether its label is the query's label; None if either is missing


class ShownRow(NamedTuple):
    """Video and its nearest neighbours."""

    query: ShownVideo
    neighbours: list[ShownVideo]


_ROWS_ID = "neighbours"  # anchor of this part of the page
_ROWS_TITLE = "Nearest neighbours"


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
    """Return the part with some videos and the k nearest neighbours of each.

    If there are fewer than two videos or a feature is not finite, the part is a sentence. Files
    that cannot be read are replaced by the reason, and counted.

    Args:
        rows: Features, labels and paths of the files.
        class_names: Names of the labels 0, 1, ...
        num_queries: Number of videos whose neighbours are shown.
        queries: Indices of these videos; None for videos with different features.
        k: Number of neighbours of each video.
        max_bytes: Largest total size of all images in bytes.
        reader: Reader of the files; None for a new one.
    """
    if len(rows) < 2:
        few = "Only one video has features" if len(rows) else "No video has features"
        return sentence_part(_ROWS_ID, _ROWS_TITLE, f"{few}, but neighbours need at least two.")
    try:
        if queries is None:
            queries = k_centre_greedy(unit_rows(rows.features), num_queries)
        chosen = torch.tensor(list(queries))
        everybody = torch.arange(len(rows))
        cosines, nearest = nearest_neighbours(
            rows.features[chosen], rows.features, k, groups=(chosen, everybody)
        )
    except ValueError as error:
        return sentence_part(_ROWS_ID, _ROWS_TITLE, f"There are no neighbours to show: {error}")
    # If there are fewer than k other videos, some slots are empty. Their similarity is not finite.
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
    return render_part(_ROWS_ID, _ROWS_TITLE, "neighbour_rows.html", values)
