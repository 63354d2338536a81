"""Content of a report: results next to the paper's numbers, and results on the user's videos."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

from sce_video.published.paper_results import (
    IMAGE_RESULTS,
    MEAN_OF_SETS,
    MEAN_OF_SPLITS,
    PAPER_RESULTS,
    PaperResult,
)
from sce_video.reporting.comparability import (
    compare_with_paper,
    is_published_set,
    selection_of,
    unit_of,
)
from sce_video.reporting.phrases import (
    describe_benchmark,
    describe_evaluation,
    describe_split,
    describe_test,
)
from sce_video.reporting.result_files import Collection, Result, count_of
from sce_video.utils.metric_names import NOT_FRACTIONS, is_trivial
from sce_video.utils.records import at

#: Status of a published number with a result that was measured as in the paper.
MEASURED = "measured"
#: Status of a published number whose results were all measured differently.
DEVIATING = "measured, deviates"
#: Status of a published number without a result.
NOT_RUN = "not run"


@dataclass(frozen=True)
class Measurement:
    """One result in a cell of the paper's tables.

    Attributes:
        papers: Numbers of the cell.
        name: File of the result.
        values: Percentages, one for each number of the cell.
        how: Description of the evaluation.
        plain: Percentages of retrieval without centring; empty if not measured.
        deviations: Differences between the evaluation and the paper's evaluation.
        notes: Facts about the paper's number that a reader must know.
        weights: SHA-256 of the checkpoint; empty if not stated.
    """

    papers: tuple[PaperResult, ...]
    name: str
    values: tuple[float, ...]
    how: str
    plain: tuple[float, ...] = ()
    deviations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    weights: str = ""

    @property
    def status(self) -> str:
        """Return ``MEASURED`` or ``DEVIATING``."""
        return DEVIATING if self.deviations else MEASURED


@dataclass(frozen=True)
class Cell:
    """One number of the paper (R@1, R@5 and R@10 together) and its measurements."""

    papers: tuple[PaperResult, ...]
    measurements: tuple[Measurement, ...] = ()

    @property
    def status(self) -> str:
        """Return the status of the best measurement."""
        found = {measurement.status for measurement in self.measurements}
        return next((status for status in (MEASURED, DEVIATING) if status in found), NOT_RUN)


@dataclass(frozen=True)
class Half:
    """All numbers of the paper on videos, or all numbers on images.

    Attributes:
        unit: ``videos`` or ``images``.
        cells: Numbers in this half, in the order of the paper's results.
        listed: Whether to list the numbers without a result. Otherwise, one line states how many
            there are.
    """

    unit: str
    cells: tuple[Cell, ...]
    listed: bool = True

    @property
    def measured(self) -> list[Measurement]:
        """Return the results that are shown next to numbers in this half."""
        return [found for cell in self.cells for found in cell.measurements]

    @property
    def missing(self) -> list[Cell]:
        """Return the numbers without a result."""
        return [cell for cell in self.cells if not cell.measurements]

    @property
    def counts(self) -> Counter[str]:
        """Return the number of cells with each status."""
        return Counter(cell.status for cell in self.cells)


class OtherResult(NamedTuple):
    """A result that cannot be compared with any number of the paper, and the reasons."""

    result: Result
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Content of the report pages.

    Attributes:
        videos: Numbers of the paper on videos.
        images: Numbers of the paper on images.
        others: Results that are not comparable with any number of the paper.
        skipped: Pairs (file, reason) for JSON files without results.
    """

    videos: Half
    images: Half
    others: tuple[OtherResult, ...]
    skipped: tuple[tuple[str, str], ...]


