"""The lists and the report of a curation, and the table of what was removed and why."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.curation.edited_copies import COPY_SIMILARITY
from sce_video.curation.near_duplicates import DuplicateGroup, Removed
from sce_video.curation.selection import KEPT, NOT_A_COPY, Curation
from sce_video.datasets.segments import Segment, write_segment_file
from sce_video.datasets.video_list import write_annotation_list
from sce_video.options.find import FRAMES, NONE
from sce_video.pages.clip_groups import Choices, ClipRow, ClipSection, ShownClip, write_clip_groups
from sce_video.utils.files import write_json, write_text

# Files of a curation; docs/curate.md describes the content of each.
KEEP = "keep.txt"
SUBSET = "subset.txt"
CLUSTERS = "clusters.txt"
CLASSES = "classes.txt"
REMOVED = "removed.csv"
REPORT = "report.json"
DECISIONS = "decisions.csv"
INTROS = "intros.csv"
MOTION = "motion.csv"
#: What a curation leaves in its folder, besides what a later run uses.
_RESULTS = (
    *(KEEP, SUBSET, CLUSTERS, CLASSES, REMOVED, INTROS, MOTION, REPORT),
    "curation.html",
)
#: Videos of a cluster or a stretch that are shown. Half of a cluster's lie nearest to its centre.
_EXAMPLES = 8
_COLUMNS = (
    "path", "reason", "kept", "match", "similarity", "start", "left", "top", "width", "height",
    "begin", "end", "speed", "mirrored", "changes",
)  # fmt: skip


def check_curated_folder(
    folder: str | os.PathLike, keep: str | os.PathLike | None = None, overwrite: bool = False
) -> None:
    """Refuse a folder that holds results of an earlier curation.

    Args:
        folder: Of the results.
        keep: The list to keep, if it lies elsewhere.
        overwrite: Whether earlier results may be replaced.

    Raises:
        ValueError: If there are results, and they may not be replaced.
    """
    files = [Path(folder, name) for name in _RESULTS] + ([] if keep is None else [Path(keep)])
    found = next((file for file in files if file.exists()), None)
    if found is not None and not overwrite:
        raise ValueError(
            f"{found} exists: the folder holds an earlier curation. Give another --out or --keep, "
            "or replace the results with --overwrite"
        )


def write_curation(
    found: Curation,
    folder: str | os.PathLike,
    keep: str | os.PathLike | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the lists, ``removed.csv`` and ``report.json``, whose content is returned.

    Every video of the source is in the list to keep or, with the reason, in ``removed.csv``.

    Args:
        found: Of :func:`~sce_video.curation.selection.curate_videos`.
        folder: For all files; made if needed.
        keep: The list to keep; None for ``keep.txt`` in the folder.
        overwrite: Whether results of an earlier curation are removed first.

    Raises:
        WriteError: a file cannot be written.
        ValueError: If there are earlier results, or none of the paths can be written to a list.
    """
    check_curated_folder(folder, keep, overwrite)
    folder = Path(folder)
    for name in _RESULTS:  # one that is not written again would be of another curation
        Path(folder, name).unlink(missing_ok=True)
    videos = found.videos
    labels, classes, notes = _labels(found)
    lists: dict[str, str] = {}

    def add(name: str, file: str | os.PathLike, rows: list[int], labels: list[int]) -> list[str]:
        """Write a list; returns the paths that it cannot hold."""
        lists[name] = os.fspath(file)
        paths = [videos.paths[row] for row in rows]
        return write_annotation_list(lists[name], paths, [labels[row] for row in rows])

    unlisted = add("keep", folder / KEEP if keep is None else keep, found.keep, labels)
    if classes:
        lists["classes"] = os.fspath(folder / CLASSES)
        write_text(lists["classes"], "".join(f"{name}\n" for name in classes))
    if found.subset:
        add("subset", folder / SUBSET, found.subset, labels)
    add("clusters", folder / CLUSTERS, found.keep, found.cluster.tolist())
    if unlisted:
        notes.append(f"{len(unlisted)} paths cannot be written to a list: see {REMOVED}")
    removed = list(_removed(found, set(unlisted)))
    _write_table(folder / REMOVED, _COLUMNS, removed)
    if found.duplicates.shared:
        lists["intros"] = os.fspath(folder / INTROS)
        write_segment_file(lists["intros"], _intros(found))
    if found.motion is not None:
        lists["motion"] = os.fspath(folder / MOTION)
        rows = zip(videos.paths, found.motion.motion, found.motion.frozen, strict=True)
        cells = [
            {"path": path, "motion": f"{motion:.3f}", "frozen": f"{frozen:.3f}"}
            for path, motion, frozen in rows
            if motion == motion  # NaN for what cannot be read
        ]
        _write_table(lists["motion"], ("path", "motion", "frozen"), cells)
    report = _report(found, lists, removed, [*found.notes, *notes])
    write_json(folder / REPORT, report)
    return report


