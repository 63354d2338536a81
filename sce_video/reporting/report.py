"""Assigns results to the numbers of the paper: one cell per number, filled or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sce_video.reporting.comparability import (
    compare,
    percentage_problem,
    setting_of,
    setting_of_result,
)
from sce_video.reporting.descriptions import describe_benchmark, describe_evaluation, describe_split
from sce_video.reporting.own_results import TestSetResults, group_results
from sce_video.reporting.paper_results import MEAN_OF_SPLITS, PAPER_RESULTS, PaperResult
from sce_video.reporting.result_files import Collection, Result

#: Test sets of the video ablations, all after a pretraining on Kinetics-200.
ABLATION_SETS = ("kinetics200", "ucf101", "hmdb51")
_ABLATIONS = frozenset(
    f"tab:video-{name}" for name in ("baseline", "lambda-vary", "temp", "color", "time", "best")
)
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
    """

    name: str
    values: tuple[float, ...]
    plain: tuple[float, ...]
    deviations: tuple[str, ...]
    how: str

    @property
    def status(self) -> str:
        """``MEASURED`` or ``DEVIATING``."""
        return DEVIATING if self.deviations else MEASURED


@dataclass(frozen=True)
class Cell:
    """One number of the paper (R@1, R@5 and R@10 together) and its measurements."""

    papers: tuple[PaperResult, ...]
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True)
class AblationRow:
    """A row of the ablations with the numbers that have not been measured.

    Attributes:
        table: Label of the table in the paper.
        row: Its row.
        pretraining: Name of the pretraining.
        values: The paper's numbers by data set, percent.
    """

    table: str
    row: str
    pretraining: str
    values: dict[str, float]


@dataclass(frozen=True)
class OtherResult:
    """A result that cannot be compared with any number of the paper, and why."""

    result: Result
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Everything that the pages show.

    Attributes:
        cells: In the order of the paper's results.
        others: Results that are comparable with no number of the paper.
        skipped: (file, reason) of JSON files without results.
    """

    cells: tuple[Cell, ...]
    others: tuple[OtherResult, ...]
    skipped: tuple[tuple[str, str], ...]

    def missing(self) -> tuple[list[Cell], list[AblationRow]]:
        """Cells without a result: those of the ablations by row, before them all others."""
        missing = [cell for cell in self.cells if not cell.measurements]
        others = [cell for cell in missing if not _is_ablation(cell)]
        rows: dict[tuple[str, str], AblationRow] = {}
        for cell in missing:
            if _is_ablation(cell):
                paper = cell.papers[0]
                row = AblationRow(paper.table, paper.row, str(paper.pretraining), {})
                values = rows.setdefault((paper.table, paper.row), row).values
                values[paper.dataset] = paper.value
        return others, list(rows.values())

    def own(self) -> tuple[TestSetResults, ...]:
        """The other results by test set."""
        return group_results([(other.result, other.reasons) for other in self.others])

    def status_counts(self) -> Counter[str]:
        """Number of cells by status; a cell counts with its best measurement."""
        counts: Counter[str] = Counter()
        for cell in self.cells:
            found = {m.status for m in cell.measurements}
            counts[next((s for s in (MEASURED, DEVIATING) if s in found), NOT_RUN)] += 1
        return counts

    def summary(self) -> list[str]:
        """Sentences on what the report holds."""
        counts = self.status_counts()
        first = (
            f"{len(self.cells)} cells of the paper: {counts[MEASURED]} measured, "
            f"{counts[DEVIATING]} measured with deviations from the paper's protocol, "
            f"{counts[NOT_RUN]} not run."
        )
        own = [f"Own results, not comparable with the paper: {len(self.others)}."]
        return [first, *(own if self.others else ()), *self.notes()]

    def notes(self) -> list[str]:
        """Sentences on results that are missing."""
        lines = []
        if not any(cell.measurements for cell in self.cells) and not self.others:
            lines.append("No results were found.")
        if self.skipped:
            lines.append(f"JSON files without results, listed at the end: {len(self.skipped)}.")
        return lines


def build_report(collection: Collection, papers: Sequence[PaperResult] = PAPER_RESULTS) -> Report:
    """Assign every result to the cells it belongs to, or to the other results.

    A mean of three splits also fills the cells of its single splits. A single split that is not
    part of a mean fills the cell of the mean, as a deviation. A cell shows all its results.
    """
    groups = [tuple(group) for _, group in groupby(papers, key=_cell_key)]
    filled: dict[int, list[Measurement]] = {index: [] for index in range(len(groups))}
    others = []
    for result in collection.results:
        obstacles = compare(result).obstacles
        reasons: list[str] = []
        assigned = False
        for index, group in enumerate(groups):
            for candidate in (result, *result.parts):
                found = _measure(candidate, group, standalone=candidate is result)
                if isinstance(found, Measurement):
                    filled[index].append(found)
                    assigned = assigned or candidate is result
                elif found is not None and candidate is result:
                    reasons.append(found)
        if not assigned:
            why = obstacles or tuple(dict.fromkeys(reasons)) or (_no_number(result),)
            others.append(OtherResult(result, why))
    cells = [Cell(group, tuple(filled[index])) for index, group in enumerate(groups)]
    return Report(tuple(cells), tuple(others), tuple(collection.skipped))


def _is_ablation(cell: Cell) -> bool:
    """Whether it is a number of a pretraining in a table of the video ablations."""
    return cell.papers[0].table in _ABLATIONS and cell.papers[0].pretraining is not None


def _cell_key(paper: PaperResult) -> tuple[Any, ...]:
    return (*setting_of(paper), paper.split, paper.table)


def _measure(
    result: Result, papers: tuple[PaperResult, ...], standalone: bool
) -> Measurement | str | None:
    """The measurement for a cell, why there is none, or None if the setting is another one.

    Args:
        result: A result, or one split of a mean.
        papers: The numbers of the cell.
        standalone: The result is not one split of a mean.
    """
    if setting_of_result(result) != setting_of(papers[0]):
        return None
    wanted = papers[0].split
    deviations: tuple[str, ...] = ()
    if wanted == MEAN_OF_SPLITS and not result.parts:
        if not standalone:
            return None
        split = "one split" if result.split is None else f"split {result.split}"
        deviations = (f"{split} alone, the paper's is the mean of 3",)
    elif result.split not in (wanted, None):
        return (
            f"of {describe_split(result.split)}, the paper's is of {describe_split(wanted)} alone"
        )
    comparability = compare(result)
    if comparability.obstacles:
        return None
    problem = percentage_problem(result, [paper.metric for paper in papers])
    if problem is not None:
        return problem
    return Measurement(
        name=result.name,
        values=_percentages(result, [paper.metric for paper in papers]),
        plain=_plain_recall(result, papers),
        deviations=(*deviations, *comparability.deviations),
        how=describe_evaluation(result),
    )


def _percentages(result: Result, names: Sequence[str]) -> tuple[float, ...]:
    """Percent; :func:`percentage_problem` has checked that all metrics are there."""
    return tuple(100 * value for name in names if (value := result.metric(name)) is not None)


def _plain_recall(result: Result, papers: tuple[PaperResult, ...]) -> tuple[float, ...]:
    if papers[0].protocol != "retrieval":
        return ()
    names = [paper.metric.replace("retrieval_", "retrieval_plain_") for paper in papers]
    return () if percentage_problem(result, names) is not None else _percentages(result, names)


def _no_number(result: Result) -> str:
    return f"the paper has no number for: {describe_benchmark(result)}"
