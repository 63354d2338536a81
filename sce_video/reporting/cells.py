"""The cells of a report: a number of the paper and what was measured of it."""

from __future__ import annotations

from dataclasses import dataclass

from sce_video.reporting.paper_results import PaperResult

#: Test sets of the video ablations, all after a pretraining on Kinetics-200.
ABLATION_SETS = ("kinetics200", "ucf101", "hmdb51")
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
class MissingTable:
    """The numbers of a table on images that have not been measured.

    Attributes:
        table: Label of the table in the paper.
        cells: Those on data sets that the table has results on.
        counts: Their number by data set, for all others.
    """

    table: str
    cells: tuple[Cell, ...]
    counts: dict[str, int]
