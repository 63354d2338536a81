"""Scores of the candidates of ``sce-video choose``, and the recommendation based on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from sce_video.evaluation.functional.statistics import (
    ALPHA,
    PairedChange,
    mean_interval,
    paired_change,
    paired_differences,
    paired_p_value,
)
from sce_video.evaluation.metrics.feature_metrics import (
    KNN,
    ClipRetrieval,
    FeatureStatistics,
    LiDAR,
    RankMe,
)
from sce_video.evaluation.rows import Rows, mean_of_clips
from sce_video.runs.candidate_features import Cost
from sce_video.runs.candidates import Candidate, ChoiceVideos
from sce_video.runs.fold_probe import cross_validate

#: Metric that decides between candidates
DECIDES = "linear_top1"
#: Metrics whose differences are reported if the videos have labels
LABELLED = {DECIDES: "linear probe", "knn_top1": "kNN"}
#: Metrics that need no labels, with their names, in the order of the table
LABEL_FREE = {
    "rankme": "RankMe",
    "lidar": "LiDAR",
    "clip_retrieval_r1": "clip retrieval",
    "effective_rank": "effective rank",
}
#: Weight decays that the linear probe tries. To save time, there are fewer than in ``evaluate``.
DECAYS = (1e-3, 1e-2, 1e-1, 1.0)
#: Smallest gain over the floors, as a share of all videos, that makes a network worth using
_RELEVANT = 0.05
#: Largest number of videos for label-free metrics, whose cost is cubic in the number of clips
_MEASURED = 250


@dataclass(frozen=True, eq=False)
class Score:
    """Metrics of a candidate.

    Attributes:
        candidate: Candidate that was scored.
        cost: Cost of the candidate.
        rows: Features of the videos, with labels, groups and folds.
        metrics: Values by metric name.
        intervals: 95 % intervals of the metrics that are means over videos; None with one group.
        outcomes: (m,) contribution of each measured video to such a metric.
    """

    candidate: Candidate
    cost: Cost
    rows: Rows
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    outcomes: dict[str, np.ndarray] = field(default_factory=dict)


def score_candidates(
    clips: Mapping[Candidate, np.ndarray],
    costs: Mapping[Candidate, Cost],
    videos: ChoiceVideos,
    stop: float = math.inf,
) -> tuple[list[Score], ChoiceVideos]:
    """Compute kNN and a linear probe if there are labels, otherwise the label-free measures.

    Args:
        clips: Features (n, K, D) of the clips of each video, by candidate.
        costs: Time and memory that each candidate needs.
        videos: The n videos.
        stop: Value of ``time.monotonic()`` after which no further fold is tested.

    Returns:
        Scores in the order of ``clips``, and the videos for which they have outcomes. These may be
        fewer than all videos.
    """
    rows = {candidate: _rows(values, videos) for candidate, values in clips.items()}
    if not videos.labelled:
        measured = videos.subset(np.arange(min(_MEASURED, len(videos))))
        scores = [
            _score_without_labels(candidate, costs[candidate], rows[candidate], values, measured)
            for candidate, values in clips.items()
        ]
        return scores, measured
    labels, folds = torch.from_numpy(videos.labels), torch.from_numpy(videos.folds)

    def features_of(candidate: Candidate) -> torch.Tensor:
        return rows[candidate].features[:, None]

    probe = cross_validate([*rows], features_of, labels, folds, DECAYS, stop)
    measured = videos.subset(probe.tested.numpy())
    scores = []
    for candidate, one in rows.items():
        knn = KNN()
        knn.compute(one)
        near = knn.outcomes["knn_top1"][probe.tested].numpy()
        outcomes = {DECIDES: probe.hits([candidate]).numpy(), "knn_top1": near}
        score = Score(candidate, costs[candidate], one, {})
        scores.append(_with_outcomes(score, outcomes, measured))
    return scores, measured


def _score_without_labels(
    candidate: Candidate, cost: Cost, rows: Rows, clips: np.ndarray, measured: ChoiceVideos
) -> Score:
    """Return the label-free measures on the measured videos, which come first in ``clips``."""
    few = _rows(in_row_space(clips[: len(measured)]), measured)
    values, retrieval = RankMe().compute(few), ClipRetrieval()
    if clips.shape[1] > 1:  # these metrics compare several clips of a video
        values |= LiDAR().compute(few)
        retrieval.compute(few)
    outcomes = {name: hits.numpy() for name, hits in retrieval.outcomes.items()}
    return _with_outcomes(Score(candidate, cost, rows, values), outcomes, measured)


def _with_outcomes(
    score: Score, outcomes: Mapping[str, np.ndarray], measured: ChoiceVideos
) -> Score:
    """Add outcomes (m,) of the measured videos, with their means and intervals."""
    values = {name: found.astype(np.float64) for name, found in outcomes.items()}
    ends = {name: mean_interval(found, measured.groups) for name, found in values.items()}
    means = {name: float(found.mean()) for name, found in values.items()}
    metrics = {**score.metrics, **means, **FeatureStatistics().compute(score.rows)}
    return replace(score, metrics=metrics, intervals=ends, outcomes=values)


def in_row_space(clips: np.ndarray) -> np.ndarray:
    """Return features with at most as many dimensions as clips, and the same inner products.

    The features are rotated into the space that they span, so RankMe and clip retrieval stay the
    same up to rounding. LiDAR decreases by less than one percent, because it includes a tiny share
    for every dimension without variation.

    Args:
        clips: (n, K, D) float32.

    Returns:
        (n, K, min(D, n K)) float32.
    """
    count, per_video, size = clips.shape
    if size <= count * per_video:
        return clips
    rows = torch.from_numpy(clips.reshape(-1, size)).double()
    upper = torch.linalg.qr(rows.T, mode="r")[1]
    return upper.T.float().numpy().reshape(count, per_video, -1)


def _rows(clips: np.ndarray, videos: ChoiceVideos) -> Rows:
    """Return the mean features of the videos, with their clips, labels and folds."""
    count, per_video = clips.shape[:2]
    labels = torch.from_numpy(videos.labels)
    of_clips = Rows(
        values=torch.from_numpy(np.ascontiguousarray(clips.reshape(count * per_video, -1))),
        labels=labels,
        indices=torch.arange(count),
        paths=list(videos.paths),
        num_views=per_video,
        counts=torch.full((count,), per_video),
        groups=torch.from_numpy(videos.groups),
        folds=torch.from_numpy(videos.folds),
    )
    return mean_of_clips(of_clips)


@dataclass(frozen=True)
class PairedDifference(PairedChange):
    """Difference between two candidates in a metric on the same videos.

    The change is the value of the first candidate minus the value of the second.

    Attributes:
        metric: Name of the metric.
        first: First candidate.
        second: Second candidate.
        p_relevant: p-value of the hypothesis that the change is :data:`_RELEVANT`.
    """

    metric: str
    first: Candidate
    second: Candidate
    p_relevant: float

    @property
    def is_gain(self) -> bool:
        """Whether the first candidate is shown to be better."""
        return self.shown and self.change > 0

    @property
    def is_irrelevant(self) -> bool:
        """Whether a gain of :data:`_RELEVANT` or more is ruled out."""
        below = self.interval is not None and self.interval[1] < _RELEVANT
        return below and self.p_relevant < ALPHA

    @property
    def points(self) -> str:
        """Change in percentage points, for example ``+2.1 [-0.4, +4.6]``."""
        if self.interval is None:
            return f"{100 * self.change:+.1f}"
        low, high = self.interval
        return f"{100 * self.change:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def paired_difference(
    first: Score, second: Score, groups: np.ndarray, metric: str = DECIDES
) -> PairedDifference:
    """Compare two candidates on the same videos, resampling whole groups.

    Args:
        first: Score of the first candidate.
        second: Score of the second candidate.
        groups: (n,) group of each video.
        metric: Name of the metric to compare.
    """
    found, others = first.outcomes[metric], second.outcomes[metric]
    p_relevant = paired_p_value(paired_differences(others + _RELEVANT, found, groups))
    change = vars(paired_change(others, found, groups))
    return PairedDifference(
        **change,
        metric=metric,
        first=first.candidate,
        second=second.candidate,
        p_relevant=p_relevant,
    )


@dataclass(frozen=True)
class Decision:
    """Recommendation that the evidence supports.

    Attributes:
        best: Candidate or floor with the highest value; None without labels.
        recommended: Candidate to use; None if no candidate is shown to exceed the floors.
        reasons: Sentences that explain the recommendation.
        differences: Best candidate minus each other candidate, for each metric with outcomes.
        possible: Whether the evidence suffices for a decision.
    """

    best: Candidate | None
    recommended: Candidate | None
    reasons: tuple[str, ...]
    differences: tuple[PairedDifference, ...] = ()
    possible: bool = True

    @property
    def heading(self) -> str:
        """Recommendation in a few words."""
        if not self.possible:
            cheapest = self.recommended and f". {self.recommended.name} is the cheapest network"
            return f"No decision is possible{cheapest or ''}"
        if self.recommended is None:
            return "Train a network on these videos from scratch"
        return f"Use {self.recommended.name}"


def decide(scores: Sequence[Score], videos: ChoiceVideos, unused: int = 0) -> Decision:
    """Recommend the cheapest candidate that no other candidate is shown to exceed.

    A candidate is recommended only if it is shown to exceed every floor. If none is, training from
    scratch is recommended, unless a network may still be much better than the floors. Without
    labels, nothing can be shown, so the cheapest candidate is recommended.

    Args:
        scores: Candidates and floors.
        videos: Videos for which the scores have outcomes.
        unused: Number of further videos for which the budget did not suffice.
    """
    networks = [score for score in scores if not score.candidate.is_floor]
    if not videos.labelled:
        return _decide_without_labels(networks)
    best = max(scores, key=lambda score: (score.metrics[DECIDES], -score.cost.order[0]))
    others = [score for score in scores if score is not best]
    differences = tuple(
        paired_difference(best, other, videos.groups, metric)
        for metric in LABELLED
        for other in others
    )
    deciding = {d.second: d for d in differences if d.metric == DECIDES}
    equal = [s for s in networks if s is best or not deciding[s.candidate].shown]
    floors = [score for score in scores if score.candidate.is_floor]
    useful = [
        score
        for score in equal
        if all(paired_difference(score, floor, videos.groups).is_gain for floor in floors)
    ]
    alike = [
        f"{score.candidate.name}: {deciding[score.candidate].points}"
        for score in [*equal, *floors]
        if score is not best and not deciding[score.candidate].shown
    ]
    reasons = []
    if alike:
        reasons.append(
            f"No difference can be shown between {best.candidate.name} and {', '.join(alike)} "
            "points in the linear probe."
        )
    if not useful:
        reason, possible = _against_floors(networks, floors, videos, unused)
        return Decision(best.candidate, None, (*reasons, reason), differences, possible)
    chosen = min(useful, key=lambda score: score.cost.order)
    if chosen is not best:
        all_useful = len(useful) == 1 + len(alike)
        them = "them" if all_useful else "those that are shown to be better than every baseline"
        reasons.append(f"{chosen.candidate.name} is the cheapest of {them}.")
    elif not reasons:
        reasons.append(f"{chosen.candidate.name} is shown to be better than all others.")
    return Decision(best.candidate, chosen.candidate, tuple(reasons), differences)


def _against_floors(
    networks: Sequence[Score], floors: Sequence[Score], videos: ChoiceVideos, unused: int
) -> tuple[str, bool]:
    """Explain why no network is useful, and return whether this is certain."""
    network = max(networks, key=lambda score: score.metrics[DECIDES])
    gains = [paired_difference(network, floor, videos.groups) for floor in floors]
    gain = min(gains, key=lambda one: one.change if one.interval is None else one.interval[0])
    units = len(np.unique(videos.groups))
    what = "groups" if units < len(videos) else "videos"
    more = "Give a larger --budget" if unused else "Label more of them"
    if gain.interval is None:
        return f"All videos are in one group, and 20 or more would be enough. {more}.", False
    low, high = gain.interval
    if all(
        any(paired_difference(one, floor, videos.groups).is_irrelevant for floor in floors)
        for one in networks
    ):
        return (
            f"No network exceeds all baselines by {100 * _RELEVANT:.0f} points or more "
            f"({network.candidate.name} compared with {gain.second.name}: {gain.points}), so a "
            "network must learn from these videos."
        ), True
    # The interval shrinks with the square root of the number of videos. It must be narrow enough to
    # rule out either a zero gain or a relevant gain.
    distance = max(gain.change, _RELEVANT - gain.change)
    enough = 10 * (int(units * max(1.0, ((high - low) / 2 / distance) ** 2)) // 10 + 1)
    return (
        f"{network.candidate.name} may be better or worse than {gain.second.name}: "
        f"{gain.points} points. {units} {what} are too few to decide, and about {enough:,} would "
        f"be enough. {more}."
    ), False


def _decide_without_labels(networks: Sequence[Score]) -> Decision:
    chosen = min(networks, key=lambda score: score.cost.order)
    reasons = [
        "Without labels, no measure ranks networks reliably (docs/metrics.md). Look at the nearest "
        "neighbours, or label about 100 videos and add --labels."
    ]
    if len(networks) > 1:
        reasons.insert(0, f"No difference can be shown between {len(networks)} networks.")
        reasons.append(f"{chosen.candidate.name} is the cheapest of them.")
    return Decision(None, chosen.candidate, tuple(reasons), possible=len(networks) == 1)
