"""Segments of long videos: class scores of windows, joined where a class is above a threshold.

The score of a class at a moment is the mean over the windows that show it::

    windows of 2 s every s    [---.2----)
                                   [---.8----)
                                        [---.9----)
    scores                    .2    .5  .85    .9
    threshold 0.5                  [--------------)      one segment, score .75
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.readers.base import VideoDecodeError
from sce_video.datasets.segments import Segment
from sce_video.evaluation.functional.segment_map import evaluate_segments
from sce_video.inference.classifier import VideoClassifier
from sce_video.inference.network_input import ViewOptions
from sce_video.inference.windows import WindowFeatures, embed_windows
from sce_video.options.find import BACKGROUND

#: Thresholds that :func:`choose_rule` tries.
_THRESHOLDS = tuple(round(0.1 + 0.05 * i, 2) for i in range(18))
#: Smallest lengths that :func:`choose_rule` tries, in windows.
_LENGTHS = (0.0, 0.5, 1.0, 1.5, 2.0)
#: Overlap from which a segment is correct when :func:`choose_rule` compares rules.
_TIOU = 0.5

Found = tuple[str, "ClassTimeline | None", list[Segment], str]


@dataclass(frozen=True)
class SegmentRule:
    """How scores become segments: at least ``threshold``, for ``least`` seconds or more."""

    threshold: float = 0.5
    least: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f"a threshold is above 0 and at most 1, got {self.threshold}")
        if not self.least >= 0:
            raise ValueError(f"the least length of a segment is in seconds, got {self.least}")


class ClassTimeline:
    """Scores of K classes over a video, from those of its windows.

    Attributes:
        found: Windows, whose ``features`` (W, K) are class probabilities.
        edges: (C + 1,) float64, seconds, ascending: where a window begins or ends.
    """

    def __init__(self, found: WindowFeatures) -> None:
        self.found = found
        # Sums of floats: starts and ends that are meant to be equal differ in the last digits.
        starts, ends = np.round(found.starts, 6), np.round(found.ends, 6)
        self.edges = np.unique(np.concatenate([starts, ends]))
        self._first, self._stop = (np.searchsorted(self.edges, at) for at in (starts, ends))
        self._counts = self._covered(np.ones(len(found)))

    def _covered(self, values: np.ndarray) -> np.ndarray:
        """(C,), for each cell the sum of (W,) values over the windows that show it."""
        changes = np.zeros(len(self.edges))
        np.add.at(changes, self._first, values)
        np.add.at(changes, self._stop, -values)
        return np.cumsum(changes)[:-1]

    def scores(self, number: int) -> np.ndarray:
        """(C,) float64 of a class: one at a time, since a day of 400 classes fills the memory.

        0 where no window could be decoded.
        """
        # Between windows the running sum is not exactly 0: no window is no score.
        covered = np.round(self._counts) > 0
        sums = self._covered(self.found.features[:, number].astype(np.float64))
        return np.where(covered, sums / np.maximum(self._counts, 1.0), 0.0)

    def segments(
        self, path: str, classes: Sequence[str], rule: SegmentRule, background: str | None
    ) -> list[Segment]:
        """The segments of all classes but the background, by start, then by class."""
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
    """Start, end and mean score of every stretch that reaches the threshold for long enough.

    ``edges`` (C + 1,) seconds, of cells with ``scores`` (C,).
    """
    # A mean of equal scores may be rounded below them.
    above = np.concatenate([[False], scores >= rule.threshold - 1e-9, [False]])
    borders = np.flatnonzero(above[1:] != above[:-1])
    lengths = np.diff(edges)
    for first, stop in zip(borders[::2].tolist(), borders[1::2].tolist(), strict=True):
        start, end = float(edges[first]), float(edges[stop])
        if end - start >= rule.least - 1e-6:
            own = lengths[first:stop]
            yield start, end, float((scores[first:stop] * own).sum() / own.sum())


def choose_rule(
    timelines: Mapping[str, ClassTimeline],
    labelled: Sequence[Segment],
    classes: Sequence[str],
    window: float,
    background: str | None = None,
    *,
    threshold: float | None = None,
    least: float | None = None,
) -> tuple[SegmentRule, float]:
    """The rule with the best F1 at temporal IoU 0.5 on labelled segments, mean of the classes.

    Args:
        timelines: By the path of each labelled video; all of its segments must be labelled.
        labelled: The segments, whose labels are among ``classes``.
        classes: Names of the outputs.
        window: Length of a window, seconds.
        background: Name of the class that makes no segments.
        threshold: Given, so that only the length is chosen.
        least: Likewise, seconds.

    Returns:
        The rule, of equal ones that with the threshold nearest to the middle of them; and its F1.

    Raises:
        ValueError: A label is no class, or no class has a segment.
    """
    wanted = [s for s in labelled if s.label != background]
    unknown = sorted({s.label for s in labelled} - set(classes) - {background})
    if unknown:
        raise ValueError(
            f"the label {unknown[0]!r} of the segments is no class of the classifier, which has "
            f"{', '.join(map(repr, classes[:8]))}{', ...' * (len(classes) > 8)}"
        )
    found: dict[SegmentRule, float] = {}
    thresholds = _THRESHOLDS if threshold is None else (threshold,)
    lengths = [length * window for length in _LENGTHS] if least is None else [least]
    for rule in itertools.starmap(SegmentRule, itertools.product(thresholds, lengths)):
        predicted = [
            segment
            for path, timeline in timelines.items()
            for segment in timeline.segments(path, classes, rule, background)
        ]
        found[rule] = evaluate_segments(wanted, predicted, [_TIOU]).f1[0]
    best = max(found.values())
    equal = [rule for rule, f1 in found.items() if f1 >= best - 1e-12]
    middle = float(np.median([rule.threshold for rule in equal]))
    return min(equal, key=lambda r: (abs(r.threshold - middle), r.least)), best


def predict_segments(
    classifier: VideoClassifier,
    paths: Sequence[str],
    windows: Windows,
    options: ViewOptions,
    *,
    labelled: Sequence[Segment] = (),
    threshold: float | None = None,
    least: float | None = None,
    background: str | None = BACKGROUND,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Found]:
    """The segments of each video, read in one ordered pass; memory depends on the windows alone.

    Args:
        classifier: From :func:`~sce_video.inference.classifier.load_classifier`.
        paths: Files, URLs or rows of tables.
        windows: How each is divided; without shots.
        options: Views of a window.
        labelled: Segments, with the real paths of their files, on which the rule is chosen.
        threshold: Of the scores; None for the chosen one, or 0.5.
        least: Shortest segment, seconds; None for the chosen one, or 0.
        background: Name of the class that makes no segments.
        say: Called with what was chosen, and the segment mAP on the labelled videos.

    Yields:
        Path, time line (None if no window can be decoded), segments, and why windows are missing.
    """
    known: dict[str, ClassTimeline] = {}
    for path in dict.fromkeys(s.path for s in labelled):
        known[path] = ClassTimeline(embed_windows(classifier, path, windows, options))
    classes = classifier.classes
    rule = SegmentRule(0.5 if threshold is None else threshold, least or 0.0)
    if labelled:
        rule, f1 = choose_rule(
            *(known, labelled, classes, windows.seconds, background),
            threshold=threshold,
            least=least,
        )
        free = [f"--threshold {rule.threshold:g}"] * (threshold is None)
        free += [f"--min-length {rule.least:g}"] * (least is None)
        if free:
            say(
                f"chosen on {len(labelled)} labelled segments: {' '.join(free)} "
                f"(F1 {100 * f1:.1f} % at tIoU {_TIOU})"
            )
        found = [
            segment
            for path, timeline in known.items()
            for segment in timeline.segments(path, classes, rule, background)
        ]
        result = evaluate_segments([s for s in labelled if s.label != background], found)
        values = ", ".join(
            f"{100 * value:.1f} % at tIoU {tiou}"
            for tiou, value in zip(result.tious, result.mAP, strict=True)
        )
        say(f"segment mAP on them: {values}{' (the rule was chosen on them)' * bool(free)}")
    for path in paths:
        timeline = known.get(os.path.realpath(path))
        try:
            timeline = timeline or ClassTimeline(embed_windows(classifier, path, windows, options))
        except VideoDecodeError as error:
            yield path, None, [], error.reason
            continue
        segments = timeline.segments(path, classes, rule, background)
        yield path, timeline, segments, timeline.found.reason
