"""The neighbour rows of a page: some videos, each with those that are nearest to it in features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from sce_video.evaluation import Rows
from sce_video.evaluation.functional.clusters import k_centre_greedy, unit_rows
from sce_video.visualization.clip_images import Quality, Strip, fitting, make_strip
from sce_video.visualization.clip_reader import ClipReader, clip_frames
from sce_video.visualization.embeddings import Neighbour, neighbour_table
from sce_video.visualization.gallery import GalleryEntry, format_duration
from sce_video.visualization.page_parts import Part, render_part, sentence_part

_ID, _TITLE = "neighbours", "Nearest neighbours"
_TILE = (132, 110)  # largest width and height of a video on the page, CSS pixels
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
        path: _tile(strip, i) for i, (path, strip) in enumerate(zip(readable, made, strict=True))
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


def _tile(strip: Strip, number: int) -> dict[str, Any]:
    """A strip by its number on the page, and its size there: several rows show the same video."""
    scale = min(_TILE[0] / strip.width, _TILE[1] / strip.height)
    width, height = (round(side * scale, 1) for side in (strip.width, strip.height))
    return {"strip": strip, "number": number, "width": width, "height": height}


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
