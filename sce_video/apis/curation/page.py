"""What the page of a curation shows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from sce_video.apis.curation.curate import FRAMES, NONE, Curation
from sce_video.apis.curation.duplicates import Group
from sce_video.apis.curation.write import cluster_examples
from sce_video.visualization.clip_groups import Clip, ClipRow, ClipSection, write_clip_groups

_GROUPS, _OUTLIERS, _SUBSET, _CLUSTERS = 24, 16, 24, 40
_OF_GROUP = 7  # removed videos shown of a group


def write_page(path: str | os.PathLike, found: Curation, report: dict[str, Any]) -> None:
    """Write the page: duplicates, outliers, clusters and subset with clips.

    Args:
        path: The HTML file.
        found: Of :func:`~sce_video.apis.curation.curate`.
        report: Of :func:`~sce_video.apis.curation.write.write_curation`.
    """
    counts = report["counts"]
    facts = [
        (f"{counts['videos']:,}", "videos"),
        (f"{counts['kept']:,}", "kept"),
        (f"{counts['near_duplicates']:,}", "near-duplicates removed"),
        (f"{counts['outliers']:,}", "outliers"),
        (f"{counts['undecodable']:,}", "not decodable"),
    ]
    notes = list(report["notes"])
    if found.duplicates.unread:
        notes.append(
            f"{counts['not_compared']} videos could not be compared by frames, and are kept: see "
            "report.json."
        )
    sections = [_duplicates(found), _outliers(found), _clusters(found)]
    if found.subset:
        sections.append(_subset(found))
    lead = f"Features of {found.videos.source}. Point at a clip, or tap it, to play it."
    name = os.path.basename(os.path.normpath(found.videos.root or found.videos.source))
    write_clip_groups(path, f"Curation of {name}", lead, facts, sections, notes=notes)


def _clip(found: Curation, row: int, fact: str = "", mark: str = "") -> Clip:
    return Clip(found.videos.paths[row], found.videos.files[row], fact, mark)


def _shown(items: Sequence[Any], most: int, what: str) -> str:
    return f" The first {most} of {len(items):,} {what} are shown." if len(items) > most else ""


def _duplicates(found: Curation) -> ClipSection:
    groups = found.duplicates.groups
    if found.options.duplicates == NONE:
        note = "They were not searched."
    else:
        by_frames = found.options.duplicates == FRAMES
        note = (
            f"Videos whose {'frames correlate' if by_frames else 'features have a cosine'} by "
            f"{found.options.threshold:g} or more with those of another one of the group. "
            + (
                "Kept: the longest, of equally long ones the one with the largest frames."
                if by_frames
                else "Kept: the one most similar to the others."
            )
            + (_shown(groups, _GROUPS, "groups") if groups else " There are none.")
        )
    rows = [_group(found, group) for group in groups[:_GROUPS]]
    return ClipSection("duplicates", "Near-duplicates", note, rows)


def _group(found: Curation, group: Group) -> ClipRow:
    clips = [_clip(found, group.kept, mark="kept")]
    clips += [
        _clip(found, video.row, f"{video.similarity:.2f}", "removed")
        for video in group.removed[:_OF_GROUP]
    ]
    more = len(group.removed) - _OF_GROUP
    note = f"and {more} more, in report.json" if more > 0 else ""
    return ClipRow(f"{len(group.removed) + 1} videos", clips, note)


def _outliers(found: Curation) -> ClipSection:
    rows = found.outliers
    note = (
        "Videos far from all others in features: the mean cosine distance to the 10 nearest is "
        f"above {found.limit:.3f}. "
        + ("They were removed." if found.options.drop_outliers else "They were kept.")
        + (_shown(rows, _OUTLIERS, "outliers") if rows else " There are none.")
    )
    clips = [_clip(found, row, f"{float(found.distances[row]):.3f}") for row in rows[:_OUTLIERS]]
    return ClipSection("outliers", "Outliers", note, [ClipRow("", clips)] if clips else [])


def _clusters(found: Curation) -> ClipSection:
    examples = cluster_examples(found)
    sizes = [size for size in found.cluster.bincount().tolist() if size]
    note = (
        "Spherical k-means of the features; the first examples of a cluster are those nearest to "
        "its centre, the last one is the farthest." + _shown(sizes, _CLUSTERS, "clusters")
    )
    rows = [
        ClipRow(
            f"Cluster {number}",
            [_clip(found, row, f"cosine {float(found.centrality[row]):.2f}") for row in rows],
            f"{size:,} video{'s' if size != 1 else ''}",
        )
        for number, (size, rows) in enumerate(zip(sizes, examples, strict=True))
    ]
    return ClipSection("clusters", "Clusters", note, rows[:_CLUSTERS])


def _subset(found: Curation) -> ClipSection:
    rows = found.subset
    note = (
        "The most diverse videos, each the farthest from those before it (k-centre greedy)."
        + _shown(rows, _SUBSET, "videos")
    )
    clips = [_clip(found, row, f"{i}") for i, row in enumerate(rows[:_SUBSET], 1)]
    return ClipSection("subset", "Diverse subset", note, [ClipRow("", clips)])
