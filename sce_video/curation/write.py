"""Output of a curation: lists of videos, a report, and a table of the removed videos."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from sce_video.curation.copy_alignment import EditedCopy
from sce_video.curation.edited_copies import COPY_SIMILARITY
from sce_video.curation.matching import Alignment
from sce_video.curation.near_duplicates import DuplicateGroup
from sce_video.curation.selection import Curation
from sce_video.datasets.segments import Segment, write_segment_file
from sce_video.datasets.text_tables import write_csv
from sce_video.datasets.video_list import write_annotation_list
from sce_video.options.find import FRAMES, NONE
from sce_video.utils.files import write_json, write_text

# Names of the files that a curation writes. docs/curate.md describes their content.
KEEP = "keep.txt"
SUBSET = "subset.txt"
CLUSTERS = "clusters.txt"
CLASSES = "classes.txt"
REMOVED = "removed.csv"
REPORT = "report.json"
DECISIONS = "decisions.csv"
INTROS = "intros.csv"
MOTION = "motion.csv"
#: All results of a curation. Files that a later run reuses are not listed.
_RESULTS = (
    *(KEEP, SUBSET, CLUSTERS, CLASSES, REMOVED, INTROS, MOTION, REPORT),
    "curation.html",
)
#: Number of examples per cluster or stretch. Half of a cluster's examples are near its centre.
EXAMPLES = 8


@dataclass(frozen=True)
class RemovedLine:
    """Line of ``removed.csv``. Cells without a value are empty.

    Attributes:
        path: Path of the video.
        reason: Why the video is not in the list of kept videos.
        kept: Video that stays in the same group.
        match: Most similar video in the same group.
        similarity: Similarity to ``match``.
        start: Seconds of ``match`` at which the video begins.
        left, top, width, height: Part of the frames of ``match`` that the video shows, as shares of
            the frame.
        begin, end: Stretch of the video that ``match`` also shows, in seconds.
        speed: Seconds of ``match`` in one second of the video.
        mirrored: 1 if one of the two videos is mirrored, otherwise 0.
        changes: Agreement of what changes in both videos.
    """

    path: str
    reason: str
    kept: str = ""
    match: str = ""
    similarity: float | str = ""
    start: float | str = ""
    left: float | str = ""
    top: float | str = ""
    width: float | str = ""
    height: float | str = ""
    begin: float | str = ""
    end: float | str = ""
    speed: float | str = ""
    mirrored: int | str = ""
    changes: float | str = ""


@dataclass(frozen=True)
class CurationCounts:
    """Numbers of videos, groups and compared pairs in a curation."""

    videos: int
    kept: int
    removed: int
    near_duplicates: int
    groups: int
    groups_decided: int
    shared_parts: int
    little_motion: int
    compared_pairs: int
    not_compared: int
    outliers: int
    undecodable: int


@dataclass(frozen=True)
class CurationReport:
    """Summary of a curation. ``report.json`` contains more.

    Attributes:
        counts: Numbers of videos of each kind.
        kept_of_a_group: Criteria by which the kept video of each group was chosen.
        lists: Path of each list by its name.
        notes: Sentences that the user must see.
    """

    counts: CurationCounts
    kept_of_a_group: str
    lists: dict[str, str]
    notes: list[str]


def check_curated_folder(
    folder: str | os.PathLike, keep: str | os.PathLike | None = None, overwrite: bool = False
) -> None:
    """Raise ValueError if a folder contains results of an earlier curation.

    Args:
        folder: Folder of the results.
        keep: List of kept videos if it is not in the folder.
        overwrite: Whether earlier results may be replaced.

    Raises:
        ValueError: If earlier results exist and may not be replaced.
    """
    files = [Path(folder, name) for name in _RESULTS] + ([] if keep is None else [Path(keep)])
    found = next((file for file in files if file.exists()), None)
    if found is not None and not overwrite:
        raise ValueError(
            f"{found} exists, because the folder contains an earlier curation. Choose another "
            "--out or --keep, or replace the results with --overwrite"
        )


def write_curation(
    found: Curation,
    folder: str | os.PathLike,
    keep: str | os.PathLike | None = None,
    overwrite: bool = False,
) -> CurationReport:
    """Write the lists, ``removed.csv`` and ``report.json``.

    Every video of the source is either in the list of kept videos or, with a reason, in
    ``removed.csv``.

    Args:
        found: Result of :func:`~sce_video.curation.selection.curate_videos`.
        folder: Folder for all files, which is created if needed.
        keep: List of kept videos; None for ``keep.txt`` in the folder.
        overwrite: Whether to remove results of an earlier curation first.

    Raises:
        WriteError: If a file cannot be written.
        ValueError: If earlier results exist, or a list cannot contain any of the paths.
    """
    check_curated_folder(folder, keep, overwrite)
    folder = Path(folder)
    for name in _RESULTS:  # this curation may write fewer files than the earlier one
        Path(folder, name).unlink(missing_ok=True)
    videos = found.videos
    labels, classes, notes = _labels(found)
    lists: dict[str, str] = {}

    def add(name: str, file: str | os.PathLike, rows: list[int], labels: list[int]) -> list[str]:
        """Write a list, and return the paths that it cannot contain."""
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
        notes.append(f"a list cannot contain {len(unlisted)} paths, which are in {REMOVED}")
    removed = list(_removed(found, set(unlisted)))
    columns = [column.name for column in fields(RemovedLine)]
    write_csv(folder / REMOVED, [columns, *map(astuple, removed)])
    if found.duplicates.shared:
        lists["intros"] = os.fspath(folder / INTROS)
        stretches = (
            Segment(videos.paths[row], round(begin, 3), round(end, 3), f"shared {number}")
            for number, part in enumerate(found.duplicates.shared, 1)
            for row, begin, end in part.stretches
        )
        write_segment_file(lists["intros"], stretches)
    if found.motion is not None:
        lists["motion"] = os.fspath(folder / MOTION)
        rows = zip(videos.paths, found.motion.motion, found.motion.frozen, strict=True)
        cells = [
            (path, f"{motion:.3f}", f"{frozen:.3f}")
            for path, motion, frozen in rows
            if motion == motion  # NaN means that the video cannot be read
        ]
        write_csv(lists["motion"], [("path", "motion", "frozen"), *cells])
    counts = _counts(found, len(removed))
    report = CurationReport(counts, kept_of_a_group(found), lists, [*found.notes, *notes])
    write_json(folder / REPORT, _content(found, report))
    return report


def _labels(found: Curation) -> tuple[list[int], list[str], list[str]]:
    """Return the labels as numbers, their names if they have names, and notes."""
    names = found.videos.label_names
    missing = sum(name is None for name in names)
    if missing:
        note = f"the lists have no labels, because {missing} of {len(names)} videos have none"
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
        note = "the lists have no labels, because two class names would be written alike"
        return [-1] * len(names), [], [note]
    other = [text for name, text in zip(classes, written, strict=True) if text != name]
    notes = [f"a line cannot contain a class name, which is written as {n} instead" for n in other]
    return [number[text] for text in texts], written, notes


def _removed(found: Curation, unlisted: set[str]) -> Iterator[RemovedLine]:
    """Yield a line of ``removed.csv`` for every video that is not in the list of kept videos."""
    paths, rule = found.videos.paths, found.options.duplicates
    rule += ": correlation" if rule == FRAMES else ": cosine"
    for group in found.duplicates.groups:
        for video in group.removed:
            line = RemovedLine(
                path=paths[video.row],
                reason=f"near-duplicate by {rule} {found.options.threshold:g} or more",
                kept=paths[group.kept],
                match=paths[video.match],
                similarity=round(video.similarity, 4),
            )
            if video.alignment is not None:
                line = _aligned(line, video.alignment, video.inner)
            if video.edited is not None:
                line = _edited(line, video.edited, video.inner)
            yield line
    if found.motion is not None:
        for row in found.motion.removed:
            still = "frozen" if found.motion.frozen[row] == 1 else "little motion"
            limit = f"limit {found.motion.limit:.3f}, quantile {found.options.motion:g}"
            motion = f"{still}: {found.motion.motion[row]:.3f} grey levels, {limit}"
            yield RemovedLine(paths[row], motion)
    if found.options.drop_outliers:
        for row in found.outliers:
            distance = float(found.distances[row])
            reason = f"outlier: distance {distance:.4f}, limit {found.limit:.4f}"
            yield RemovedLine(paths[row], reason)
    for row in found.keep:
        if paths[row] in unlisted:
            yield RemovedLine(paths[row], "a list cannot contain this path")
    for path, reason in found.videos.failures:
        yield RemovedLine(path, f"cannot be decoded: {reason}")


def _aligned(line: RemovedLine, at: Alignment, inner: bool) -> RemovedLine:
    """Add the alignment of a near-duplicate to its line."""
    if at.changes is not None:
        line = replace(line, changes=round(at.changes, 4))
    # The start is known only if the match contains the removed video.
    return replace(_placed(line, at), start=round(at.offset, 3)) if inner else line


def _placed(line: RemovedLine, at: Alignment) -> RemovedLine:
    """Add the part that a video shows to its line."""
    left, top, width, height = (round(value, 3) for value in at.part)
    return replace(line, left=left, top=top, width=width, height=height)


def _edited(line: RemovedLine, copy: EditedCopy, inner: bool) -> RemovedLine:
    """Add the shared stretch of an edited copy to its line."""
    own, other, speed = copy.inner_stretch, copy.outer_stretch, copy.speed
    if inner:
        line = _placed(line, copy.alignment)
    else:  # the removed video contains its match
        own, other, speed = other, own, 1 / speed
    return replace(
        line,
        reason=f"copy by frames: changes correlate by {COPY_SIMILARITY:g} or more",
        mirrored=int(copy.mirrored),
        begin=round(own[0], 3),
        end=round(own[1], 3),
        start=round(other[0], 3),
        speed=round(speed, 3),
    )


def cluster_examples(found: Curation) -> list[tuple[int, list[int]]]:
    """Return the size of each cluster, and examples from its centre to its farthest video."""
    members: dict[int, list[int]] = {}
    for row in found.centrality.argsort(descending=True, stable=True).tolist():
        members.setdefault(int(found.cluster[row]), []).append(row)
    examples = []
    for _, rows in sorted(members.items()):
        near = min(len(rows), EXAMPLES - EXAMPLES // 2)
        rest, far = rows[near:], min(len(rows) - near, EXAMPLES // 2)
        outer = [rest[(i + 1) * len(rest) // far - 1] for i in range(far)]
        examples.append((len(rows), rows[:near] + outer))
    return examples


def _counts(found: Curation, removed: int) -> CurationCounts:
    total = len(found.videos.paths) + len(found.videos.failures)
    return CurationCounts(
        videos=total,
        kept=total - removed,
        removed=removed,
        near_duplicates=sum(len(group.removed) for group in found.duplicates.groups),
        groups=len(found.duplicates.groups),
        groups_decided=sum(is_decided(found, group) for group in found.duplicates.groups),
        shared_parts=len(found.duplicates.shared),
        little_motion=0 if found.motion is None else len(found.motion.removed),
        compared_pairs=found.duplicates.candidates,
        not_compared=len(found.duplicates.unread),
        outliers=len(found.outliers),
        undecodable=len(found.videos.failures),
    )


def _content(found: Curation, report: CurationReport) -> dict[str, Any]:
    """Return the content of ``report.json``."""
    paths = found.videos.paths
    return {
        "source": found.videos.source,
        "root": found.videos.root,
        "checkpoint": found.videos.checkpoint,
        "settings": {
            **asdict(found.options),
            "similarity": None if found.options.duplicates == NONE else found.options.threshold,
        },
        **asdict(report),
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


#: Description of each criterion for choosing the video to keep from a group.
PREFERRED = {"length": "longest", "resolution": "largest frames", "bitrate": "highest bitrate"}


def kept_of_a_group(found: Curation) -> str:
    """Describe the criteria by which the kept video of each group was chosen."""
    if found.options.duplicates != FRAMES:
        return "the most similar to the others, then the first path"
    words = [f"the {PREFERRED[name]}" for name in found.options.prefer]
    return ", then ".join(["not an edited copy", *words, "the first path"])


def is_decided(found: Curation, group: DuplicateGroup) -> bool:
    """Return whether a reader has already decided which videos of a group to keep."""
    return any(found.videos.paths[row] in found.decisions.keep for row in group.rows)
