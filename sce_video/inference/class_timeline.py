"""Class scores over time, and the segments in which the score of a class exceeds a threshold.

The score of a class at a moment is the mean over the windows that show the moment::

    windows of 2 s every s    [---.2----)
                                   [---.8----)
                                        [---.9----)
    scores                    .2    .5  .85    .9
    threshold 0.5                  [--------------)      one segment, score .75
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sce_video.datasets.segments import Segment
from sce_video.inference.features import Features


@dataclass(frozen=True)
class SegmentRule:
    """Rule for segments: scores of at least ``threshold``, for ``least`` seconds or more."""

    threshold: float = 0.5
    least: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f"a threshold must be above 0 and at most 1, got {self.threshold}")
        if not self.least >= 0:
            raise ValueError(
                f"the minimum length of a segment must be a number of seconds, got {self.least}"
            )


class ClassTimeline:
    """Scores of K classes over a video, computed from the scores of its windows.

    Attributes:
        found: Windows, whose ``values`` (W, K) are class probabilities.
        edges: (C + 1,) float64 seconds in ascending order, at which a window begins or ends.
    """

    def __init__(self, found: Features) -> None:
        self.found = found
        # Starts and ends are sums of floats, so times that should be equal may differ in the last
        # digits.
        starts, ends = np.round(found.starts, 6), np.round(found.ends, 6)
        self.edges = np.unique(np.concatenate([starts, ends]))
        self._first, self._stop = (np.searchsorted(self.edges, at) for at in (starts, ends))
        self._counts = self._covered(np.ones(len(found)))

    def _covered(self, values: np.ndarray) -> np.ndarray:
        """Return the sum (C,), for each cell, of (W,) values over the windows that show it."""
        changes = np.zeros(len(self.edges))
        np.add.at(changes, self._first, values)
        np.add.at(changes, self._stop, -values)
        return np.cumsum(changes)[:-1]

    def scores(self, number: int) -> np.ndarray:
        """Return the scores (C,) float64 of a single class. They are 0 where no window was decoded.

        All classes of a video that lasts a day would fill the memory.
        """
        # Cells without a window get no score. Rounding may leave their running sum slightly above
        # or below 0.
        covered = np.round(self._counts) > 0
        sums = self._covered(self.found.values[:, number].astype(np.float64))
        return np.where(covered, sums / np.maximum(self._counts, 1.0), 0.0)

    def segments(
        self, path: str, classes: Sequence[str], rule: SegmentRule, background: str | None
    ) -> list[Segment]:
        """Return the segments of all classes except the background, by start, then by class."""
        found = [
            Segment(path, start, end, name, score)
            for number, name in enumerate(classes)
            if name != background
            for start, end, score in join_scores(self.edges, self.scores(number), rule)
        ]
        return sorted(found, key=lambda s: (s.start, s.end, s.label))


def join_scores(
    edges: np.ndarray, scores: np.ndarray, rule: SegmentRule
) -> Iterator[tuple[float, float, float]]:
    """Return start, end and mean score of every stretch that reaches the threshold for long enough.

    ``edges`` (C + 1,) are the ends of the cells in seconds, and ``scores`` (C,) their scores.
    """
    # Because of rounding, the mean of equal scores may be slightly lower than the scores.
    above = np.concatenate([[False], scores >= rule.threshold - 1e-9, [False]])
    borders = np.flatnonzero(above[1:] != above[:-1])
    lengths = np.diff(edges)
    for first, stop in zip(borders[::2].tolist(), borders[1::2].tolist(), strict=True):
        start, end = float(edges[first]), float(edges[stop])
        if end - start >= rule.least - 1e-6:
            own = lengths[first:stop]
            yield start, end, float((scores[first:stop] * own).sum() / own.sum())
