"""Page of a curation with near-duplicates, outliers, clusters and the diverse subset as clips."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sce_video.curation.edited_copies import COPY_SIMILARITY
from sce_video.curation.selection import KEPT, NOT_A_COPY, Curation
from sce_video.curation.write import (
    DECISIONS,
    EXAMPLES,
    INTROS,
    PREFERRED,
    CurationReport,
    cluster_examples,
    is_decided,
    kept_of_a_group,
)
from sce_video.options.find import FRAMES, NONE
from sce_video.pages.clip_groups import Choices, ClipRow, ClipSection, ShownClip, write_clip_groups


@dataclass(frozen=True)
class _ShownSettings:
    """Largest numbers of entries per section, because the page contains a clip of each video."""

    #: Number of groups of near-duplicates. It is large because the reader decides about each one.
    groups: int = 100
    #: Number of removed videos per group.
    of_group: int = 7
    outliers: int = 16
    subset: int = 24
    #: Number of clusters, and number of shared stretches such as intros.
    clusters: int = 40
    #: Number of videos that were removed because they hardly move.
    still: int = 24


_SHOWN = _ShownSettings()


def write_curation_page(path: str | os.PathLike, found: Curation, report: CurationReport) -> None:
    """Write the page of a curation.

    Args:
        path: Path of the page.
        found: Result of :func:`~sce_video.curation.selection.curate_videos`.
        report: Result of :func:`~sce_video.curation.write.write_curation`.
    """
    counts = report.counts
    facts = [
        (f"{counts.videos:,}", "videos"),
        (f"{counts.kept:,}", "kept"),
        (f"{counts.near_duplicates:,}", "near-duplicates removed"),
        (f"{counts.outliers:,}", "outliers"),
        (f"{counts.undecodable:,}", "not decodable"),
    ]
    notes = list(report.notes)
    if found.duplicates.unread:
        notes.append(
            f"{counts.not_compared} videos are kept because their frames could not be compared. "
            "The reasons are in report.json."
        )
    sections = [_duplicates(found)]
    if found.duplicates.shared:
        sections.append(_shared(found))
    if found.motion is not None:
        facts.insert(3, (f"{counts.little_motion:,}", "removed for little motion"))
        sections.append(_motion(found))
    sections += [_outliers(found), _clusters(found)]
    if found.subset:
        sections.append(_subset(found))
    lead = f"Features from {found.videos.source}. Point at a clip, or tap it, to play it."
    name = os.path.basename(os.path.normpath(found.videos.root or found.videos.source))
    write_clip_groups(path, f"Curation of {name}", lead, facts, sections, notes=notes)


def _clip(found: Curation, row: int, fact: str = "") -> ShownClip:
    return ShownClip(found.videos.paths[row], found.videos.files[row], fact)


def _shown(items: Sequence[object], most: int, what: str) -> str:
    """Return a sentence about the number of shown items; empty if all are shown."""
    return f" The first {most} of {len(items):,} {what} are shown." if len(items) > most else ""


def _duplicates(found: Curation) -> ClipSection:
    """Show the groups of near-duplicates, so that a reader can decide which videos to keep.

    Groups without a decision come first. Each video has its similarity, frame size, bitrate and
    length. Buttons keep the best video of each group by one of these qualities.
    """
    groups = sorted(found.duplicates.groups, key=lambda group: is_decided(found, group))
    if found.options.duplicates == NONE:
        note = "Near-duplicates were not searched."
    else:
        what = "frame correlation" if found.options.duplicates == FRAMES else "feature cosine"
        more = _shown(groups, _SHOWN.groups, "groups") if groups else " There are none."
        also = f", or {COPY_SIMILARITY:g} for edited copies" if found.options.copies else ""
        note = (
            f"Each video resembles another one of its group with a {what} of at least "
            f"{found.options.threshold:g}{also}. Preferred: {kept_of_a_group(found)}.{more}"
        )
    rows = []
    for group in groups[: _SHOWN.groups]:
        shown = [(row, "", KEPT) for row in (group.kept, *group.also_kept)]
        shown += [(v.row, f"{v.similarity:.2f}", "remove") for v in group.removed]
        clips = []
        for row, fact, decision in shown[: _SHOWN.of_group + 1]:
            best = found.duplicates.quality.get(row)
            if best is not None:
                size = f"{best.width} x {best.height}"
                fact = f"{fact} · {size}" if fact else size
                fact += f" · {best.bitrate / 1000:,.0f} kbit/s" if best.bitrate else ""
            quality = {} if best is None else {name: best.of(name) for name in PREFERRED}
            clips.append(_clip(found, row, fact)._replace(decision=decision, quality=quality))
        beyond = [found.videos.paths[row] for row, _, _ in shown[_SHOWN.of_group + 1 :]]
        decided = " · decided" if is_decided(found, group) else ""
        left_out = f"and {len(beyond)} more, listed in report.json" if beyond else ""
        rows.append(ClipRow(f"{len(shown)} videos{decided}", clips, left_out, beyond))
    choices = None
    if rows:
        choices = _choices(found)
        note += (
            f" To keep other videos, choose them here, save {DECISIONS} next to this page, and run "
            "the command again with --overwrite."
        )
    return ClipSection("duplicates", "Near-duplicates", note, rows, choices)


def _choices(found: Curation) -> Choices:
    """Return the decisions that a reader can make on the page, and the earlier decisions."""
    apart = found.decisions.apart
    pairs = {(one, two) for one in apart for two in apart[one] if (two, one) >= (one, two)}
    decided = [(path, KEPT, "") for path in sorted(found.decisions.keep)]
    decided += [(one, NOT_A_COPY, two) for one, two in sorted(pairs)]
    best = {f"the {words}": name for name, words in PREFERRED.items()}
    return Choices(
        DECISIONS, (KEPT, "remove", NOT_A_COPY), decided, best if found.duplicates.quality else {}
    )


def _shared(found: Curation) -> ClipSection:
    """Show stretches such as intros and credits, with the first videos that contain them."""
    parts = found.duplicates.shared
    note = (
        f"Stretches that occur in more than {found.options.intros} videos, such as intros and "
        f"credits. They do not make the videos copies. {INTROS} lists all of them."
    ) + _shown(parts, _SHOWN.clusters, "stretches")
    rows = []
    for number, part in enumerate(parts[: _SHOWN.clusters], 1):
        clips = [
            _clip(found, row, f"{begin:.1f} to {end:.1f} s")
            for row, begin, end in part.stretches[:EXAMPLES]
        ]
        count = len({row for row, _, _ in part.stretches})
        rows.append(ClipRow(f"Shared {number}", clips, f"{count:,} videos"))
    return ClipSection("shared", "Intros and credits", note, rows)


def _motion(found: Curation) -> ClipSection:
    """Show the removed videos, the stillest first, and the kept videos with the least motion."""
    motion = found.motion
    assert motion is not None
    note = (
        "Motion is the mean difference of frames half a second apart, in grey levels of 32 x 32 "
        f"thumbnails. Videos with a motion below {motion.limit:.2f} (quantile "
        f"{found.options.motion:g}) were removed, and so were frozen videos, in which no two such "
        "frames differ by 0.5."
    ) + (_shown(motion.removed, _SHOWN.still, "videos") if motion.removed else " There are none.")
    keep = np.array(found.keep, dtype=np.int64)
    keep = keep[np.isfinite(motion.motion[keep])]
    least = keep[np.argsort(motion.motion[keep], kind="stable")][:EXAMPLES].tolist()
    rows = []
    for title, videos in (
        ("Removed", motion.removed[: _SHOWN.still]),
        ("Kept videos with the least motion", least),
    ):
        facts = [f"{motion.motion[r]:.2f}, frozen {100 * motion.frozen[r]:.0f} %" for r in videos]
        clips = [_clip(found, row, fact) for row, fact in zip(videos, facts, strict=True)]
        rows += [ClipRow(title, clips)] if clips else []
    return ClipSection("motion", "Little motion", note, rows)


def _outliers(found: Curation) -> ClipSection:
    """Show the outliers, the farthest first."""
    rows = found.outliers
    fate = "removed" if found.options.drop_outliers else "kept"
    more = _shown(rows, _SHOWN.outliers, "outliers") if rows else " There are none."
    note = (
        "Videos whose features are far from all others, with a mean cosine distance above "
        f"{found.limit:.3f} to the 10 nearest videos. They were {fate}.{more}"
    )
    shown = rows[: _SHOWN.outliers]
    clips = [_clip(found, row, f"{float(found.distances[row]):.3f}") for row in shown]
    return ClipSection("outliers", "Outliers", note, [ClipRow("", clips)] if clips else [])


def _clusters(found: Curation) -> ClipSection:
    """Show examples of each cluster."""
    examples = cluster_examples(found)
    note = (
        "Clusters of the features by spherical k-means. The first examples are the nearest to the "
        "centre of the cluster, and the last one is the farthest."
        + _shown(examples, _SHOWN.clusters, "clusters")
    )
    rows = [
        ClipRow(
            f"Cluster {number}",
            [_clip(found, row, f"cosine {float(found.centrality[row]):.2f}") for row in rows],
            f"{size:,} video{'s' if size != 1 else ''}",
        )
        for number, (size, rows) in enumerate(examples)
    ]
    return ClipSection("clusters", "Clusters", note, rows[: _SHOWN.clusters])


def _subset(found: Curation) -> ClipSection:
    """Show the first videos of the diverse subset, in the order in which they were chosen."""
    rows = found.subset
    note = (
        "The most diverse videos. Each one is the farthest from all before it (k-centre greedy)."
        + _shown(rows, _SHOWN.subset, "videos")
    )
    clips = [_clip(found, row, f"{i}") for i, row in enumerate(rows[: _SHOWN.subset], 1)]
    return ClipSection("subset", "Diverse subset", note, [ClipRow("", clips)])