def assign_results(collection: Collection) -> Report:
    """Assign every result to the cells that it belongs to, or to the other results.

    A mean of three splits also fills the cells of the single splits. A single split that is not
    part of a mean fills the cell of the mean, as a deviation. The mean in tab:many-shot is computed
    from the other cells of the table.
    """
    groups = groupby((*PAPER_RESULTS, *IMAGE_RESULTS), key=_cell_key)
    cells = {key: Cell(tuple(papers)) for key, papers in groups}
    others = []
    for result in collection.results:
        reasons: list[str] = []
        assigned = False
        for key, cell in cells.items():
            # The paper may also have a number for a single split, in another table.
            for candidate in (result, *result.parts):
                found = _measure(candidate, cell.papers, standalone=candidate is result)
                if isinstance(found, Measurement):
                    cells[key] = replace(cells[key], measurements=(*cells[key].measurements, found))
                    assigned = assigned or candidate is result
                elif found is not None and candidate is result:
                    reasons.append(found)
        if not assigned:
            unknown = f"the paper has no number for: {describe_benchmark(result)}"
            obstacles = compare_with_paper(result).obstacles
            why = obstacles or tuple(dict.fromkeys(reasons)) or (unknown,)
            others.append(OtherResult(result, why))
    filled = [
        _mean_of_sets(cell, list(cells.values())) if cell.papers[0].metric == MEAN_OF_SETS else cell
        for cell in cells.values()
    ]
    videos = Half("videos", tuple(cell for cell in filled if cell.papers[0].frames > 1))
    images = Half("images", tuple(cell for cell in filled if cell.papers[0].frames == 1))
    # If all results are on images, the user needs no list of missing video results.
    claims = [other.result for other in others if other.result.benchmark is not None]
    units = {unit_of(result.protocol) for result in claims}
    units |= {half.unit for half in (videos, images) if half.measured}
    return Report(
        videos=replace(videos, listed="videos" in units or not units),
        images=replace(images, listed="images" in units),
        others=tuple(others),
        skipped=tuple(collection.skipped),
    )


def _cell_key(paper: PaperResult) -> tuple[Any, ...]:
    metric = "" if paper.protocol == "retrieval" else paper.metric  # one cell for R@1, R@5, R@10
    return (*paper.key, paper.pretraining_epochs, paper.split, paper.table, metric)


def _mean_of_sets(cell: Cell, cells: Sequence[Cell]) -> Cell:
    """Fill the cell of the mean over sets, for each checkpoint that was tested on all sets."""
    parts = [c for c in cells if c.papers[0].table == cell.papers[0].table and c is not cell]
    # Reverse the results, so that the first one for a checkpoint replaces later ones in the dict.
    by_weights = [{m.weights: m for m in reversed(part.measurements)} for part in parts]
    means = []
    for weights in by_weights[0]:
        chosen = [found[weights] for found in by_weights if weights and weights in found]
        if len(chosen) == len(parts):
            mean = Measurement(
                papers=cell.papers,
                name=f"{chosen[0].name} and {len(chosen) - 1} others",
                values=(fmean(m.values[0] for m in chosen),),
                how=f"mean of the {len(chosen)} results of this checkpoint ({weights[:12]})",
                deviations=tuple(dict.fromkeys(d for m in chosen for d in m.deviations)),
                weights=weights,
            )
            means.append(mean)
    return replace(cell, measurements=tuple(means))


def _measure(
    result: Result, papers: tuple[PaperResult, ...], standalone: bool
) -> Measurement | str | None:
    """Return the measurement that a result is for a cell.

    Args:
        result: The result.
        papers: Numbers of the cell.
        standalone: Whether the result is not one split of a mean.

    Returns:
        The measurement, or the reason why there is none; None if the result does not belong to the
        cell or is not comparable.
    """
    if not papers[0].is_of(result.benchmark):
        return None
    wanted = papers[0].split
    deviations: tuple[str, ...] = ()
    if wanted == MEAN_OF_SPLITS and not result.parts:
        if not standalone:
            return None
        split = "one split" if result.split is None else f"split {result.split}"
        deviations = (f"{split} alone, the paper's is the mean of 3",)
    elif result.split not in (wanted, None):
        ours, theirs = describe_split(result.split), describe_split(wanted)
        return f"of {ours}, the paper's is of {theirs} alone"
    comparability = compare_with_paper(result)
    if comparability.obstacles:
        return None
    names = [paper.metric for paper in papers]
    values, plain = _percentages(result, names), None
    if isinstance(values, str):
        return values
    if papers[0].protocol == "retrieval":
        plain = _percentages(result, [n.replace("retrieval_", "retrieval_plain_") for n in names])
    return Measurement(
        papers=papers,
        name=result.name,
        values=values,
        how=describe_evaluation(result),
        plain=plain if isinstance(plain, tuple) else (),
        deviations=(*deviations, *comparability.deviations),
        notes=comparability.notes,
        weights=str(result.at("checkpoint.sha256") or ""),
    )


