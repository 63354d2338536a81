"""Linear classifiers on frozen features, which are cross-validated for ``choose`` and ``finetune``.

All fits of a fold share one decomposition of the features. A video is classified by the mean
probability over its clips, as in a test.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.evaluation.functional.folds import divide
from sce_video.evaluation.functional.linear_probe import Samples, fit_path, standardiser
from sce_video.evaluation.functional.statistics import bootstrap_intervals
from sce_video.utils.command import Progress

#: Type of the key of a feature set: a pool, or a candidate in a comparison
K = TypeVar("K", bound=Hashable)
#: Largest number of folds that :func:`make_folds` creates
_FOLDS = 5
#: Smallest number of folds to test, even if time has run out. Two are needed, because the weight
#: decay for a fold is chosen on other folds.
_LEAST_FOLDS = 2
#: Number of random videos on which a fit is timed
_TIMED = 200


def make_folds(labels: Tensor, units: Tensor, seed: int) -> Tensor | None:
    """Divide videos into folds of whole units.

    Args:
        labels: (N,) labels.
        units: (N,) units.
        seed: Seed of the division.

    Returns:
        Folds (N,) int64. None if a classifier that is trained on the other folds would have only
        one class, or if the classes of most videos occur in one fold only.
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


def percent(hits: Tensor, units: Tensor) -> str:
    """Format an accuracy with its 95 % interval.

    Args:
        hits: (N,) outcomes, 1 or 0.
        units: (N,) units that the bootstrap draws.
    """
    ends = bootstrap_intervals(hits.numpy()[:, None], units.numpy())
    interval = "" if ends is None else f" [{100 * ends[0][0]:.1f}, {100 * ends[0][1]:.1f}]"
    return f"{100 * float(hits.mean()):.1f} %{interval}"


@dataclass(frozen=True, eq=False)
class CrossValidation(Generic[K]):
    """Outcomes of classifiers on m videos to which they were not fitted.

    Attributes:
        kinds: Kinds of features.
        decays: G weight decays.
        correct: (kinds, G, m) float64, 1 for a correctly classified video, else 0.
        losses: (kinds, G, m) float64 cross-entropies.
        tested: (m,) int64 positions of the tested videos among all videos.
        folds: (m,) folds of the tested videos.
    """

    kinds: Sequence[K]
    decays: Sequence[float]
    correct: Tensor
    losses: Tensor
    tested: Tensor
    folds: Tensor

    def best(self) -> tuple[K, float]:
        """Return the kind and the weight decay with the highest accuracy on all videos.

        Ties are broken by the lowest loss, then by the order.
        """
        kind, decay = self._best(self.kinds, torch.ones(len(self.folds), dtype=torch.bool))
        return self.kinds[kind], self.decays[decay]

    def hits(self, kinds: Sequence[K] | None = None) -> Tensor:
        """Return the outcomes (m,) with the kind and the weight decay that are best on other folds.

        The accuracy is therefore not too optimistic because of this choice.

        Args:
            kinds: Kinds to choose from; None for all.
        """
        found = torch.zeros(len(self.folds), dtype=torch.float64)
        for fold in self.folds.unique():
            held = self.folds == fold
            kind, decay = self._best(self.kinds if kinds is None else kinds, ~held)
            found[held] = self.correct[kind, decay, held]
        return found

    def _best(self, kinds: Sequence[K], videos: Tensor) -> tuple[int, int]:
        """Return the indices of the best kind and its best weight decay on some videos."""
        rows = [self.kinds.index(kind) for kind in kinds]
        accuracy = self.correct[rows][..., videos].mean(2).flatten()
        loss = self.losses[rows][..., videos].mean(2).flatten()
        kind, decay = divmod(int(np.lexsort((loss, -accuracy))[0]), len(self.decays))
        return rows[kind], decay


