"""Assigns results to the numbers of the paper: one cell per number, filled or not."""

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
from sce_video.reporting.comparability import compare_with_paper, unit_of
from sce_video.reporting.phrases import describe_benchmark, describe_evaluation, describe_split
from sce_video.reporting.result_files import Collection, Result

#: Status of a number of the paper with a result that was measured as in the paper.
MEASURED = "measured"
#: Status of a number whose results were measured in another way.
DEVIATING = "measured, deviates"
#: Status of a number without a result.
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
        deviations: Differences between the evaluation and the paper's.
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
    """The numbers of the paper on videos, or its numbers on images.

    Attributes:
        unit: ``videos`` or ``images``.
        cells: Numbers of this half, in the order of the paper's results.
        listed: Whether to list the numbers without a result. If not, one line counts them.
    """

    unit: str
    cells: tuple[Cell, ...]
    listed: bool = True

    @property
    def measured(self) -> list[Measurement]:
        """Return the results that stand next to numbers of this half."""
        return [found for cell in self.cells for found in cell.measurements]

    @property
    def missing(self) -> list[Cell]:
        """Return the numbers without a result."""
        return [cell for cell in self.cells if not cell.measurements]

    @property
    def counts(self) -> Counter[str]:
        """Return how many numbers have each status."""
        return Counter(cell.status for cell in self.cells)


class OtherResult(NamedTuple):
    """A result that cannot be compared with any number of the paper, and why."""

    result: Result
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Content of the report pages.

    Attributes:
        videos: Numbers of the paper on videos.
        images: Numbers of the paper on images.
        others: Results that are not comparable with any number of the paper.
        skipped: File and reason of JSON files without results.
    """

    videos: Half
    images: Half
    others: tuple[OtherResult, ...]
    skipped: tuple[tuple[str, str], ...]


def assign_results(collection: Collection) -> Report:
    """Assign every result to the cells it belongs to, or to the other results.

    A mean of three splits also fills the cells of its single splits. A single split that is not
    part of a mean fills the cell of the mean, as a deviation. A cell shows all its results. The
    mean of tab:many-shot is the mean of the other cells of the table.
    """
    groups = groupby((*PAPER_RESULTS, *IMAGE_RESULTS), key=_cell_key)
    cells = {key: Cell(tuple(papers)) for key, papers in groups}
    others = []
    for result in collection.results:
        reasons: list[str] = []
        assigned = False
        for key, cell in cells.items():
            # A split of a mean may have a number of its own in another table.
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
    # Whoever measured on images alone needs no list of videos that were not run, and the reverse.
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
    metric = "" if paper.protocol == "retrieval" else paper.metric  # R@1, R@5, R@10: one cell
    return (*paper.key, paper.pretraining_epochs, paper.split, paper.table, metric)


def _mean_of_sets(cell: Cell, cells: Sequence[Cell]) -> Cell:
    """Fill the cell of the mean over sets with the means of weights that were tested on all."""
    parts = [c for c in cells if c.papers[0].table == cell.papers[0].table and c is not cell]
    # Reversed, since the first of several results of one checkpoint counts.
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
    """Return the measurement for a cell, why there is none, or None for another setting.

    A result is ``standalone`` if it is not one split of a mean.
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
    """Return metrics in percent, or why they cannot be shown so."""
    values = []
    for name in metrics:
        value = result.metric(name)
        if value is None:
            return f"has no {name}"
        if not (math.isfinite(value) and 0 <= value <= 1):
            return f"{name} is {value:g}, which is not a fraction from 0 to 1"
        values.append(100 * value)
    return tuple(values)
