"""Comparison of a trained network with random weights, on clips of the same videos.

The measure is kNN accuracy, where each clip is classified by the clips of all other videos. Without
classes, it is the share of clips whose nearest other clip belongs to the same video. The effective
rank of the features (RankMe, arXiv 2210.02885) is reported with it.

A network is *better* if the 95 % bootstrap interval of the paired difference, over videos, lies
above 0, and a paired test rejects equality at 5 %. The interval alone would be too narrow if only a
few videos differ. It is *no better* if the interval does not lie above 0 and the difference is
below 5 points. Without classes, the effective rank must also be less than a tenth higher, because
random weights often find the other clip of a scene by its colours. Everything else is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sce_video.evaluation.functional.label_free import clip_hits
from sce_video.evaluation.functional.neighbours import knn_scores
from sce_video.evaluation.functional.statistics import ALPHA, paired_change
from sce_video.models.losses import effective_rank

# Outcomes of a comparison, as defined in the module's docstring.
BETTER = "better"
NO_BETTER = "no better"
UNDECIDED = "undecided"
#: Descriptions of the networks to compare with, by their name in a row.
OTHERS = {
    "random": "random weights",
    "start": "the weights it started from",
    "teacher": "its teacher",
    "pixels": "grey pixels",
}
#: Descriptions of the measures, by their name in a row.
MEASURES = {"knn": "kNN accuracy", "retrieval": "retrieval of the other clip of a video"}
#: A gain below this value is hardly worth a training run.
LEAST_GAIN = 0.05
#: Minimum number of videos for a comparison. With fewer videos, the interval is too wide.
_MIN_VIDEOS = 16
#: Largest score of the other network that still leaves room for improvement.
_CEILING = 0.95
#: Without classes, a network whose effective rank is higher by this factor is never called "no
#: better".
_HIGHER_RANK = 1.1
#: Minimum mean number of videos per class for using the labels.
_VIDEOS_PER_CLASS = 4
#: Number of neighbours that vote for the class of a clip.
_K = 20


def compare_features(features: Mapping[str, Tensor], labels: Tensor) -> dict[str, float]:
    """Compute the scores of networks on the same videos, and the intervals of the differences.

    Features (N, K, C) of K clips of N videos come from the ``trained`` network and from
    :data:`OTHERS`. Labels (N,) are the classes of the videos, -1 for none.

    A row contains ``videos``, and ``knn`` or ``retrieval``, and ``rank`` of the trained network.
    The same keys with ``_random`` and ``_start`` belong to the other networks, and ``gain_``,
    ``low_``, ``high_`` and ``p_`` to the differences, the ends of their intervals and the p-values
    of the hypothesis that both networks are equal.
    """
    count, clips = features["trained"].shape[:2]
    classes = len(torch.unique(labels))
    # Do not use labels with only a few videos per class, because a folder may contain a sub-folder
    # for each video.
    labelled = bool((labels >= 0).all()) and 2 <= classes <= count / _VIDEOS_PER_CLASS
    measure = "knn" if labelled else "retrieval"
    videos = torch.arange(count).repeat_interleave(clips)
    row: dict[str, float] = {"videos": count}
    hits = {}
    for name, matrix in features.items():
        flat, suffix = matrix.reshape(count * clips, -1).float(), f"_{name}" * (name != "trained")
        row[f"rank{suffix}"] = float(effective_rank(flat))
        if labelled:  # Do clips of other videos vote for the clip's class?
            classes_of = labels.repeat_interleave(clips)
            scores = knn_scores(flat, flat, classes_of, k=_K, groups=(videos, videos))
            hits[name] = (scores.argmax(dim=1) == classes_of).double()
        elif clips > 1:  # Does the nearest other clip belong to the same video?
            hits[name] = clip_hits(flat, videos).double()
        if name in hits:
            row[f"{measure}{suffix}"] = float(hits[name].mean())
    for name in hits.keys() - {"trained"}:
        found = paired_change(hits[name].numpy(), hits["trained"].numpy(), videos.numpy())
        row[f"gain_{name}"], row[f"p_{name}"] = found.change, found.p_value
        if found.interval is not None:
            row[f"low_{name}"], row[f"high_{name}"] = found.interval
    return row


def decision(row: Mapping[str, Any], other: str = "random") -> str:
    """Return ``better``, ``no better`` or ``undecided`` for a row, by the rule of this module."""
    measure = measure_of(row)
    if measure is None or f"low_{other}" not in row or row["videos"] < _MIN_VIDEOS:
        return UNDECIDED
    if row[f"low_{other}"] > 0:  # runs of earlier versions have no p-value
        return BETTER if row.get(f"p_{other}", 0.0) < ALPHA else UNDECIDED
    # A network that is nearly always right leaves little room for improvement.
    decided = row[f"{measure}_{other}"] <= _CEILING and row[f"gain_{other}"] < LEAST_GAIN
    if measure == "retrieval":
        decided = decided and row["rank"] < _HIGHER_RANK * row[f"rank_{other}"]
    return NO_BETTER if decided else UNDECIDED


def is_comparison(row: Mapping[str, Any]) -> bool:
    """Return whether a log row has all numbers of a comparison, none of them NaN."""
    needed, measure = {"videos", "rank"}, measure_of(row)
    for other in OTHERS:
        if f"rank_{other}" in row and measure:
            needed |= {f"gain_{other}", f"{measure}_{other}"}
    return all(math.isfinite(row.get(name, math.nan)) for name in needed)


def measure_of(row: Mapping[str, Any]) -> str | None:
    """Return the name of a row's measure, or None if each video has one clip and no class."""
    return next((name for name in MEASURES if name in row), None)


def sentences(row: Mapping[str, Any]) -> Iterator[str]:
    """Describe the comparison in one sentence for each other network."""
    measure, found = measure_of(row), {BETTER: "better than", NO_BETTER: "no better than"}
    for other, words in OTHERS.items():
        if f"rank_{other}" not in row:
            continue
        ranks = f"effective rank {row['rank']:.1f} against {row[f'rank_{other}']:.1f}"
        if measure is None:
            yield f"{row['videos']} videos compared with {words}: {ranks}"
            continue
        decided = f"{found.get(decision(row, other), 'not decided against')} {words}"
        ends = ""
        if f"low_{other}" in row:
            low, high = (100 * row[f"{end}_{other}"] for end in ("low", "high"))
            ends = f", 95 % interval {low:.1f} to {high:.1f}"
        yield (
            f"{decided}: {MEASURES[measure]} {100 * row[measure]:.1f} % against "
            f"{100 * row[f'{measure}_{other}']:.1f} % ({row['videos']} videos, difference "
            f"{100 * row[f'gain_{other}']:.1f} points{ends}), {ranks}"
        )