def cross_validate(
    kinds: Sequence[K],
    features_of: Callable[[K], Tensor],
    labels: Tensor,
    folds: Tensor,
    decays: Sequence[float],
    stop: float = math.inf,
) -> CrossValidation[K]:
    """Test one fold after another with all kinds of features and all weight decays.

    When the time is over, the remaining folds are left out for all kinds, so all kinds are tested
    on the same videos.

    Args:
        kinds: Kinds of features.
        features_of: Function that returns the features (N, K, C) of the clips for a kind.
        labels: (N,) int64 labels.
        folds: (N,) int64 folds.
        decays: Weight decays.
        stop: Value of ``time.monotonic()`` by which the last fold must end.
    """
    decays, names = sorted(decays, reverse=True), folds.unique()  # fit from strong to weak decay
    correct, losses = (
        torch.zeros(len(kinds), len(decays), len(labels), dtype=torch.float64) for _ in range(2)
    )
    progress = Progress(len(names) * len(kinds), "linear probe:", unit="probes", quiet=True)
    tested = torch.zeros(len(labels), dtype=torch.bool)
    for number, fold in enumerate(names, 1):
        begun, held = time.monotonic(), folds == fold
        for row, kind in enumerate(kinds):
            values = features_of(kind)
            fitted = _probabilities(values[~held], labels[~held], values[held], decays)
            for decay, (classes, found) in enumerate(fitted):
                own = found * (classes == labels[held][:, None])
                correct[row, decay, held] = (classes[found.argmax(1)] == labels[held]).double()
                losses[row, decay, held] = -own.sum(1).clamp(min=1e-12).log()
            progress.advance()
        tested |= held
        now = time.monotonic()
        if number >= _LEAST_FOLDS and now + (now - begun) > stop:
            break
    progress.finish()
    rows = torch.nonzero(tested).flatten()
    return CrossValidation(kinds, decays, correct[..., rows], losses[..., rows], rows, folds[rows])


def _probabilities(
    train: Tensor, labels: Tensor, tested: Tensor, decays: Sequence[float]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Fit one classifier per weight decay, and yield its class probabilities for other videos.

    Args:
        train: (N, K, C) features of clips to which the classifiers are fitted.
        labels: (N,) labels of the training videos.
        tested: (n, K, C) features of clips to classify.
        decays: Weight decays from strong to weak.

    Yields:
        Labels (k,) of the classes in ascending order, and their probabilities (n, k).
    """
    classes, targets = labels.repeat_interleave(train.shape[1]).unique(return_inverse=True)
    clips = train.flatten(0, 1).double()
    mean, scale = standardiser(clips)
    tested = (tested.double() - mean) / scale
    for weight, bias in fit_path(Samples(clips, targets, (mean, scale)), len(classes), decays):
        yield classes, F.softmax(tested @ weight + bias, dim=-1).mean(1)


def time_probes(
    sizes: Sequence[int], classes: int, folds: int, decays: Sequence[float]
) -> Callable[[int], float]:
    """Time the fits of a fold on random features of each size.

    Args:
        sizes: Dimensions of the features, by kind.
        classes: Number of classes.
        folds: Number of folds; 0 if nothing is tested.
        decays: Weight decays.

    Returns:
        Function that maps a number of videos to the estimated seconds for testing all folds.
    """
    classes = max(2, min(classes, _TIMED // 2))
    labels, taken = torch.arange(_TIMED) % classes, dict.fromkeys(sizes, 0.0)
    for size in taken if folds else ():
        random = torch.Generator().manual_seed(0)
        values = torch.randn(_TIMED, 1, size, generator=random) + labels[:, None, None] / classes
        begun = time.monotonic()
        for _ in _probabilities(values, labels, values[:1], sorted(decays, reverse=True)):
            pass
        taken[size] = time.monotonic() - begun

    def seconds(count: int) -> float:
        # For n videos, the cost is proportional to n * min(n, dimensions).
        shares = (min(count, size) / min(_TIMED, size) * taken[size] for size in sizes)
        return folds * count / _TIMED * sum(shares)

    return seconds