def _write_table(file: str | Path, columns: Sequence[str], rows: list[dict[str, Any]]) -> None:
    """Write a CSV file with a line of the names of its columns."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(file, text.getvalue())


def _intros(found: Curation) -> Iterator[Segment]:
    """The stretches that many videos share, those of the same content with one label."""
    for number, part in enumerate(found.duplicates.shared, 1):
        for row, begin, end in part.stretches:
            times = round(begin, 3), round(end, 3)
            yield Segment(found.videos.paths[row], *times, f"shared {number}")


def _labels(found: Curation) -> tuple[list[int], list[str], list[str]]:
    """Labels as numbers, names of the classes (empty for numbers and for none), and notes."""
    names = found.videos.label_names
    missing = sum(name is None for name in names)
    if missing:
        note = f"the lists have no labels: {missing} of {len(names)} videos have none"
        return [-1] * len(names), [], [note] if missing < len(names) else []
    texts = [str(name) for name in names]
    if all(text.isdecimal() for text in texts):
        return [int(text) for text in texts], [], []
    classes = found.videos.classes
    number = {name: i for i, name in enumerate(classes)}
    written = [
        name if name == name.strip() != "" and len(name.splitlines()) == 1 else repr(name)
        for name in classes
    ]
    if len(set(written)) < len(classes):
        note = "the lists have no labels: two names of classes are written alike"
        return [-1] * len(names), [], [note]
    other = [text for name, text in zip(classes, written, strict=True) if text != name]
    notes = [f"a line cannot hold the name of a class, which is written as {n}" for n in other]
    return [number[text] for text in texts], written, notes


def _removed(found: Curation, unlisted: set[str]) -> Iterator[dict[str, Any]]:
    """A row of ``removed.csv`` for every video that is not in the list to keep."""
    paths, rule = found.videos.paths, found.options.duplicates
    rule += ": correlation" if rule == FRAMES else ": cosine"
    for group in found.duplicates.groups:
        for video in group.removed:
            entry: dict[str, Any] = {
                "path": paths[video.row],
                "reason": f"near-duplicate by {rule} {found.options.threshold:g} or more",
                "kept": paths[group.kept],
                "match": paths[video.match],
                "similarity": round(video.similarity, 4),
            }
            if video.alignment is not None:
                entry |= _aligned(video)
            if video.edited is not None:
                entry |= _edited(video)
            yield entry
    if found.motion is not None:
        for row in found.motion.removed:
            still = "frozen" if found.motion.frozen[row] == 1 else "little motion"
            limit = f"limit {found.motion.limit:.3f}, quantile {found.options.motion:g}"
            motion = f"{still}: {found.motion.motion[row]:.3f} grey levels, {limit}"
            yield {"path": paths[row], "reason": motion}
    if found.options.drop_outliers:
        for row in found.outliers:
            distance = float(found.distances[row])
            yield {
                "path": paths[row],
                "reason": f"outlier: distance {distance:.4f}, limit {found.limit:.4f}",
            }
    for row in found.keep:
        if paths[row] in unlisted:
            yield {"path": paths[row], "reason": "a list cannot hold this path"}
    for path, reason in found.videos.failures:
        yield {"path": path, "reason": f"cannot be decoded: {reason}"}


def _aligned(video: Removed) -> dict[str, Any]:
    """The columns of a video that was found by aligned frames."""
    at = video.alignment
    assert at is not None
    facts: dict[str, float] = {} if at.changes is None else {"changes": round(at.changes, 4)}
    if video.inner:  # where it lies in its match
        facts["start"] = round(at.offset, 3)
        sizes = zip(("left", "top", "width", "height"), at.part, strict=True)
        facts |= {name: round(value, 3) for name, value in sizes}
    return facts


def _edited(video: Removed) -> dict[str, Any]:
    """The columns of a video that was found as an edited copy."""
    copy = video.edited
    assert copy is not None
    own, other = copy.inner_stretch, copy.outer_stretch
    entry: dict[str, Any] = {
        "reason": f"copy by frames: changes correlate by {COPY_SIMILARITY:g} or more",
        "mirrored": int(copy.mirrored),
    }
    speed = copy.speed
    if video.inner:
        sizes = zip(("left", "top", "width", "height"), copy.alignment.part, strict=True)
        entry |= {name: round(value, 3) for name, value in sizes}
    else:  # its match lies in it
        own, other, speed = other, own, 1 / speed
    times = {"begin": own[0], "end": own[1], "start": other[0], "speed": speed}
    return entry | {name: round(value, 3) for name, value in times.items()}


def cluster_examples(found: Curation) -> list[tuple[int, list[int]]]:
    """Size and rows of each cluster: half nearest to its centre, half at equal steps outwards."""
    members: dict[int, list[int]] = {}
    for row in found.centrality.argsort(descending=True, stable=True).tolist():
        members.setdefault(int(found.cluster[row]), []).append(row)
    examples = []
    for _, rows in sorted(members.items()):
        near = min(len(rows), _EXAMPLES - _EXAMPLES // 2)
        rest, far = rows[near:], min(len(rows) - near, _EXAMPLES // 2)
        outer = [rest[(i + 1) * len(rest) // far - 1] for i in range(far)]
        examples.append((len(rows), rows[:near] + outer))
    return examples


def _report(
    found: Curation, lists: dict[str, str], removed: list[dict[str, Any]], notes: list[str]
) -> dict[str, Any]:
    paths = found.videos.paths
    total = len(paths) + len(found.videos.failures)
    return {
        "source": found.videos.source,
        "root": found.videos.root,
        "checkpoint": found.videos.checkpoint,
        "settings": {
            **asdict(found.options),
            "similarity": None if found.options.duplicates == NONE else found.options.threshold,
        },
        "counts": {
            "videos": total,
            "kept": total - len(removed),
            "removed": len(removed),
            "near_duplicates": sum(len(group.removed) for group in found.duplicates.groups),
            "groups": len(found.duplicates.groups),
            "groups_decided": sum(_is_decided(found, g) for g in found.duplicates.groups),
            "shared_parts": len(found.duplicates.shared),
            "little_motion": 0 if found.motion is None else len(found.motion.removed),
            "compared_pairs": found.duplicates.candidates,
            "not_compared": len(found.duplicates.unread),
            "outliers": len(found.outliers),
            "undecodable": len(found.videos.failures),
        },
        "kept_of_a_group": _kept_of_a_group(found),
        "lists": lists,
        "notes": notes,
        "groups": [
            {
                "kept": paths[group.kept],
                "also_kept": [paths[row] for row in group.also_kept],
                "removed": [
                    {"path": paths[v.row], "match": paths[v.match], "similarity": v.similarity}
                    for v in group.removed
                ],
                "quality": {
                    paths[row]: asdict(found.duplicates.quality[row])
                    for row in group.rows
                    if row in found.duplicates.quality
                },
            }
            for group in found.duplicates.groups
        ],
        "motion_limit": None if found.motion is None else found.motion.limit,
        "outlier_limit": found.limit,
        "outliers": [
            {"path": paths[row], "distance": float(found.distances[row])} for row in found.outliers
        ],
        "not_compared": [
            {"path": paths[row], "reason": reason} for row, reason in found.duplicates.unread
        ],
        "clusters": [
            {"videos": size, "examples": [paths[row] for row in rows]}
            for size, rows in cluster_examples(found)
        ],
    }


_WORDS = {"length": "longest", "resolution": "largest frames", "bitrate": "highest bitrate"}


def _kept_of_a_group(found: Curation) -> str:
    """What the video of a group that stays was chosen by, in words."""
    if found.options.duplicates != FRAMES:
        return "the one most similar to the others, then the first path"
    words = [f"the {_WORDS[name]}" for name in found.options.prefer]
    return ", then ".join(["not an edited copy", *words, "the first path"])


def _is_decided(found: Curation, group: DuplicateGroup) -> bool:
    """Whether it was decided before what a group keeps."""
    return any(found.videos.paths[row] in found.decisions.keep for row in group.rows)


@dataclass(frozen=True)
class _ShownSettings:
    """Most entries of each section of the page, because every shown video has a clip in it."""

    #: Groups of near-duplicates: many, because a reader decides on them.
    groups: int = 100
    #: Removed videos of one group.
    of_group: int = 7
    outliers: int = 16
    subset: int = 24
    #: Clusters, and stretches that many videos share.
    clusters: int = 40
    #: Videos that were removed for little motion.
    still: int = 24


_SHOWN = _ShownSettings()


def write_curation_page(path: str | os.PathLike, found: Curation, report: dict[str, Any]) -> None:
    """Write the page: duplicates, outliers, clusters and subset with clips.

    ``found`` is of :func:`~sce_video.curation.selection.curate_videos`, ``report`` of
    :func:`write_curation`.
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
    sections = [_duplicates(found)]
    if found.duplicates.shared:
        sections.append(_shared(found))
    if found.motion is not None:
        facts.insert(3, (f"{counts['little_motion']:,}", "removed for little motion"))
        sections.append(_motion(found))
    sections += [_outliers(found), _clusters(found)]
    if found.subset:
        sections.append(_subset(found))
    lead = f"Features of {found.videos.source}. Point at a clip, or tap it, to play it."
    name = os.path.basename(os.path.normpath(found.videos.root or found.videos.source))
    write_clip_groups(path, f"Curation of {name}", lead, facts, sections, notes=notes)


