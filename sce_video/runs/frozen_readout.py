"""The readout of frozen features by a linear classifier, chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.evaluation.functional.folds import divide
from sce_video.evaluation.functional.linear_probe import L2_GRID, Samples, fit_path, standardiser
from sce_video.evaluation.functional.statistics import bootstrap_intervals
from sce_video.models.backbones.frame_pools import pool_stored_frames

#: Maximum number of folds in a cross-validation.
_FOLDS = 5
#: Weight decays from strong to weak, because each fit starts from the solution before it.
_GRID = tuple(sorted(L2_GRID, reverse=True))


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
        failures: Path and reason of videos that could not be read.
        seconds: Seconds in which a video was read and embedded.
    """

    values: Tensor
    labels: Tensor
    units: Tensor
    pools: Sequence[str | None]
    indices: Tensor
    failures: Sequence[tuple[str, str]] = ()
    seconds: float = 0.0

    def pooled(self, pool: str | None) -> Tensor:
        """Return the representations (N, V, C) of the clips."""
        if pool is None:
            return self.values.flatten(2)
        frames = self.values.flatten(0, 1).transpose(1, 2)
        return pool_stored_frames(frames, pool).unflatten(0, self.values.shape[:2])


@dataclass(frozen=True)
class CrossValidation:
    """Accuracy of classifiers on frozen features, on videos that they were not fitted on.

    Attributes:
        readout: The readout that is best over all folds.
        hits: (N,) float64, 1 for a correctly classified video, else 0. The readout of a fold is
            the best one of the other folds, so the accuracy includes the cost of the choice.
        folds: (N,) int64.
        by_pool: Accuracy of each pool with its best weight decay, over all folds.
    """

    readout: Readout
    hits: Tensor
    folds: Tensor
    by_pool: Mapping[str | None, float]


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


def cross_validate(features: FrozenFeatures, folds: Tensor) -> CrossValidation:
    """Compare all pools and weight decays by the videos of each fold.

    A video's class is the class with the highest mean probability over its clips, as in a test.

    Args:
        features: Features of the videos.
        folds: (N,) their folds.
    """
    num_classes = int(features.labels.max()) + 1
    readouts = [Readout(pool, l2) for pool in features.pools for l2 in _GRID]
    hits, losses = (torch.zeros(len(readouts), len(folds)).double() for _ in range(2))
    for place, pool in enumerate(features.pools):
        values, rows = features.pooled(pool), slice(place * len(_GRID), (place + 1) * len(_GRID))
        for fold in folds.unique():
            held = folds == fold
            found = _predictions(values[~held], features.labels[~held], values[held], num_classes)
            for row, probabilities in zip(range(rows.start, rows.stop), found, strict=True):
                own = probabilities.gather(1, features.labels[held][:, None])[:, 0]
                hits[row, held] = (probabilities.argmax(1) == features.labels[held]).double()
                losses[row, held] = -own.clamp(min=1e-12).log()
    chosen = torch.zeros(len(folds)).double()
    for fold in folds.unique():
        held = folds == fold
        chosen[held] = hits[_best(hits[:, ~held], losses[:, ~held]), held]
    means = hits.mean(1).unflatten(0, (-1, len(_GRID))).amax(1).tolist()
    return CrossValidation(
        readout=readouts[_best(hits, losses)],
        hits=chosen,
        folds=folds,
        by_pool=dict(zip(features.pools, means, strict=True)),
    )


def _best(hits: Tensor, losses: Tensor) -> int:
    """Return the row with the highest accuracy, of equal ones the one with the lowest loss."""
    ranks = np.lexsort((losses.mean(1).numpy(), -hits.mean(1).numpy()))
    return int(ranks[0])


def _predictions(train: Tensor, labels: Tensor, held: Tensor, num_classes: int) -> Iterator[Tensor]:
    """Yield the class probabilities (n, K) of held-out videos for each weight decay of the grid.

    Args:
        train: (N, V, C) features of clips to fit on.
        labels: (N,) their labels.
        held: (n, V, C) features of clips to classify.
        num_classes: Number of classes K.
    """
    classes, targets = labels.repeat_interleave(train.shape[1]).unique(return_inverse=True)
    clips = train.flatten(0, 1).double()
    mean, scale = standardiser(clips)
    tested = (held.double() - mean) / scale
    samples = Samples(clips, targets, (mean, scale))
    for weight, bias in fit_path(samples, len(classes), _GRID):
        found = F.softmax(tested @ weight + bias, dim=-1).mean(1)
        every = found.new_zeros(len(held), num_classes)
        every[:, classes] = found
        yield every
