"""Result of ``sce-video choose`` as a table, a JSON file and a page."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sce_video.evaluation.functional.clusters import k_centre_greedy, unit_rows
from sce_video.options.choose import ChooseOptions
from sce_video.options.declare import given_options
from sce_video.pages.choose_page import ChoicePage, ChoiceRow, ChoiceTable, render_choice
from sce_video.pages.feature_map import neighbour_rows
from sce_video.pages.frames import ClipReader
from sce_video.pages.parts import Part
from sce_video.runs.candidate_scores import LABEL_FREE, LABELLED, Decision, Score
from sce_video.runs.candidate_videos import ChoiceVideos
from sce_video.runs.candidates import Candidate
from sce_video.utils.files import write_json, write_text
from sce_video.utils.run_files import CHOOSE_KIND

#: Files in the folder of the results
PAGE = "choose.html"
DATA = "choose.json"
#: Number of candidates whose nearest neighbours the page shows
_SHOWN = 4
_QUERIES = 6  # number of videos whose neighbours are shown


@dataclass(frozen=True, eq=False)
class ChooseResult:
    """Result of a comparison of networks on the user's videos.

    Attributes:
        scores: Candidates and baselines with metrics, intervals and costs, best first with labels.
        decision: Recommendation that the evidence supports.
        command: Command line to run next; empty if none is recommended.
        videos: Videos that were compared.
        total: Number of all videos.
        failures: Path and reason of each video that could not be decoded.
        notes: Notes about the sample.
        page: Path of the HTML page.
        data: Path of the JSON file.
    """

    scores: tuple[Score, ...]
    decision: Decision
    command: str
    videos: ChoiceVideos
    total: int
    failures: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    page: Path
    data: Path

    @property
    def recommended(self) -> Candidate | None:
        """Candidate to use; None if no candidate is shown to exceed the floors."""
        return self.decision.recommended

    @property
    def sample(self) -> str:
        """Phrase with the number of videos used and what was left out at a time."""
        used = f"{len(self.videos):,} of {self.total:,} videos"
        return f"{used}, leaving out {self.videos.left_out}" if self.videos.left_out else used

    def table(self) -> ChoiceTable:
        """Return the table that the terminal and the page show."""
        shown = LABELLED if self.videos.labelled else LABEL_FREE
        against = ("against the best",) if self.videos.labelled else ()
        rows = []
        for score in self.scores:
            cells = [_metric_cell(score, name) for name in shown]
            if against:
                cells.append(self._difference_cell(score))
            candidate = score.candidate
            rows.append(
                ChoiceRow(
                    name=candidate.name,
                    cells=(*cells, *_cost_cells(score)),
                    is_floor=candidate.is_floor,
                    recommended=candidate == self.recommended,
                )
            )
        costs = ("s/hour", "memory", "numbers")
        return ChoiceTable((*shown.values(), *against, *costs), tuple(rows))

    def _difference_cell(self, score: Score) -> str:
        """Format the difference from the best candidate in the deciding metric."""
        first = next((d for d in self.decision.differences if d.second == score.candidate), None)
        if first is None:
            return "best"
        return f"{0.0 - 100 * first.change:+.1f}{'' if first.shown else ' (not shown)'}"

    def write(self, options: ChooseOptions) -> None:
        """Write the JSON file and the page.

        Raises:
            WriteError: If a file cannot be written.
        """
        write_json(self.data, self._described(options))
        name = os.path.basename(os.path.normpath(options.videos))
        page = ChoicePage(
            title=name,
            sample=self.sample,
            heading=self.decision.heading,
            command=self.command,
            reasons=self.decision.reasons,
            notes=self.notes,
            table=self.table(),
            best="" if self.decision.best is None else self.decision.best.name,
            differences=self._differences(),
            parts=self._neighbours(),
            failures=self.failures,
        )
        write_text(self.page, render_choice(page))

    def _differences(self) -> ChoiceTable:
        """Return the best candidate's differences from all other candidates, in each metric."""
        points: dict[Candidate, list[str]] = {}
        for difference in self.decision.differences:
            points.setdefault(difference.second, []).append(difference.points)
        rows = [
            ChoiceRow(one.name, tuple(cells), is_floor=one.is_floor)
            for one, cells in points.items()
        ]
        return ChoiceTable(tuple(LABELLED.values()), tuple(rows))

    def _described(self, options: ChooseOptions) -> dict[str, Any]:
        """Convert the result to JSON data."""
        decision = self.decision
        return {
            "kind": CHOOSE_KIND,
            "request": given_options(options),
            "videos": {
                "total": self.total,
                "used": len(self.videos),
                "left_out": self.videos.left_out,
                "paths": list(self.videos.paths),
            },
            "candidates": [
                {
                    **asdict(score.candidate),
                    "metrics": score.metrics,
                    "intervals": score.intervals,
                    "cost": asdict(score.cost),
                }
                for score in self.scores
            ],
            "differences": [
                {
                    "metric": d.metric,
                    "first": d.first.name,
                    "second": d.second.name,
                    "change": d.change,
                    "interval": d.interval,
                    "shown": d.shown,
                }
                for d in decision.differences
            ],
            "best": None if decision.best is None else decision.best.name,
            "recommended": None if decision.recommended is None else decision.recommended.name,
            "decision": decision.possible,
            "reasons": decision.reasons,
            "command": self.command,
            "notes": self.notes,
            "failures": self.failures,
        }

    def _neighbours(self) -> list[Part]:
        """Find nearest neighbours of the same videos by some candidates and by pixels."""
        first = [s for s in self.scores if s.candidate == self.recommended]
        networks = [s for s in self.scores if s not in first and not s.candidate.is_floor]
        # Show each network once, because different pools of a network give similar neighbours.
        sources = dict.fromkeys(s.candidate.source for s in first)
        for score in networks:
            if score.candidate.source not in sources:
                sources[score.candidate.source] = None
                first.append(score)
        floors = [s for s in self.scores if s.candidate.is_floor]
        shown = [*first[: _SHOWN - 1], *floors][:_SHOWN]
        reader = ClipReader()
        queries = k_centre_greedy(unit_rows(shown[0].rows.features), _QUERIES)
        parts = []
        for number, score in enumerate(shown, 1):
            part = neighbour_rows(score.rows, self.videos.classes, queries=queries, reader=reader)
            title = f"Neighbours: {score.candidate.name}"
            parts.append(replace(part, id=f"neighbours-{number}", title=title))
        return parts


def _metric_cell(score: Score, name: str) -> str:
    """Format a metric with its interval, in percent if it is a mean over videos."""
    value = score.metrics.get(name)
    if value is None:
        return "-"
    if name not in score.outcomes:
        return f"{value:.1f}"
    ends = score.intervals.get(name)
    interval = "" if ends is None else f" [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"
    return f"{100 * value:.1f}{interval}"


def _cost_cells(score: Score) -> tuple[str, str, str]:
    """Format a candidate's seconds per hour of video, memory and dimensions."""
    cost = score.cost
    seconds = "-" if cost.seconds is None else f"{cost.seconds:,.0f}"
    memory = "-" if cost.memory is None else f"{cost.memory / 2**20:,.0f} MiB"
    return seconds, memory, f"{cost.dimensions:,}"
