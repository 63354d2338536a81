"""Parts of a page that show a classifier's test: accuracy, confusions, and mistakes as clips."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sce_video.evaluation.functional.statistics import paired_change
from sce_video.evaluation.metrics.base import load_outcomes, outcomes_path
from sce_video.evaluation.rows import Rows
from sce_video.pages.frames import ClipReader, ClipTile, ClipTiles
from sce_video.pages.parts import Part, label_name, render_part, sentence_part
from sce_video.pages.run_record import RunRecord, RunResult
from sce_video.utils.records import at
from sce_video.utils.run_files import PROBE, RESULTS

#: Maximum number of classes for which the confusion matrix is drawn. With more classes, it would be
#: unreadable.
_MAX_CLASSES = 30
#: Maximum number of confused pairs of classes to list.
_MAX_PAIRS = 20
#: Maximum number of mistakes to show as clips.
_MISTAKES = 12


def classifier_parts(
    record: RunRecord, scores: Rows, *, max_bytes: int = 1_000_000, reader: ClipReader | None = None
) -> list[Part]:
    """Return the parts of a page that show the test of a classifier.

    Args:
        record: Record of the run, with the results of the test and of the linear probe.
        scores: Class scores (N, K), labels and paths of the test videos.
        max_bytes: Largest total size of all images in bytes.
        reader: Reader of the files; None to show no clips.
    """
    labelled = torch.nonzero(scores.labels >= 0).flatten()
    if not len(labelled):
        title = "Test of the classifier"
        return [sentence_part("classifier", title, "The tested videos have no labels.", True)]
    rows = scores.subset(labelled)
    names = [str(name) for name in at(record.data, "classes", list) or []]
    parts = [_accuracy(record, rows), _confusion(rows, names)]
    if reader is not None:
        parts.append(_mistakes(rows, names, max_bytes, reader))
    return parts


def confusion_counts(scores: Tensor, labels: Tensor) -> Tensor:
    """Count the videos (K, K) int64 of each true class (row) by the class with the best score."""
    k = scores.shape[1]
    return torch.bincount(labels * k + scores.argmax(dim=1), minlength=k * k).view(k, k)


class Mistake(NamedTuple):
    """Wrongly classified video."""

    row: int
    predicted: int  # class with the highest score
    score: float  # score of this class
    own_score: float  # score of the true class


def confident_mistakes(scores: Tensor, labels: Tensor, most: int) -> list[Mistake]:
    """Return the ``most`` wrongly classified videos with the highest scores, highest first."""
    best, predicted = scores.max(dim=1)
    wrong = torch.nonzero(predicted != labels).flatten()
    order = wrong[best[wrong].argsort(descending=True, stable=True)][:most].tolist()
    return [
        Mistake(i, int(predicted[i]), float(best[i]), float(scores[i, labels[i]])) for i in order
    ]


def _accuracy(record: RunRecord, rows: Rows) -> Part:
    """Show the accuracy next to that of a linear probe and of the most frequent class."""
    tested, probed = record.result(RESULTS), record.result(PROBE)
    probe_of = "linear probe of the frozen network before finetuning"
    largest = float(rows.labels.bincount().max()) / len(rows)
    lines = [
        _line("this classifier, all views", tested, "top1"),
        _line("this classifier, one view", tested, "one_view_top1"),
        _line("mean over the classes", tested, "mean_class_accuracy"),
        _line(probe_of, probed, "linear_top1"),
        _line("always the most frequent class", RunResult({"top1": largest}), "top1"),
    ]
    values = {
        "lines": [line for line in lines if line is not None],
        "videos": len(rows),
        "sentence": _beside_probe(record.folder),
    }
    return render_part("classifier", "Test of the classifier", "part_accuracy.html", values, True)


class _Line(NamedTuple):
    """Accuracy as text and as a bar."""

    name: str
    value: str
    interval: str
    width: float  # length of the bar in percent
    low: float  # ends of the interval on the bar in percent
    high: float


def _line(name: str, result: RunResult, metric: str) -> _Line | None:
    """Return the line of a metric; None if the result does not contain it."""
    value, ends = result.value(metric), result.interval(metric)
    if value is None or not 0 <= value <= 1:
        return None
    low, high = (100 * min(max(end, 0.0), 1.0) for end in ends or (value, value))
    interval = f"{low:.1f} to {high:.1f}" if ends else ""
    return _Line(name, f"{100 * value:.1f} %", interval, 100 * value, low, high)


def _beside_probe(folder: str) -> str:
    """Return a sentence that compares the classifier with the linear probe; empty without one."""
    try:
        found = [load_outcomes(outcomes_path(Path(folder, name))) for name in (RESULTS, PROBE)]
        columns = [
            dict(zip(f.paths, f.values[:, f.names.index(name)].tolist(), strict=True))
            for f, name in zip(found, ("top1", "linear_top1"), strict=True)
        ]
    except (OSError, ValueError):
        return ""
    common = [path for path in columns[0] if path in columns[1]]
    if not common:
        return ""
    trained, probed = (np.array([column[path] for path in common]) for column in columns)
    unit_of = dict(zip(found[0].paths, found[0].units.tolist(), strict=True))
    units = np.array([unit_of[path] for path in common])
    difference = paired_change(probed, trained, units)
    if difference.interval is None:
        return ""
    change, low, high = (100 * x for x in (difference.change, *difference.interval))
    gain = f"{change:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}"
    if difference.shown and change > 0:
        return f"The classifier is better than a linear probe of the frozen features: {gain}."
    if difference.shown:
        return (
            f"A linear probe of the frozen features is better ({gain}), because finetuning was too "
            "short or changed the network too much. Try --frozen 4, or a smaller --lr."
        )
    return f"No clear difference from a linear probe of the frozen features: {gain}."


def _confusion(rows: Rows, names: Sequence[str]) -> Part:
    """Show which classes were confused, as a matrix or, for many classes, as a list of pairs."""
    k, predicted = rows.num_classes, rows.values.argmax(dim=1)
    wrong = predicted != rows.labels
    found, times = (rows.labels * k + predicted)[wrong].unique(return_counts=True)
    sizes = rows.labels.bincount(minlength=k).tolist()
    pairs = [
        (label_name(pair // k, names), label_name(pair % k, names), count, sizes[pair // k])
        for pair, count in zip(found.tolist(), times.tolist(), strict=True)
    ]
    pairs.sort(key=lambda pair: -pair[2])
    classes = [label_name(i, names) or "" for i in range(k)] if k <= _MAX_CLASSES else []
    counts = confusion_counts(rows.values, rows.labels) if classes else torch.zeros(0, 0)
    matrix = [
        (name, size, [(count, round(100 * count / max(1, size))) for count in row])
        for name, size, row in zip(classes, sizes, counts.tolist(), strict=False)
    ]
    values = {
        "pairs": pairs[:_MAX_PAIRS],
        "total": int(wrong.sum()),
        "classes": classes,
        "matrix": matrix,
    }
    return render_part("confusion", "Confusion matrix", "part_confusion.html", values, True)


class _ShownMistake(NamedTuple):
    """Mistake as the page shows it."""

    name: str  # name of the file and its folder
    own: str | None  # true class
    predicted: str | None  # predicted class
    score: str  # score of the predicted class in percent
    own_score: str  # score of the true class in percent
    tile: ClipTile


def _mistakes(rows: Rows, names: Sequence[str], max_bytes: int, reader: ClipReader) -> Part:
    """Show the most confident mistakes as clips."""
    found = confident_mistakes(rows.values, rows.labels, _MISTAKES)
    title = "Most confident mistakes"
    if not found:
        right = f"All {len(rows)} test videos are classified correctly."
        return sentence_part("mistakes", title, right, True)
    # Videos in an object store are not shown, because creating the page must not cause requests.
    files = [rows.paths[m.row] for m in found if "://" not in rows.paths[m.row]]
    tiles = ClipTiles(files, max_bytes, reader)

    def shown(mistake: Mistake) -> _ShownMistake:
        path = rows.paths[mistake.row]
        in_store = ClipTile(problem="in an object store")
        return _ShownMistake(
            name="/".join(Path(path).parts[-2:]),
            own=label_name(int(rows.labels[mistake.row]), names),
            predicted=label_name(mistake.predicted, names),
            score=f"{100 * mistake.score:.0f} %",
            own_score=f"{100 * mistake.own_score:.0f} %",
            tile=tiles.tile(path) if path in tiles.entries else in_store,
        )

    wrong = int((rows.values.argmax(dim=1) != rows.labels).sum())
    values = {
        "clips": [shown(mistake) for mistake in found],
        "wrong": wrong,
        "videos": len(rows),
        **tiles.values,
    }
    return render_part("mistakes", title, "part_mistakes.html", values, True)
