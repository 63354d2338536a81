"""Near-duplicates, outliers, clusters and a diverse subset of the videos of a set of features."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sce_video.curation.edited_copies import EDITS
from sce_video.curation.near_duplicates import (
    Duplicates,
    candidate_pairs,
    duplicates_by_features,
    duplicates_by_frames,
)
from sce_video.evaluation.functional.clusters import (
    assign,
    k_centre_greedy,
    k_means,
    neighbour_graph,
    unit_rows,
)
from sce_video.evaluation.functional.neighbours import check_features, feature_mean
from sce_video.find.stored_features import ExportedVideos

FRAMES, FEATURES, NONE = "frames", "features", "none"
#: Smallest similarity of a near-duplicate, by what is compared (measured: docs/curate.md).
THRESHOLDS = {FRAMES: 0.97, FEATURES: 0.99}
_OUTLIER_NEIGHBOURS = 10
#: Standard deviations of a normal distribution, estimated by the median absolute deviation.
_OUTLIER_DEVIATIONS = 5.0


@dataclass(frozen=True, kw_only=True)
class CurateOptions:
    """What is searched, and how.

    Attributes:
        duplicates: What decides on near-duplicates: ``frames`` of the candidates, ``features``
            alone, or ``none`` (they are not searched).
        similarity: Smallest similarity of near-duplicates; None for that of ``THRESHOLDS``.
        copies: Edited copies that are searched as well, of ``mirrored``, ``parts`` (crops to 40 %
            of a side, pictures in pictures), ``speed``, ``short`` (shared stretches from a sixth of
            the shorter video on) and ``late`` (in the first hour instead of the first minute).
        neighbours: Nearest videos by features, and as many by frames, that each is compared with.
        drop_outliers: Whether outliers are left out of the list to keep.
        subset: Size of the most diverse subset; 0 for none.
        clusters: Number of clusters; at most that of the videos.
        seed: Of the clusters.
        workers: Processes that read and compare frames; 0 for none besides this one.
    """

    duplicates: str = FRAMES
    similarity: float | None = None
    copies: Sequence[str] = ()
    neighbours: int = 20
    drop_outliers: bool = False
    subset: int = 0
    clusters: int = 20
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        if self.duplicates not in (FRAMES, FEATURES, NONE):
            raise ValueError(
                f"duplicates must be {FRAMES}, {FEATURES} or {NONE}, got {self.duplicates!r}"
            )
        if self.similarity is not None and not 0 < self.similarity <= 1:
            raise ValueError(f"similarity must be above 0 and at most 1, got {self.similarity}")
        if self.similarity is not None and self.duplicates == NONE:
            raise ValueError("similarity is that of near-duplicates, which are not searched")
        unknown = sorted(set(self.copies) - set(EDITS))
        if unknown:
            raise ValueError(f"copies must be of {', '.join(EDITS)}, got {', '.join(unknown)}")
        if self.copies and self.duplicates != FRAMES:
            raise ValueError("copies are found by frames, which are not compared")
        for name, least in (
            ("neighbours", 1), ("subset", 0), ("clusters", 1), ("seed", 0), ("workers", 0)
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def threshold(self) -> float:
        """Smallest similarity of near-duplicates."""
        return THRESHOLDS[self.duplicates] if self.similarity is None else self.similarity


@dataclass(frozen=True, eq=False)
class Curation:
    """What was found; videos are numbers, rows of ``videos``.

    Attributes:
        videos: Of the source.
        options: Of the search.
        duplicates: Groups of near-duplicates.
        distances: (N,) mean cosine distance to the 10 nearest videos that are no duplicates.
        limit: Distance above which a video is an outlier.
        outliers: Of the videos that are no duplicates, the farthest first.
        keep: Those that stay, ascending.
        subset: Of those, the most diverse, most typical first.
        cluster: (N,) number of the cluster of every video, the largest being 0.
        centrality: (N,) cosine with the centre of the cluster.
        notes: Sentences on what differs from what was asked for.
    """

    videos: ExportedVideos
    options: CurateOptions
    duplicates: Duplicates
    distances: Tensor
    limit: float
    outliers: list[int]
    keep: list[int]
    subset: list[int]
    cluster: Tensor
    centrality: Tensor
    notes: list[str] = field(default_factory=list)


def curate(
    videos: ExportedVideos,
    options: CurateOptions | None = None,
    *,
    folder: str | os.PathLike | None = None,
    on_video: Callable[[str, int, bool], None] | None = None,
) -> Curation:
    """Search near-duplicates, outliers, clusters and a diverse subset.

    Features are compared by cosine after their mean was subtracted. Near-duplicates: the nearest
    videos of each, by features and by single frames, are candidates; their frames, aligned in time
    and place, decide (:mod:`sce_video.curation.matching`). Outliers:
    the mean distance to the 10 nearest videos (Ramaswamy et al. 2000) exceeds the median by five
    standard deviations, estimated by the median absolute deviation. Subset: k-centre greedy.

    Args:
        videos: From :func:`~sce_video.find.stored_features.read_videos`.
        options: None for the defaults.
        folder: For temporary files, and thumbnails of the videos that a later run uses; None
            for a temporary one.
        on_video: Called with what is done, the total and whether a video failed.

    Raises:
        ValueError: fewer than two videos, features that are not finite, or all equal; more videos
            in the subset than remain.
    """
    options = options or CurateOptions()
    features = torch.from_numpy(videos.features)
    if len(videos) < 2:
        raise ValueError(f"{videos.source} has one video: there is nothing to compare it with")
    check_features(features, videos.source)
    x = unit_rows(features, feature_mean(features))
    if float(x.std(dim=0).max()) < 1e-6:
        raise ValueError(f"{videos.source}: all features are equal, they tell no videos apart")
    similar, where = neighbour_graph(x, max(options.neighbours, _OUTLIER_NEIGHBOURS))
    near, rows = similar[:, : options.neighbours], where[:, : options.neighbours]
    if options.duplicates == NONE:
        found = Duplicates([], 0)
    elif options.duplicates == FEATURES:
        found = duplicates_by_features(videos.paths, near, rows, options.threshold)
    else:
        pairs = candidate_pairs(near, rows)
        with ExitStack() as stack:
            if folder is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
            how = options.threshold, os.fspath(folder), options.workers, on_video, options.copies
            found = duplicates_by_frames(videos.files, pairs, options.neighbours, *how)
        if len(pairs) and not found.candidates:
            row, reason = found.unread[0]
            raise ValueError(
                f"no two of the videos of {videos.source} can be read, the first is "
                f"{videos.files[row]}: {reason}. Run where the videos are, or compare features "
                "alone (--duplicates features)"
            )
    gone = {video.row for group in found.groups for video in group.removed}
    distances = outlier_distances(similar, where, gone)
    limit, outliers = find_outliers(distances, gone)
    dropped = gone | set(outliers) if options.drop_outliers else gone
    keep = [row for row in range(len(videos)) if row not in dropped]
    if options.subset > len(keep):
        raise ValueError(f"a subset of {options.subset} videos was asked for, {len(keep)} remain")
    chosen = k_centre_greedy(x[keep], options.subset) if options.subset else []
    clusters = min(options.clusters, len(videos))
    cluster, centrality = assign(x, k_means(x, clusters, seed=options.seed))
    fewer = f"{clusters} clusters, not {options.clusters}: there are no more videos"
    return Curation(
        videos=videos,
        options=options,
        duplicates=found,
        distances=distances,
        limit=limit,
        outliers=outliers,
        keep=keep,
        subset=[keep[i] for i in chosen],
        cluster=cluster,
        centrality=centrality,
        notes=[] if clusters == options.clusters else [fewer],
    )


def outlier_distances(similar: Tensor, where: Tensor, gone: set[int]) -> Tensor:
    """Mean cosine distance (N,) to the 10 nearest not ``gone``, or of all where none is left.

    Args:
        similar: (N, k) cosines with the neighbours of each video, in descending order, -inf in an
            empty slot, as :func:`~sce_video.evaluation.functional.clusters.neighbour_graph` gives.
        where: (N, k) rows of these.
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
    """The limit, and the rows above it that are not ``gone``, farthest first.

    The limit is the median plus 5 standard deviations, estimated as 1.4826 times the median
    absolute deviation, of the distances of videos that are not ``gone``.
    """
    rows = [row for row in range(len(distances)) if row not in gone]
    own = distances[rows]
    middle = own.median()
    deviation = 1.4826 * (own - middle).abs().median()
    limit = float(middle + _OUTLIER_DEVIATIONS * deviation)
    order = own.argsort(descending=True, stable=True).tolist()
    return limit, [rows[i] for i in order if float(own[i]) > limit + 1e-6]
