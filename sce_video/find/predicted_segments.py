"""Prediction of segments in long videos by a rule that is chosen on labelled videos."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.readers.base import VideoDecodeError
from sce_video.datasets.segments import Segment
from sce_video.evaluation.functional.segment_map import evaluate_segments
from sce_video.inference.class_timeline import ClassTimeline, SegmentRule
from sce_video.inference.classifier import VideoClassifier
from sce_video.inference.embed_job import iterate_features
from sce_video.inference.network_input import ViewOptions
from sce_video.options.find import BACKGROUND

#: Score thresholds that :func:`choose_rule` compares
_THRESHOLDS = tuple(round(0.1 + 0.05 * i, 2) for i in range(18))
#: Smallest lengths of a segment, in windows, that :func:`choose_rule` compares
_LENGTHS = (0.0, 0.5, 1.0, 1.5, 2.0)
#: Minimum temporal IoU for which :func:`choose_rule` counts a segment as correct
_TIOU = 0.5

#: Path of a video, its timeline and segments, and the reason if windows are missing
Found = tuple[str, "ClassTimeline | None", list[Segment], str]


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
    """Choose the rule with the best F1 on labelled segments, at temporal IoU 0.5.

    F1 is the mean over classes. If several rules are equally good, the rule with the median
    threshold is chosen.

    Args:
        timelines: Class scores over time by path. All segments of these videos must be labelled.
        labelled: Labelled segments. Their labels must be in ``classes``.
        classes: Names of the network's outputs.
        window: Length of a window in seconds.
        background: Name of the class that forms no segments; None for no such class.
        threshold: Fixed score threshold; None chooses it.
        least: Fixed shortest length of a segment in seconds; None chooses it.

    Returns:
        The chosen rule and its F1.

    Raises:
        ValueError: If a label is not a class of the classifier, or no class has a segment.
    """
    wanted = [s for s in labelled if s.label != background]
    unknown = sorted({s.label for s in labelled} - set(classes) - {background})
    if unknown:
        raise ValueError(
            f"the label {unknown[0]!r} of the segments is not a class of the classifier. Its "
            f"classes are {', '.join(map(repr, classes[:8]))}{', ...' * (len(classes) > 8)}"
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
    """Predict the segments of videos, reading the frames of each video once.

    The required memory depends only on the size of the windows.

    Args:
        classifier: Classifier from :func:`~sce_video.inference.classifier.load_classifier`.
        paths: Files, URLs or rows of tables.
        windows: Division of each video into windows, without shots.
        options: Views of a window.
        labelled: Segments on which the rule is chosen, with the real paths of their videos.
        threshold: Score threshold; None chooses it, or uses 0.5 without labelled segments.
        least: Shortest segment in seconds; None chooses it, or uses 0 without labelled segments.
        background: Name of the class that forms no segments; None for no such class.
        say: Called with sentences about the chosen rule and its segment mAP on labelled videos.

    Yields:
        Path, timeline (None if no window can be decoded), segments, and the reason for missing
        windows.
    """
    files = list(dict.fromkeys(s.path for s in labelled))
    known: dict[str, ClassTimeline] = {}
    embedded = iterate_features(classifier, files, options, windows)
    for path, part in zip(files, embedded, strict=True):
        if part.failures:
            raise VideoDecodeError(*part.failures[0])
        known[path] = ClassTimeline(part)
    rule = SegmentRule(0.5 if threshold is None else threshold, least or 0.0)
    if labelled:
        chosen = choose_rule(
            *(known, labelled, classifier.classes, windows.seconds, background),
            threshold=threshold,
            least=least,
        )
        rule = chosen[0]
        free = [f"--threshold {rule.threshold:g}"] * (threshold is None)
        free += [f"--min-length {rule.least:g}"] * (least is None)
        for sentence in _sentences(known, labelled, classifier.classes, background, chosen, free):
            say(sentence)
    new = [path for path in paths if os.path.realpath(path) not in known]
    embedded = iterate_features(classifier, new, options, windows)
    for path in paths:
        timeline = known.get(os.path.realpath(path))
        if timeline is None:
            part = next(embedded)
            if part.failures:
                yield path, None, [], part.reason
                continue
            timeline = ClassTimeline(part)
        segments = timeline.segments(path, classifier.classes, rule, background)
        yield path, timeline, segments, timeline.found.reason


def _sentences(
    known: Mapping[str, ClassTimeline],
    labelled: Sequence[Segment],
    classes: Sequence[str],
    background: str | None,
    chosen: tuple[SegmentRule, float],
    free: Sequence[str],
) -> Iterator[str]:
    """Yield sentences about the chosen rule and the quality of its segments."""
    rule, f1 = chosen
    if free:
        yield (
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
    biased = ", too optimistic because the rule was chosen on them" * bool(free)
    yield f"segment mAP on the labelled segments: {values}{biased}"
