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
from sce_video.pages.frames import (
    ClipReader,
    Quality,
    Strip,
    clip_frames,
    fitting,
    make_strip,
    page_tile,
)
from sce_video.pages.gallery import GalleryEntry, format_duration
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
    # Features of one dimension have one direction: the other coordinate is 0.
    plane = F.pad(directions[:2], (0, 0, 0, 2 - min(2, len(directions))))
    largest = plane.gather(1, plane.abs().argmax(dim=1, keepdim=True))
    plane = plane * torch.where(largest < 0, -1.0, 1.0)
    variance = F.pad(singular.square(), (0, 2))
    return x @ plane.T, variance[:2] / variance.sum().clamp(min=1e-12)


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
        groups=(asked, torch.arange(len(queries))) if gallery is None else None,
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
    """Rows that are far from each other, most typical first (farthest-point sampling).

    The first is the one nearest to the mean; each further one is the least similar, by cosine, to
    those before it. Equal features are taken once.

    Args:
        features: (N, C), N >= 1.
        count: How many; fewer if there are no more different ones.
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
        found = "Only one video has features" if len(rows) else "No video has features"
        return sentence_part(_ID, _TITLE, f"{found}: neighbours need two or more.")
    try:
        queries = spread_out(rows.features, num_queries)
        tables = [neighbour_table(rows, k=k, only=[row]) for row in queries]
    except ValueError as error:
        return sentence_part(_ID, _TITLE, f"There are no neighbours to show: {error}")
    reader = reader or ClipReader()
    entries = reader.read_all(path for t in tables for n in t for path in (n["query"], n["path"]))
    readable = [path for path, entry in entries.items() if not entry.problem]
    made = fitting(readable, lambda p, q: _strip(entries[p], q), _LEVELS, max_bytes)
    tiles = {
        path: page_tile(strip, i)
        for i, (path, strip) in enumerate(zip(readable, made, strict=True))
    }
    found_rows = [neighbour for table in tables for neighbour in table]
    labelled = [n for n in found_rows if n["query_label"] >= 0 and n["label"] >= 0]
    values = {
        "strips": made,
        "rows": [_row(table, entries, tiles, class_names) for table in tables],
        "k": min(k, len(rows) - 1),
        "total": len(rows),
        "labelled": len(labelled),
        "right": sum(n["query_label"] == n["label"] for n in labelled),
        "least": min(n["similarity"] for n in found_rows),
        "unread": [(p, e.problem) for p, e in entries.items() if e.problem and not e.skipped],
        "skipped": sum(entry.skipped for entry in entries.values()),
        "seconds": reader.seconds,
        "shown": len(entries),
    }
    return render_part(_ID, _TITLE, "neighbour_rows.html", values)


def _strip(entry: GalleryEntry, quality: Quality) -> Strip:
    return make_strip(*clip_frames(entry), quality)


def _row(
    table: Sequence[Neighbour],
    entries: dict[str, GalleryEntry],
    tiles: dict[str, dict[str, Any]],
    class_names: Sequence[str],
) -> dict[str, Any]:
    """Template values of one query."""
    first = table[0]
    label = first["query_label"]
    return {
        "query": _video(first["query"], label, entries, tiles, class_names),
        "neighbours": [
            {
                **_video(n["path"], n["label"], entries, tiles, class_names),
                "rank": n["rank"],
                "cosine": n["similarity"],
                "right": n["label"] == label if min(label, n["label"]) >= 0 else None,
            }
            for n in table
        ],
    }


def _video(
    path: str,
    label: int,
    entries: dict[str, GalleryEntry],
    tiles: dict[str, dict[str, Any]],
    class_names: Sequence[str],
) -> dict[str, Any]:
    duration = entries[path].duration
    return {
        "name": "/".join(Path(path).parts[-2:]),
        "label": label_name(label, class_names) or "",
        "problem": entries[path].problem,
        "skipped": entries[path].skipped,
        "duration": "" if duration is None else format_duration(duration),
        **tiles.get(path, {}),
    }


def label_name(label: int, class_names: Sequence[str]) -> str | None:
    """The name of a class, its number where it has none; None for no label."""
    if label < 0:
        return None
    return class_names[label] if label < len(class_names) else f"class {label}"
