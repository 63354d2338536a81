"""Page of ``sce-video choose``: a table of candidates, with differences and neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sce_video.pages.parts import Part
from sce_video.pages.run_page import page_frame
from sce_video.utils.html_template import render_template


@dataclass(frozen=True)
class ChoiceRow:
    """Row of a candidate or a baseline."""

    name: str  # name of the candidate
    cells: tuple[str, ...]  # text in each column
    is_floor: bool = False  # whether it is a baseline that every candidate should exceed
    recommended: bool = False


@dataclass(frozen=True)
class ChoiceTable:
    """Table for the terminal and for the page."""

    columns: tuple[str, ...]  # titles of the columns after the name
    rows: tuple[ChoiceRow, ...]  # candidates and baselines

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
    """Content of the page."""

    title: str  # name of the videos
    sample: str  # sentence about how many videos there are and how they are used
    heading: str  # recommendation in a few words
    command: str  # next command to run; empty if none is recommended
    reasons: Sequence[str]  # sentences that explain the recommendation
    notes: Sequence[str]  # remarks about the sample
    table: ChoiceTable  # the candidates
    best: str  # name of the best candidate; empty without labels
    differences: ChoiceTable  # percentage points by which the best candidate exceeds each other one
    parts: Sequence[Part]  # parts of the page with nearest neighbours
    failures: Sequence[tuple[str, str]]  # path and reason of each video that cannot be decoded


def render_choice(page: ChoicePage) -> str:
    """Render the page. All content is escaped, and the page loads nothing."""
    values = {**vars(page), **page_frame([], draws=False)}
    return render_template("sce_video.pages", "choose.html", values)
