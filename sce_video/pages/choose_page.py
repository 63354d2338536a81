"""Page of ``sce-video choose``: candidates in one table, their differences, nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sce_video.pages.parts import Part
from sce_video.pages.run_page import page_frame
from sce_video.utils.html_template import render_template


@dataclass(frozen=True)
class ChoiceRow:
    """A candidate or a floor in the table.

    Attributes:
        name: Its name.
        cells: Texts below the columns.
        is_floor: Whether it is a floor.
        recommended: Whether it is the recommended candidate.
    """

    name: str
    cells: tuple[str, ...]
    is_floor: bool = False
    recommended: bool = False


@dataclass(frozen=True)
class ChoiceTable:
    """The table of the terminal and of the page.

    Attributes:
        columns: Titles of the columns after the name.
        rows: Candidates and floors.
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
    """What the page shows.

    Attributes:
        title: Name of the videos.
        sample: How many videos were used, and how.
        heading: Recommendation in a few words.
        command: Command line to run next.
        reasons: Sentences that explain the recommendation.
        notes: Remarks on the sample.
        table: The candidates.
        best: Name of the best candidate; empty without labels.
        differences: Points by which the best candidate exceeds each other one, with intervals.
        parts: Nearest neighbours of some candidates.
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
    """Return the page. Everything in it is escaped, and nothing is loaded."""
    values = {**vars(page), **page_frame([], draws=False)}
    return render_template("sce_video.pages", "choose.html", values)
