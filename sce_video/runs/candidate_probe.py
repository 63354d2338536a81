"""Linear probe of all candidates of ``sce-video choose``, fold by fold, until the time is over."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sce_video.evaluation.functional.linear_probe import fit_linear_probe
from sce_video.runs.candidate_videos import ChoiceVideos
from sce_video.runs.candidates import Candidate
from sce_video.utils.command import Progress

#: Weight decays. They are fewer than in ``evaluate``, because each one costs a fit of every fold.
DECAYS = (1e-3, 1e-2, 1e-1, 1.0)
#: Random videos on which a fit is timed.
_TIMED = 200


@dataclass(frozen=True, eq=False)
class ProbeHits:
    """Outcomes of the linear probe of all candidates on the same videos.

    Attributes:
        hits: Whether each tested video is classified correctly, (m,) bool, by candidate.
        tested: (m,) ascending positions of the tested videos.
        folds: Number of tested folds.
    """

    hits: dict[Candidate, np.ndarray]
    tested: np.ndarray
    folds: int


def probe_by_fold(
    features: Mapping[Candidate, Tensor], videos: ChoiceVideos, stop: float
) -> ProbeHits:
    """Test one fold after the other with all candidates until the time is over.

    Whole folds are left out, so every candidate is tested on the same videos and trained on all
    other folds. The first fold is always tested.

    Args:
        features: Features (n, D) of the n videos by candidate.
        videos: The n videos.
        stop: Time on the clock of ``time.monotonic`` at which no further fold may end.
    """
    folds = np.unique(videos.folds)
    hits = {candidate: np.zeros(len(videos), dtype=bool) for candidate in features}
    tested = np.zeros(len(videos), dtype=bool)
    fits = len(folds) * len(features)
    progress = Progress(fits, "linear probe:", unit="probes", quiet=True)
    for fold in folds:
        begun, own = time.monotonic(), videos.folds == fold
        for candidate, values in features.items():
            hits[candidate][own] = _hits(values, videos, own)
            progress.advance()
        tested |= own
        now = time.monotonic()
        if now + (now - begun) > stop:
            break
    progress.finish()
    rows = np.flatnonzero(tested)
    kept = {candidate: found[rows] for candidate, found in hits.items()}
    return ProbeHits(kept, rows, len(np.unique(videos.folds[rows])))


def _hits(values: Tensor, videos: ChoiceVideos, tested: np.ndarray) -> np.ndarray:
    """Return whether a probe of the other videos classifies the tested ones correctly, (m,)."""
    other, own = torch.from_numpy(~tested), torch.from_numpy(tested)
    labels, groups = torch.from_numpy(videos.labels), torch.from_numpy(videos.groups)
    probe = fit_linear_probe(values[other], labels[other], groups=groups[other], l2_grid=DECAYS)
    return (probe.scores(values[own]).argmax(dim=1) == labels[own]).numpy()


@dataclass(frozen=True)
class ProbeTime:
    """Estimated time of the linear probes of all candidates.

    Attributes:
        seconds: Seconds of a probe of :data:`_TIMED` videos, by candidate.
        sizes: Dimensions of the features, by candidate.
        folds: Number of folds.
    """

    seconds: tuple[float, ...]
    sizes: tuple[int, ...]
    folds: int

    def total(self, count: int) -> float:
        """Return the seconds in which all folds of ``count`` videos are tested."""
        # A fit multiplies the videos by their features, or by each other if they are fewer.
        return self.folds * sum(
            seconds * count * min(count, size) / (_TIMED * min(_TIMED, size))
            for seconds, size in zip(self.seconds, self.sizes, strict=True)
        )


def time_probes(sizes: Sequence[int], videos: ChoiceVideos, seed: int = 0) -> ProbeTime:
    """Time a probe of random features of each size; no time without labels.

    Args:
        sizes: Dimensions of the features of each candidate.
        videos: All videos, which give the numbers of classes and folds.
        seed: Seed of the random features.
    """
    if not videos.labelled:
        return ProbeTime((), (), 0)
    classes = max(2, min(len(videos.classes), _TIMED // 2))
    labels = torch.arange(_TIMED) % classes
    taken: dict[int, float] = {}
    for size in set(sizes):
        random = torch.Generator().manual_seed(seed)
        values = torch.randn(_TIMED, size, generator=random) + labels[:, None] / classes
        begun = time.monotonic()
        fit_linear_probe(values, labels, l2_grid=DECAYS)
        taken[size] = time.monotonic() - begun
    seconds = tuple(taken[size] for size in sizes)
    return ProbeTime(seconds, tuple(sizes), len(np.unique(videos.folds)))