def _clip(found: Curation, row: int, fact: str = "", mark: str = "") -> ShownClip:
    return ShownClip(found.videos.paths[row], found.videos.files[row], fact, mark)


def _shown(items: Sequence[Any], most: int, what: str) -> str:
    return f" The first {most} of {len(items):,} {what} are shown." if len(items) > most else ""


def _duplicates(found: Curation) -> ClipSection:
    """Groups of near-duplicates, on which a reader of the page decides; decided ones come last.

    Each video has its similarity, the size of its frames, bitrate and length, and the page keeps
    of each group the best by one of them when it is asked to.
    """
    groups = sorted(found.duplicates.groups, key=lambda group: _is_decided(found, group))
    if found.options.duplicates == NONE:
        note = "They were not searched."
    else:
        what = (
            "frames correlate" if found.options.duplicates == FRAMES else "features have a cosine"
        )
        more = _shown(groups, _SHOWN.groups, "groups") if groups else " There are none."
        also = f", their changes by {COPY_SIMILARITY:g}," if found.options.copies else ""
        note = (
            f"Videos whose {what} by {found.options.threshold:g}{also} or more with those of "
            f"another one of the group. Kept: {_kept_of_a_group(found)}.{more}"
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
            quality = {} if best is None else {name: best.of(name) for name in _WORDS}
            clips.append(_clip(found, row, fact)._replace(decision=decision, quality=quality))
        beyond = [found.videos.paths[row] for row, _, _ in shown[_SHOWN.of_group + 1 :]]
        decided = " · decided" if _is_decided(found, group) else ""
        left_out = f"and {len(beyond)} more, in report.json" if beyond else ""
        rows.append(ClipRow(f"{len(shown)} videos{decided}", clips, left_out, beyond))
    choices = None
    if rows:
        choices = _choices(found)
        note += (
            f" Change that here, save {DECISIONS} next to this page and run again with --overwrite."
        )
    return ClipSection("duplicates", "Near-duplicates", note, rows, choices)


def _choices(found: Curation) -> Choices:
    """What the page may decide, and what was decided before."""
    apart = found.decisions.apart
    pairs = {(one, two) for one in apart for two in apart[one] if (two, one) >= (one, two)}
    decided = [(path, KEPT, "") for path in sorted(found.decisions.keep)]
    decided += [(one, NOT_A_COPY, two) for one, two in sorted(pairs)]
    best = {f"the {words}": name for name, words in _WORDS.items()}
    return Choices(
        DECISIONS, (KEPT, "remove", NOT_A_COPY), decided, best if found.duplicates.quality else {}
    )


def _shared(found: Curation) -> ClipSection:
    """Intros and credits: the first videos of each, with its begin and end in them."""
    parts = found.duplicates.shared
    note = (
        f"Stretches that are a part of more than {found.options.intros} videos, such as intros and "
        f"credits. They make no copies; all of them are in {INTROS}."
    ) + _shown(parts, _SHOWN.clusters, "stretches")
    rows = []
    for number, part in enumerate(parts[: _SHOWN.clusters], 1):
        clips = [
            _clip(found, row, f"{begin:.1f} to {end:.1f} s")
            for row, begin, end in part.stretches[:_EXAMPLES]
        ]
        count = len({row for row, _, _ in part.stretches})
        rows.append(ClipRow(f"Shared {number}", clips, f"{count:,} videos"))
    return ClipSection("shared", "Intros and credits", note, rows)


def _motion(found: Curation) -> ClipSection:
    """Removed videos, the stillest first, and the kept ones of the least motion."""
    motion = found.motion
    assert motion is not None
    note = (
        "Motion: how much frames half a second apart differ, in grey levels of thumbnails of 32 x "
        f"32 pixels, mean over time. Removed: below {motion.limit:.2f} (quantile "
        f"{found.options.motion:g}), and frozen videos, in which no step differs by 0.5."
    ) + (_shown(motion.removed, _SHOWN.still, "videos") if motion.removed else " There are none.")
    keep = np.array(found.keep, dtype=np.int64)
    keep = keep[np.isfinite(motion.motion[keep])]
    least = keep[np.argsort(motion.motion[keep], kind="stable")][:_EXAMPLES].tolist()
    rows = []
    for title, videos in (
        ("Removed", motion.removed[: _SHOWN.still]),
        ("Kept, of the least motion", least),
    ):
        facts = [f"{motion.motion[r]:.2f}, frozen {100 * motion.frozen[r]:.0f} %" for r in videos]
        clips = [_clip(found, row, fact) for row, fact in zip(videos, facts, strict=True)]
        rows += [ClipRow(title, clips)] if clips else []
    return ClipSection("motion", "Little motion", note, rows)


def _outliers(found: Curation) -> ClipSection:
    """Videos far from all others, the farthest first."""
    rows = found.outliers
    fate = "removed" if found.options.drop_outliers else "kept"
    more = _shown(rows, _SHOWN.outliers, "outliers") if rows else " There are none."
    note = (
        "Videos far from all others in features: the mean cosine distance to the 10 nearest is "
        f"above {found.limit:.3f}. They were {fate}.{more}"
    )
    shown = rows[: _SHOWN.outliers]
    clips = [_clip(found, row, f"{float(found.distances[row]):.3f}") for row in shown]
    return ClipSection("outliers", "Outliers", note, [ClipRow("", clips)] if clips else [])


def _clusters(found: Curation) -> ClipSection:
    examples = cluster_examples(found)
    note = (
        "Spherical k-means of the features; the first examples of a cluster are those nearest to "
        "its centre, the last one is the farthest." + _shown(examples, _SHOWN.clusters, "clusters")
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
    """The first videos of the diverse subset, in its order."""
    rows = found.subset
    note = (
        "The most diverse videos, each the farthest from those before it (k-centre greedy)."
        + _shown(rows, _SHOWN.subset, "videos")
    )
    clips = [_clip(found, row, f"{i}") for i, row in enumerate(rows[: _SHOWN.subset], 1)]
    return ClipSection("subset", "Diverse subset", note, [ClipRow("", clips)])
