"""Assigns results to the numbers of the paper: one cell per number, filled or not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
from sce_video.reporting.comparability import compare, is_setting_of, setting_of, unit_of
from sce_video.reporting.phrases import describe_benchmark, describe_evaluation, describe_split
from sce_video.reporting.result_files import Collection, Result

MEASURED, DEVIATING, NOT_RUN = "measured", "measured, deviates", "not run"


@dataclass(frozen=True)
class Measurement:
    """One result in a cell.

    Attributes:
        name: File of the result.
        values: Percent, one for each number of the cell.
        plain: Retrieval without centring, percent; empty if not measured.
        deviations: Where the evaluation differs from the paper's.
        how: The evaluation in words.
        notes: What a reader must know of the paper's number beside it.
        weights: SHA-256 of the checkpoint; empty if not stated.
    """

    name: str
    values: tuple[float, ...]
    plain: tuple[float, ...]
    deviations: tuple[str, ...]
    how: str
    notes: tuple[str, ...] = ()
    weights: str = ""

    @property
    def status(self) -> str:
        """``MEASURED`` or ``DEVIATING``."""
        return DEVIATING if self.deviations else MEASURED


@dataclass(frozen=True)
class Cell:
    """One number of the paper (R@1, R@5 and R@10 together) and its measurements."""

    papers: tuple[PaperResult, ...]
    measurements: tuple[Measurement, ...]


class OtherResult(NamedTuple):
    """A result that cannot be compared with any number of the paper, and why."""

    result: Result
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Everything that the pages show: cells of the tables on videos and on images, in the order of
    the paper's results, results that are comparable with no number of the paper, and (file, reason)
    of JSON files without results.
    """

    cells: tuple[Cell, ...]
    others: tuple[OtherResult, ...]
    skipped: tuple[tuple[str, str], ...]
    images: tuple[Cell, ...] = ()

    @property
    def with_images(self) -> bool:
        """Whether a result is on images of the paper; if not, one line is enough for its tables."""
        named = any(other.result.benchmark.get("frames") == 1 for other in self.others)
        return named or any(cell.measurements for cell in self.images)

    @property
    def with_videos(self) -> bool:
        """Whether to list the numbers on videos: unless all results are on images."""
        claims = (other.result for other in self.others if other.result.benchmark)
        on_videos = any(unit_of(result.protocol) == "videos" for result in claims)
        return on_videos or not self.with_images or any(cell.measurements for cell in self.cells)

    def status_counts(self, cells: Sequence[Cell] | None = None) -> Counter[str]:
        """Number of cells by status, of the tables on videos if none are given; a cell counts with
        its best measurement.
        """
        counts: Counter[str] = Counter()
        for cell in self.cells if cells is None else cells:
            found = {measurement.status for measurement in cell.measurements}
            counts[next((s for s in (MEASURED, DEVIATING) if s in found), NOT_RUN)] += 1
        return counts


def assign_results(collection: Collection) -> Report:
    """Assign every result to the cells it belongs to, or to the other results.

    A mean of three splits also fills the cells of its single splits. A single split that is not
    part of a mean fills the cell of the mean, as a deviation. A cell shows all its results. The
    mean of tab:many-shot is that of the other cells of the table.
    """
    videos, images = (
        [tuple(group) for _, group in groupby(papers, key=_cell_key)]
        for papers in (PAPER_RESULTS, IMAGE_RESULTS)
    )
    groups = [*videos, *images]
    filled: list[list[Measurement]] = [[] for _ in groups]
    others = []
    for result in collection.results:
        reasons: list[str] = []
        assigned = False
        for measurements, group in zip(filled, groups, strict=True):
            # A split of a mean may have a number of its own in another table.
            for candidate in (result, *result.parts):
                found = _measure(candidate, group, standalone=candidate is result)
                if isinstance(found, Measurement):
                    measurements.append(found)
                    assigned = assigned or candidate is result
                elif found is not None and candidate is result:
                    reasons.append(found)
        if not assigned:
            unknown = f"the paper has no number for: {describe_benchmark(result)}"
            why = compare(result).obstacles or tuple(dict.fromkeys(reasons)) or (unknown,)
            others.append(OtherResult(result, why))
    cells = [Cell(group, tuple(found)) for group, found in zip(groups, filled, strict=True)]
    means = [n for n, cell in enumerate(cells) if cell.papers[0].metric == MEAN_OF_SETS]
    for number in means:
        cells[number] = _mean_of_sets(cells[number], cells)
    first, skipped = len(videos), tuple(collection.skipped)
    return Report(tuple(cells[:first]), tuple(others), skipped, tuple(cells[first:]))


def _mean_of_sets(cell: Cell, cells: Sequence[Cell]) -> Cell:
    """The cell of the mean over sets with the means of all weights that were tested on all sets."""
    parts = [c for c in cells if c.papers[0].table == cell.papers[0].table and c is not cell]
    # Reversed: of several results of one checkpoint the first counts.
    by_weights = [{m.weights: m for m in reversed(part.measurements)} for part in parts]
    means = []
    for weights in by_weights[0]:
        chosen = [found[weights] for found in by_weights if weights and weights in found]
        if len(chosen) == len(parts):
            name = f"{chosen[0].name} and {len(chosen) - 1} others"
            values = (fmean(m.values[0] for m in chosen),)
            deviations = tuple(dict.fromkeys(d for m in chosen for d in m.deviations))
            how = f"mean of the {len(chosen)} results of this checkpoint ({weights[:12]})"
            means.append(Measurement(name, values, (), deviations, how, weights=weights))
    return Cell(cell.papers, tuple(means))


def _cell_key(paper: PaperResult) -> tuple[Any, ...]:
    metric = "" if paper.protocol == "retrieval" else paper.metric  # R@1, R@5, R@10: one cell
    return (*setting_of(paper), paper.pretraining_epochs, paper.split, paper.table, metric)


def _measure(
    result: Result, papers: tuple[PaperResult, ...], standalone: bool
) -> Measurement | str | None:
    """The measurement for a cell, why there is none, or None if the setting is another one.

    A result is ``standalone`` if it is not one split of a mean.
    """
    if not is_setting_of(papers[0], result):
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
    comparability = compare(result)
    if comparability.obstacles:
        return None
    names = [paper.metric for paper in papers]
    values = percentages(result, names)
    if isinstance(values, str):
        return values
    plain: tuple[float, ...] | str = ()
    if papers[0].protocol == "retrieval":
        uncentred = [name.replace("retrieval_", "retrieval_plain_") for name in names]
        plain = percentages(result, uncentred)
    return Measurement(
        name=result.name,
        values=values,
        plain=() if isinstance(plain, str) else plain,
        deviations=(*deviations, *comparability.deviations),
        how=describe_evaluation(result),
        notes=comparability.notes,
        weights=str(result.at("checkpoint", "sha256") or ""),
    )


def percentages(result: Result, metrics: Sequence[str]) -> tuple[float, ...] | str:
    """Metrics in percent, or why they cannot be shown so."""
    values = [result.metric(name) for name in metrics]
    for name, value in zip(metrics, values, strict=True):
        if value is None:
            return f"has no {name}"
        if not (math.isfinite(value) and 0 <= value <= 1):
            return f"{name} is {value:g}, which is not a fraction from 0 to 1"
    return tuple(100 * value for value in values if value is not None)
