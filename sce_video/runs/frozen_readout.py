"""Frozen features of labelled videos, and the readout by a linear classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sce_video.evaluation.functional.folds import divide
from sce_video.evaluation.functional.statistics import bootstrap_intervals
from sce_video.models.backbones.frame_pools import pool_stored_clips

#: Maximum number of folds in a cross-validation.
_FOLDS = 5


@dataclass(frozen=True)
class Readout:
    """Pool and weight decay of a linear classifier on frozen features.

    Attributes:
        pool: Name of the pool that turns the features of frames into a representation; None for a
            network without ``frame_pool``.
        l2: Weight decay of the classifier, on standardised features.
    """

    pool: str | None
    l2: float


#: Pool of an image network if nothing can be compared: the default of ``evaluate``.
USUAL_POOL = "mean+absdiff"
#: Weight decay if nothing can be compared.
USUAL_L2 = 0.1


@dataclass(frozen=True)
class FrozenFeatures:
    """Features of the clips of N videos.

    Attributes:
        values: (N, V, T, D) features of V clips with T frames each. If frames cannot be pooled, T
            is 1.
        labels: (N,) int64 labels.
        units: (N,) int64; videos of one unit are in one fold.
        pools: Ways to pool the frames; None for the network's own.
        indices: (N,) int64, numbers of the videos in their set.
        paths: N paths of the videos, with their folder or table.
        weights: Hash of the weights of the network.
        failures: Path and reason of videos that could not be read.
        seconds: Seconds in which a video was read and embedded.
    """

    values: Tensor
    labels: Tensor
    units: Tensor
    pools: Sequence[str | None]
    indices: Tensor
    paths: Sequence[str] = ()
    weights: str = ""
    failures: Sequence[tuple[str, str]] = ()
    seconds: float = 0.0

    def pooled(self, pool: str | None) -> Tensor:
        """Return the representations (N, V, C) of the clips."""
        if pool is None:
            return self.values.flatten(2)
        return pool_stored_clips(self.values, pool)


def percent(hits: Tensor, units: Tensor | None = None) -> str:
    """Return an accuracy with its 95 % interval as text.

    Args:
        hits: (N,) outcomes.
        units: (N,) numbers of the units that the bootstrap draws; None to draw single videos.
    """
    numbers = None if units is None else units.numpy()
    ends = bootstrap_intervals(hits.numpy()[:, None], numbers)
    interval = "" if ends is None else f" [{100 * ends[0][0]:.1f}, {100 * ends[0][1]:.1f}]"
    return f"{100 * float(hits.mean()):.1f} %{interval}"


def make_folds(labels: Tensor, units: Tensor, seed: int) -> Tensor | None:
    """Divide videos into folds of whole units.

    Args:
        labels: (N,) labels.
        units: (N,) units.
        seed: Seed of the division.

    Returns:
        Folds (N,) int64. None if a classifier of the other folds would have one class only, or
        could not give most videos their class, because they are the only ones of it.
    """
    count = min(_FOLDS, len(units.unique()))
    if count < 2:
        return None
    folds = divide(labels, units, folds=count, seed=seed).numbers
    known = torch.zeros(len(labels), dtype=torch.bool)
    for fold in folds.unique():
        held, classes = folds == fold, labels[folds != fold].unique()
        if len(classes) < 2:
            return None
        known[held] = torch.isin(labels[held], classes)
    return folds if 2 * int(known.sum()) >= len(labels) else None
