"""Features on a page: a map of points and rows of neighbours, whose clips play on hover."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple

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

#: Number of features above which only the principal plane is computed: t-SNE and UMAP take minutes.
MAX_NEIGHBOUR_MAP = 3000
#: Number of dimensions kept before t-SNE and UMAP.
_COMPONENTS = 50
#: Coordinates of unit vectors below this value are rounding errors.
_ROUNDING = 1e-5


def projections(features: Tensor, seed: int = 0) -> dict[str, np.ndarray]:
    """Project l2-normalised features (N, C) to the plane: (N, 2) float32 by method.

    The methods are ``PCA`` and, for 10 to :data:`MAX_NEIGHBOUR_MAP` features that are not all
    equal, ``UMAP`` if umap-learn is installed, or else ``t-SNE`` if scikit-learn is. Fewer than two
    features raise ValueError.
    """
    found = {"PCA": principal_plane(features).numpy().astype(np.float32)}
    if not 10 <= len(features) <= MAX_NEIGHBOUR_MAP:
        return found
    centred = F.normalize(features.double(), dim=1)
    centred = centred - centred.mean(dim=0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    x = (centred @ directions[:_COMPONENTS].T).float().numpy()
    # For equal features, scikit-learn's t-SNE divides by zero and ends the process.
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
    """Return a map of the features in the plane, coloured by label or folder.

    Args:
        rows: Features, labels and paths of the files.
        class_names: Names of the labels 0, 1, ...
        planes: Coordinates (N, 2) by the name of their method. None computes :func:`projections`.
        max_clips: Number of points whose clips are included, far from each other in features. The
            others only show their names.
        max_bytes: Maximum size of all clips together, bytes.
        reader: Reader of the files. None creates one.

    Returns:
        The part, or a part with a sentence if there are fewer than two videos or a feature is not
        finite.
    """
    if len(rows) < 2:
        found = "Only one video has features" if len(rows) else "No video has features"
        return sentence_part(_MAP_ID, _MAP_TITLE, f"{found}: a map needs two or more.")
    try:
        check_features(rows.features, rows.name)
        planes = projections(rows.features) if planes is None else planes
    except ValueError as error:
        return sentence_part(_MAP_ID, _MAP_TITLE, f"There is no map to show: {error}")
    reader = reader or ClipReader()
    # Points far from each other in features have clips; of too many bytes the last have none.
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
    # Percent of the variance of the features in their PCA, unless they are equal.
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
) -> dict[str, Any]:
    """Return the data for ``featureMap`` of ``feature_map.js``: lists with an entry per point."""
    names, groups = relative_names(rows.paths)
    labels = [label_name(label, class_names) for label in rows.labels.tolist()]
    data: dict[str, Any] = {"projections": {}, "name": names, "label": labels}
    for name, plane in planes.items():
        # Four digits of the range of the coordinates are less than a pixel.
        spread = max(float(np.ptp(plane, axis=0).max()), 1e-12)
        digits = 4 - int(np.ceil(np.log10(spread)))
        x, y = np.round(np.asarray(plane, np.float64), digits).T.tolist()
        data["projections"][name] = {"x": x, "y": y}
    # Folders that are just the classes are not offered in addition.
    pairs = set(zip(labels, groups, strict=True))
    if not len(pairs) == len(set(labels)) == len(set(groups)):
        data["group"] = groups
    if any(clips):
        data["clip"] = list(clips)
    return data


def relative_names(paths: Sequence[str]) -> tuple[list[str], list[str | None]]:
    """Return paths below their common folder, and each one's first sub-folder (None: directly)."""
    parts = [PurePath(path).parts for path in paths]
    shared = 0
    while all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
        shared += 1
    names = ["/".join(p[shared:]) for p in parts]
    return names, [p[shared] if len(p) > shared + 1 else None for p in parts]


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
    # One-dimensional features have one direction, so the other coordinate is 0.
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
    """Return some videos and the k nearest to each, with cosines, as clips that play on hover.

    Args:
        rows: Features, labels and paths of the files.
        class_names: Names of the labels 0, 1, ...
        num_queries: Number of videos whose neighbours are shown.
        queries: Indices of these videos; None for videos that are far from each other in features.
        k: Number of neighbours of each video.
        max_bytes: Maximum size of all images together, bytes.
        reader: Reader of the files. None creates one.

    Returns:
        The part, or a part with a sentence if there are fewer than two videos or a feature is not
        finite. Files that cannot be read have a placeholder with the reason, and are counted.
    """
    if len(rows) < 2:
        few = "Only one video has features" if len(rows) else "No video has features"
        return sentence_part(_ROWS_ID, _ROWS_TITLE, f"{few}: neighbours need two or more.")
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
    return render_part(_ROWS_ID, _ROWS_TITLE, "neighbour_rows.html", values)
