"""Page of ``sce-video choose``: a table of candidates, with differences and neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sce_video.pages.parts import Part
from sce_video.pages.run_page import page_frame
from sce_video.utils.html_template import render_template


@dataclass(frozen=True)
class ChoiceRow:
    """Row of a candidate or a baseline.

    Attributes:
        name: Name of the candidate.
        cells: Text of each column.
        is_floor: Whether it is a baseline that any candidate should exceed.
        recommended: Whether it is the recommended candidate.
    """

    name: str
    cells: tuple[str, ...]
    is_floor: bool = False
    recommended: bool = False


@dataclass(frozen=True)
class ChoiceTable:
    """Table for the terminal and for the page.

    Attributes:
        columns: Titles of the columns after the name.
        rows: Candidates and baselines.
    """

    columns: tuple[str, ...]
    rows: tuple[ChoiceRow, ...]

    def lines(self) -> list[str]:
        """Return the table as lines of text with aligned columns."""
        table = [("", *self.columns), *((row.name, *row.cells) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        marks = [" ", *("*" if row.recommended else " " for row in self.rows)]
        return [
            mark + " " + "  ".join(map(str.ljust, cells, widths)).rstrip()
            for mark, cells in zip(marks, table, strict=True)
        ]


@dataclass(frozen=True)
class ChoicePage:
    """Content of the page.

    Attributes:
        title: Name of the videos.
        sample: Sentence about the number and use of the videos.
        heading: Recommendation in a few words.
        command: Next command to run; empty if none is recommended.
        reasons: Sentences that explain the recommendation.
        notes: Remarks about the sample.
        table: Table of the candidates.
        best: Name of the best candidate; empty without labels.
        differences: Points by which the best candidate exceeds each other candidate.
        parts: Nearest neighbours according to some candidates.
        failures: Path and reason of each video that could not be decoded.
    """

    title: str
    sample: str
    heading: str
    command: str
    reasons: Sequence[str]
    notes: Sequence[str]
    table: ChoiceTable
    best: str
    differences: ChoiceTable
    parts: Sequence[Part]
    failures: Sequence[tuple[str, str]]


def render_choice(page: ChoicePage) -> str:
    """Render the page. All content is escaped, and the page loads nothing."""
    values = {**vars(page), **page_frame([], draws=False)}
    return render_template("sce_video.pages", "choose.html", values)