def _percentages(result: Result, metrics: Sequence[str]) -> tuple[float, ...] | str:
    """Return metrics in percent, or the reason why they have no percentages."""
    values = []
    for name in metrics:
        value = result.metric(name)
        if value is None:
            return f"has no {name}"
        if not (math.isfinite(value) and 0 <= value <= 1):
            return f"{name} is {value:g}, which is not a fraction from 0 to 1"
        values.append(100 * value)
    return tuple(values)


#: Main metrics, in the order in which to show them. All other metrics follow.
_ORDER = ("top1", "mean_class_accuracy", "mAP", "linear_top1", "knn_top1", "retrieval_r1")
#: Maximum number of class names to list.
_MAX_CLASSES = 8
#: Descriptions of untrained weights, and of weights that were trained without pretraining.
_RANDOM = ("random weights", "trained from random weights")


@dataclass(frozen=True)
class OwnResult:
    """A result on the user's own test set.

    Attributes:
        result: Result that was measured.
        weights: Description of the evaluated weights, ``SCE, 100 epochs on 480 videos`` or
            ``random weights``.
        baseline: Result of the same network with random weights on the same test set; None if there
            is none, and for random weights themselves.
        reasons: Reasons why the result is not comparable with the paper. For a result that does not
            claim to be comparable, contradictions between its numbers.
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
        """Return by how many percentage points a fraction exceeds the value of random weights."""
        own = self.result.metric(name)
        other = None if self.baseline is None else self.baseline.metric(name)
        if name in NOT_FRACTIONS or own is None or other is None:
            return None
        return 100 * (own - other)


@dataclass(frozen=True)
class TestSetResults:
    """The results on one test set.

    Attributes:
        title: Name of the published dataset, or the class names.
        published: Whether the paper has numbers for this test set.
        details: Number of videos, their place, and a description of the evaluation.
        metrics: Names of all results' metrics, the most important first.
        results: Results, starting with random weights.
    """

    title: str
    published: bool
    details: str
    metrics: tuple[str, ...]
    results: tuple[OwnResult, ...]

    @property
    def main_metrics(self) -> tuple[str, ...]:
        """Return the names of the most important fractions."""
        main = tuple(name for name in self.metrics if name in _ORDER)
        return main or tuple(n for n in self.metrics if n not in NOT_FRACTIONS)[:3]


def group_results(found: Sequence[tuple[Result, tuple[str, ...]]]) -> tuple[TestSetResults, ...]:
    """Group results by test set.

    Results have the same test set if their kind of evaluation, split, lists or folders of files,
    number of videos, groups, folds and test pipeline are the same. A result that states no test set
    forms its own group.

    Args:
        found: Results, each with the reasons why it is not comparable with the paper.
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
    # With few classes, some metrics are trivial and therefore left out.
    classes = first.count("test.num_classes") or first.count("num_classes")
    names = dict.fromkeys(name for result, _ in members for name in result.metrics)
    kept = [name for name in names if not is_trivial(name, classes)]
    kept.sort(key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    return TestSetResults(
        title=describe_test_set(first),
        published=is_published_set(first),
        details=_details(first),
        metrics=tuple(kept),
        # Sorting is stable, so all other results keep the order of their files.
        results=tuple(sorted(rows, key=lambda row: not row.random)),
    )


def describe_test_set(result: Result) -> str:
    """Return the name of a published set with its split, or the classes, or the place of a set."""
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
    """Describe the number of videos and classes, their place, and the gallery."""
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
    """Describe the evaluated weights by method, epochs and data of the pretraining run."""
    result = result.parts[0] if result.parts else result
    origin, suffix = result.at("checkpoint"), ""
    if at(origin, "path") is None:
        source = str(at(origin, "source") or "unknown weights")
        return _RANDOM[0] if source.startswith("random") else source
    # A classifier's result depends on two training runs: its own and the pretraining run.
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
