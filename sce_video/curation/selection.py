"""Selection of videos: near-duplicates, outliers, clusters and a diverse subset."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sce_video.curation.comparison import ThumbnailFile, read_thumbnails
from sce_video.curation.edited_copies import LATE_SECONDS
from sce_video.curation.matching import MAX_SECONDS, Thumbnails
from sce_video.curation.near_duplicates import (
    Decisions,
    Duplicates,
    candidate_pairs,
    grouped,
    pairs_of_features,
    pairs_of_frames,
    qualities,
    shared_parts,
)
from sce_video.curation.originals import edited_videos
from sce_video.datasets.clip_sampling import shown_at
from sce_video.datasets.text_tables import read_csv_lines
from sce_video.evaluation.functional.clusters import (
    assign,
    k_centre_greedy,
    k_means,
    neighbour_graph,
    unit_rows,
)
from sce_video.evaluation.functional.neighbours import check_features, feature_mean
from sce_video.inference.features import Features
from sce_video.options.find import FEATURES, FRAMES, LATE, NONE, CurateOptions
from sce_video.utils.cores import usable_cores

#: Number of nearest videos whose mean distance determines whether a video is an outlier
#: (docs/curate.md).
_OUTLIER_NEIGHBOURS = 10
#: Maximum distance above the median, in standard deviations of a normal distribution.
_OUTLIER_DEVIATIONS = 5.0
#: Time in seconds between the compared frames of a video.
_MOTION_STEP = 0.5
#: Nothing has moved if two frames differ by less than this value in grey levels. Encoding alone
#: changes frames less than this.
_STILL = 0.5
#: Word in a file of decisions for a video that stays.
KEPT = "keep"
#: Words in a file of decisions for a video that is not a copy of another one.
NOT_A_COPY = "not a copy"


@dataclass(frozen=True, eq=False)
class Motion:
    """Motion of videos, and the videos that are removed because they hardly move.

    Attributes:
        motion: (N,) mean difference of frames half a second apart, in grey levels of 32 x 32
            thumbnails; NaN for videos that cannot be read.
        frozen: (N,) share of these steps in which frames differ by less than 0.5; NaN for videos
            that cannot be read.
        limit: Motion below which a video is removed, a quantile of ``motion``.
        removed: Videos with less motion, and videos that are always frozen, the stillest first.
    """

    motion: np.ndarray
    frozen: np.ndarray
    limit: float
    removed: list[int]


@dataclass(frozen=True, eq=False)
class Curation:
    """Result of a curation. Videos are row indices into ``videos``.

    Attributes:
        videos: Features and paths of the videos that were curated.
        options: Options of the command.
        duplicates: Groups of near-duplicates.
        decisions: Decisions of the reader, which were followed.
        motion: Motion of every video; None if it was not measured.
        distances: (N,) mean cosine distance to the 10 nearest videos that are not duplicates.
        limit: Distance above which a video is an outlier.
        outliers: Videos above ``limit`` that are not duplicates, the farthest first.
        keep: Videos that stay, ascending.
        subset: The most diverse of the kept videos, the most typical first.
        cluster: (N,) cluster of each video. The largest cluster has the number 0.
        centrality: (N,) cosine with the centre of the cluster.
        notes: Sentences about deviations from the options.
    """

    videos: Features
    options: CurateOptions
    duplicates: Duplicates
    decisions: Decisions
    motion: Motion | None
    distances: Tensor
    limit: float
    outliers: list[int]
    keep: list[int]
    subset: list[int]
    cluster: Tensor
    centrality: Tensor
    notes: list[str] = field(default_factory=list)


def curate_videos(
    videos: Features,
    options: CurateOptions,
    *,
    decisions: Decisions | None = None,
    folder: str | os.PathLike | None = None,
    on_video: Callable[[str, int, bool], None] | None = None,
) -> Curation:
    """Search for near-duplicates, outliers, clusters and a diverse subset.

    Features are compared by cosine after subtracting their mean. Candidates for near-duplicates are
    the nearest videos by features and by single frames. Frames that are aligned in time and place
    decide (:mod:`sce_video.curation.matching`). A video is an outlier if its mean distance to the
    10 nearest videos (Ramaswamy et al. 2000) exceeds the median by five standard deviations,
    estimated by the median absolute deviation. The subset is chosen by k-centre greedy.

    Args:
        videos: Features from :func:`~sce_video.find.reading.read_videos`.
        options: Options of the command. If ``workers`` is None, all cores are used.
        decisions: Earlier decisions of the reader, from :func:`read_decisions`.
        folder: Folder for temporary files, and for thumbnails that a later run can reuse (at most
            32 KB per second of video). None uses a temporary folder.
        on_video: Called with the current step, the total, and whether a video failed.

    Raises:
        ValueError: If there are fewer than two videos, features are not finite or all equal, or the
            subset is larger than the number of videos that remain.
    """
    decisions = decisions or Decisions()
    features = torch.from_numpy(videos.values)
    if len(videos) < 2:
        raise ValueError(f"{videos.source} contains only one video. Curation needs two or more")
    check_features(features, videos.source)
    x = unit_rows(features, feature_mean(features))
    if float(x.std(dim=0).max()) < 1e-6:
        raise ValueError(f"{videos.source}: all features are equal. Use another network")
    similar, where = neighbour_graph(x, max(options.neighbours, _OUTLIER_NEIGHBOURS))
    near, rows = similar[:, : options.neighbours], where[:, : options.neighbours]
    found, motion = Duplicates([], 0), None
    pairs = np.empty((0, 2), dtype=np.int64)
    if options.duplicates != NONE:
        pairs = candidate_pairs(near, rows)
    if options.duplicates == FRAMES or options.motion is not None:
        with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
            found, motion = _by_frames(videos, pairs, options, decisions, place, on_video)
    if options.duplicates == FEATURES:
        edges, closeness = pairs_of_features(near, rows, options.threshold)
        paths = videos.paths
        worth = {row: (-round(value, 6), paths[row]) for row, value in closeness.items()}
        groups = grouped(edges, worth.__getitem__, paths, decisions)
        found = Duplicates(groups, len(pairs), found.unread)
    gone = {video.row for group in found.groups for video in group.removed}
    gone |= set() if motion is None else set(motion.removed)
    if len(gone) == len(videos):
        raise ValueError(f"nothing moves in any video of {videos.source}. Remove --motion")
    distances = outlier_distances(similar, where, gone)
    limit, outliers = find_outliers(distances, gone)
    dropped = gone | set(outliers) if options.drop_outliers else gone
    keep = [row for row in range(len(videos)) if row not in dropped]
    if options.subset > len(keep):
        raise ValueError(
            f"--subset {options.subset} is too large, because only {len(keep)} videos remain"
        )
    chosen = k_centre_greedy(x[keep], options.subset) if options.subset else []
    clusters = min(options.clusters, len(videos))
    cluster, centrality = assign(x, k_means(x, clusters, seed=options.seed))
    notes = []
    if clusters < options.clusters:
        notes.append(f"there are only {clusters} clusters, because there are no more videos")
    decided = {*decisions.keep, *decisions.apart}
    missing = len(decided.difference(videos.paths))
    if missing:
        notes.append(f"{missing} of {len(decided)} videos with a decision are not in the source")
    return Curation(
        videos=videos,
        options=options,
        duplicates=found,
        decisions=decisions,
        motion=motion,
        distances=distances,
        limit=limit,
        outliers=outliers,
        keep=keep,
        subset=[keep[i] for i in chosen],
        cluster=cluster,
        centrality=centrality,
        notes=notes,
    )


def _by_frames(
    videos: Features,
    pairs: np.ndarray,
    options: CurateOptions,
    decisions: Decisions,
    folder: str | os.PathLike,
    on_video: Callable[[str, int, bool], None] | None,
) -> tuple[Duplicates, Motion | None]:
    """Group copies by their frames, keep the best video of each group, and measure motion.

    The arguments are as in :func:`curate_videos`, and ``pairs`` (P, 2) are candidates by features.

    Raises:
        ValueError: If fewer than two of the videos can be read.
    """
    files, paths = videos.files, videos.paths
    seconds = LATE_SECONDS if LATE in options.edits else MAX_SECONDS
    workers = usable_cores() if options.workers is None else options.workers
    with closing(ThumbnailFile(folder)) as stored:
        unread = read_thumbnails(stored, files, workers, on_video, seconds)
        if len(stored.places) < 2:
            row, reason = unread[0]
            raise ValueError(
                f"fewer than two videos of {videos.source} can be read. The first unreadable one "
                f"is {files[row]}: {reason}. Run the command where the videos are, or compare "
                "only features (--duplicates features)"
            )
        found, gone = Duplicates([], 0, unread), set()
        if options.duplicates == FRAMES:
            how = options.threshold, options.neighbours, options.edits, workers, on_video
            edges, compared = pairs_of_frames(stored, pairs, *how)
            ends = {row: place.video.end for row, place in stored.places.items()}
            shared = shared_parts(edges, ends, options.intros)
            quality = qualities(stored, files, {row for pair in edges for row in pair})

            def worth(row: int) -> tuple:
                return *(-quality[row].of(name) for name in options.prefer), files[row]

            edited = edited_videos(stored.places, edges, files)
            groups = grouped(edges, worth, paths, decisions, edited)
            found = Duplicates(groups, compared, unread, shared, quality)
            gone = {video.row for group in groups for video in group.removed}
        if options.motion is None:
            return found, None
        values = np.full((2, len(files)), np.nan)
        for row, place in stored.places.items():
            values[:, row] = motion_of(place.read())
    motion, frozen = values
    limit = float(np.nanquantile(motion, options.motion))
    still = np.flatnonzero((motion < limit) | (frozen == 1))
    kept = gone | {row for row in still.tolist() if paths[row] in decisions.keep}
    order = still[np.argsort(motion[still], kind="stable")].tolist()
    return found, Motion(motion, frozen, limit, [row for row in order if row not in kept])


def motion_of(video: Thumbnails) -> tuple[float, float]:
    """Return the mean difference of frames half a second apart, and the share of still steps.

    A difference is the mean absolute difference of two thumbnails, in grey levels of 255. A step is
    still if the difference is below 0.5. The first and the last frame of a video shorter than half
    a second are compared. A video of one frame has the difference 0 and the share 1.
    """
    if len(video.times) < 2:
        return 0.0, 1.0
    moments = np.arange(0.0, video.end, min(_MOTION_STEP, float(video.times[-1])))
    shown = video.frames[shown_at(video.times, moments)].astype(np.float32)
    steps = np.abs(np.diff(shown, axis=0)).mean(axis=(1, 2))
    return float(steps.mean()), float((steps < _STILL).mean())


def read_decisions(file: str | os.PathLike) -> Decisions:
    """Read decisions from a CSV file with the columns ``path,decision,other``.

    ``keep`` means that the video stays. ``not a copy`` means that it is not a copy of ``other``.

    Raises:
        ValueError: If the columns are different, or a line has an unknown decision or too few
            paths. The message names file and line.
    """
    keep: set[str] = set()
    apart: dict[str, set[str]] = {}
    header = None
    for line, cells in read_csv_lines(file):
        if header is None:
            header = cells
            if header != ["path", "decision", "other"]:
                raise ValueError(f"{file}: the first line must be path,decision,other")
            continue
        where = f"{file}, line {line}"
        path, decision, other = [*cells, "", ""][:3]
        if not path or len(cells) > 3:
            raise ValueError(f"{where}: expected a path, a decision and another path")
        if decision == KEPT:
            keep.add(path)
        elif decision == NOT_A_COPY and other:
            for one, two in ((path, other), (other, path)):
                apart.setdefault(one, set()).add(two)
        else:
            what = "names no other video" if decision == NOT_A_COPY else f"is {decision!r:.100}"
            raise ValueError(
                f"{where}: the decision {what}. Write {KEPT}, or {NOT_A_COPY} and another path"
            )
    return Decisions(frozenset(keep), apart)


def outlier_distances(similar: Tensor, where: Tensor, gone: set[int]) -> Tensor:
    """Return the mean cosine distance (N,) to the 10 nearest videos that are not ``gone``.

    If all neighbours are ``gone``, all of them are used.

    Args:
        similar: (N, k) cosines of the neighbours from
            :func:`~sce_video.evaluation.functional.clusters.neighbour_graph`, descending, -inf in
            empty slots.
        where: (N, k) rows of the neighbours.
        gone: Rows of removed duplicates.
    """
    left = torch.ones(len(similar), dtype=torch.bool)
    left[list(gone)] = False
    usable = (similar > -torch.inf) & left[where]
    usable |= ~usable.any(dim=1, keepdim=True) & (similar > -torch.inf)
    usable &= usable.cumsum(dim=1) <= _OUTLIER_NEIGHBOURS
    total = torch.where(usable, 1 - similar, 0.0).sum(dim=1)
    return total / usable.sum(dim=1).clamp_min(1)


def find_outliers(distances: Tensor, gone: set[int]) -> tuple[float, list[int]]:
    """Return the limit for outliers, and the rows above it, farthest first.

    Rows that are ``gone`` are ignored. The limit is the median of the distances plus 5 standard
    deviations, which are estimated as 1.4826 times the median absolute deviation.
    """
    rows = [row for row in range(len(distances)) if row not in gone]
    own = distances[rows]
    middle = own.median()
    deviation = 1.4826 * (own - middle).abs().median()
    limit = float(middle + _OUTLIER_DEVIATIONS * deviation)
    order = own.argsort(descending=True, stable=True).tolist()
    return limit, [rows[i] for i in order if float(own[i]) > limit + 1e-6]
