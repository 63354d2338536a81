"""Results on the user's own videos, grouped by test set, next to random weights if they exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sce_video.reporting.comparability import is_published_set, selection_of, unit_of
from sce_video.reporting.phrases import describe_benchmark, describe_test
from sce_video.reporting.result_files import Result, count_of
from sce_video.utils.metric_names import NOT_FRACTIONS, is_trivial
from sce_video.utils.records import at

#: Metrics in the order in which they are shown; others follow, those with a prefix last.
_ORDER = ("top1", "mean_class_accuracy", "mAP", "linear_top1", "knn_top1", "retrieval_r1")
_MAX_CLASSES = 8  # names that are listed
_RANDOM = ("random weights", "trained from random weights")


@dataclass(frozen=True)
class OwnResult:
    """A result on the user's own test set.

    Attributes:
        result: Result that was measured.
        weights: Description of the evaluated weights, ``SCE, 100 epochs on 480 videos`` or
            ``random weights``.
        baseline: Result of the same network with random weights on the same test set, if available;
            None for random weights themselves.
        reasons: Reasons why it is not comparable with the paper. If it does not claim to be,
            contradictions between its numbers.
    """

    result: Result
    weights: str
    baseline: Result | None
    reasons: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Return a sentence that summarises the reasons."""
        if self.result.benchmark is not None:
            return f"not comparable with the paper ({describe_benchmark(self.result)})"
        return "its numbers contradict each other"

    @property
    def random(self) -> bool:
        """Return whether the weights are random."""
        return self.weights in _RANDOM

    def gain(self, name: str) -> float | None:
        """Return the gain of a fraction over random weights, in percentage points."""
        own = self.result.metric(name)
        other = None if self.baseline is None else self.baseline.metric(name)
        if name in NOT_FRACTIONS or own is None or other is None:
            return None
        return 100 * (own - other)


@dataclass(frozen=True)
class TestSetResults:
    """The results on one test set.

    Attributes:
        title: Name of the published set, or the names of the classes.
        published: Whether it is a published test set, on which the paper has numbers.
        details: Number of videos, their place, and a description of the evaluation.
        metrics: Names of the metrics that any of the results has, the most telling first.
        results: Results, random weights first.
    """

    title: str
    published: bool
    details: str
    metrics: tuple[str, ...]
    results: tuple[OwnResult, ...]

    @property
    def main_metrics(self) -> tuple[str, ...]:
        """Return the names of the fractions to look at first."""
        main = tuple(name for name in self.metrics if name in _ORDER)
        return main or tuple(n for n in self.metrics if n not in NOT_FRACTIONS)[:3]


def group_results(found: Sequence[tuple[Result, tuple[str, ...]]]) -> tuple[TestSetResults, ...]:
    """Group results by test set, with the reasons why each is not comparable with the paper.

    Results share a test set if their kind of evaluation, split, lists or folders of files, number
    of videos, groups, folds and test pipeline are the same. A result that states no test set is a
    group of its own.
    """
    groups: dict[str, list[tuple[Result, tuple[str, ...]]]] = {}
    for result, reasons in found:
        key: list[Any] = [result.name]
        if result.at("test", dict) is not None:
            files = ("data_root", "ann_file", "ann_sha256")
            key = [result.split, result.count("videos"), result.at("test.pipeline")]
            key += [result.at(name) for name in ("kind", "group_pattern", "folds")]
            key += [result.at(f"{part}.{name}") for part in ("test", "bank") for name in files]
        groups.setdefault(repr(key), []).append((result, reasons))
    return tuple(_group(members) for members in groups.values())


def _group(members: list[tuple[Result, tuple[str, ...]]]) -> TestSetResults:
    described = [(result, describe_weights(result), reasons) for result, reasons in members]
    baselines = [result for result, words, _ in described if words in _RANDOM]
    rows = []
    for result, words, reasons in described:
        network = result.at("network")
        same = [r for r in baselines if network is not None and r.at("network") == network]
        baseline = same[0] if same and words not in _RANDOM else None
        claimed = reasons if result.benchmark is not None else result.faults
        rows.append(OwnResult(result, words, baseline, claimed))
    first = members[0][0]
    # All metrics except those that few classes make trivial.
    classes = first.count("test.num_classes") or first.count("num_classes")
    names = dict.fromkeys(name for result, _ in members for name in result.metrics)
    kept = [name for name in names if not is_trivial(name, classes)]
    kept.sort(key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    return TestSetResults(
        title=describe_test_set(first),
        published=is_published_set(first),
        details=_details(first),
        metrics=tuple(kept),
        # Stable: the others stay in the order of their files.
        results=tuple(sorted(rows, key=lambda row: not row.random)),
    )


def describe_test_set(result: Result) -> str:
    """Describe the published set with its split, else the classes, else the file of the videos."""
    if is_published_set(result):
        return describe_test(result)
    if names := result.at("test.classes", list):
        shown = ", ".join(str(name) for name in names[:_MAX_CLASSES])
        more = len(names) - _MAX_CLASSES
        return f"{shown} and {more} more classes" if more > 0 else shown
    place = result.at("test.ann_file") or result.at("test.data_root")
    classes = result.count("test.num_classes")
    words = f"{classes} classes" if classes else f"own {unit_of(result.protocol)}"
    return f"{words} of {place}" if place else words


def _details(result: Result) -> str:
    """Describe how many videos and classes there are, where, and what they were compared with."""
    videos, gallery = result.count("videos"), result.count("bank_videos")
    classes, groups = result.count("test.num_classes"), result.at("groups")
    unit = unit_of(result.protocol)
    words = (
        None if videos is None else f"{videos:,} {unit}",
        f"{classes} classes" if classes else None,
        result.at("test.ann_file") or result.at("test.data_root"),
        None if gallery is None else f"against {gallery:,} gallery {unit}",
        f"leaving out one of {len(groups)} groups" if isinstance(groups, list) else None,
    )
    return ", ".join(str(word) for word in words if word)


def describe_weights(result: Result) -> str:
    """Describe the evaluated weights: method, epochs and data of the pretraining, or random."""
    result = result.parts[0] if result.parts else result
    origin, suffix = result.at("checkpoint"), ""
    if at(origin, "path") is None:
        source = str(at(origin, "source") or "unknown weights")
        return _RANDOM[0] if source.startswith("random") else source
    # The test of a classifier has two trainings behind it: its own, and the pretraining.
    if result.at("kind") in ("recognition", "detection"):
        origin = result.at("pretrained")
        if origin == "random":
            return _RANDOM[1]
        epochs = result.at("epochs")
        suffix = f"; trained for {epochs} epochs" if epochs is not None else ""
    method = str(at(origin, "training.config.model.type") or "").rpartition(".")[2]
    if not method:
        return f"unknown pretraining{suffix}"
    words = f"{method}, {at(origin, 'epoch')} epochs"
    samples = count_of(at(origin, "training.data.samples"))
    if samples is not None:
        kind = str(at(origin, "training.data.type"))
        words += f" on {samples:,} {'images' if 'Image' in kind else 'videos'}"
    if any(result.at(f"{name}.other_weights") for name in ("checkpoint", "pretrained")):
        suffix += "; not the weights that the training wrote"
    chosen = selection_of(result.protocol)
    return f"{words}{suffix} ({chosen})" if chosen else words + suffix
