"""``sce-video choose``: compare networks on the user's own videos, and recommend one."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sce_video.datasets.named_files import check_out
from sce_video.options.choose import ChooseOptions
from sce_video.options.declare import given_options
from sce_video.options.training import FOLDERS
from sce_video.runs.candidates import (
    Candidate,
    ChoiceVideos,
    in_sampling_order,
    load_passes,
    named_candidates,
    read_choice_videos,
)
from sce_video.utils.cores import usable_cores
from sce_video.utils.files import write_json, write_text
from sce_video.utils.own_parts import own_modules
from sce_video.utils.run_files import CHOOSE_KIND

if TYPE_CHECKING:
    from sce_video.pages.choose_page import ChoiceTable
    from sce_video.pages.parts import Part
    from sce_video.runs.candidate_features import CandidateFeatures
    from sce_video.runs.candidate_scores import Decision, Score

#: Name of the page in the results folder
PAGE = "choose.html"
#: Name of the JSON file with the same results
DATA = "choose.json"
#: Number of groups or videos below which the intervals are only rough
_FEW_GROUPS = 50
#: Number of candidates whose nearest neighbours the page shows
_SHOWN = 4
#: Number of videos whose neighbours the page shows for each of these candidates
_QUERIES = 6


@dataclass(frozen=True, eq=False)
class ChooseResult:
    """Result of a comparison of networks on the user's videos.

    Attributes:
        scores: Candidates and baselines with metrics, intervals and costs. With labels, the best
            one comes first.
        decision: Recommendation that the evidence supports.
        command: Command line to run next; empty if none is recommended.
        videos: Videos that were compared.
        total: Number of all videos.
        failures: Path and reason for each video that could not be decoded.
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
        """Phrase that states how many videos were used, and what was left out at a time."""
        used = f"{len(self.videos):,} of {self.total:,} videos"
        return f"{used}, leaving out {self.videos.left_out}" if self.videos.left_out else used

    def table(self) -> ChoiceTable:
        """Return the table that the terminal and the page show."""
        from sce_video.pages.choose_page import ChoiceRow, ChoiceTable
        from sce_video.runs.candidate_scores import LABEL_FREE, LABELLED

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
        from sce_video.pages.choose_page import ChoicePage, render_choice

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
        from sce_video.pages.choose_page import ChoiceRow, ChoiceTable
        from sce_video.runs.candidate_scores import LABELLED

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
                    "p_value": d.p_value,
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
        """Show the nearest neighbours of the same videos by some candidates and by pixels."""
        from sce_video.evaluation.functional.clusters import k_centre_greedy, unit_rows
        from sce_video.pages.feature_map import neighbour_rows
        from sce_video.pages.frames import ClipReader

        floors = [s for s in self.scores if s.candidate.is_floor]
        networks = [s for s in self.scores if not s.candidate.is_floor]
        # The recommended network comes first.
        networks.sort(key=lambda score: score.candidate != self.recommended)
        # Show each network only once, because all of its pools give similar neighbours.
        by_source: dict[str | None, Score] = {}
        for score in networks:
            by_source.setdefault(score.candidate.source, score)
        shown = [*[*by_source.values()][: _SHOWN - 1], *floors][:_SHOWN]
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


def choose(options: ChooseOptions) -> ChooseResult:
    """Compare networks on a sample of videos, and write the page and the JSON file.

    Raises:
        FileNotFoundError: If a run or table does not exist.
        ValueError: If the videos or labels cannot be used, or the budget is too small.
        MissingPackageError: If a named network is not installed.
        WriteError: If a file cannot be written.
    """
    begun = time.monotonic()  # the budget includes the imports below
    check_out(options.out)
    candidates = named_candidates(options.among)
    listed = read_choice_videos(options)
    # Imported here, so that a wrong name is reported before torch loads.
    from sce_video.runs.candidate_features import embed_within
    from sce_video.runs.candidate_scores import DECAYS, DECIDES, decide, score_candidates
    from sce_video.runs.fold_probe import time_probes

    every = in_sampling_order(listed, options)
    if every.labelled and len(np.unique(every.labels[every.comparable()])) < 2:
        raise ValueError(
            f"{listed.source} has fewer than two classes with videos in several folds, so nothing "
            "can be compared. Give other groups or folds"
        )
    passes = load_passes(candidates, options.device)
    sizes = [one.size(candidate) for one in passes for candidate in one.candidates]
    folds = len(np.unique(every.folds)) if every.labelled else 0
    probe_seconds = time_probes(sizes, len(every.classes), folds, DECAYS)
    workers = options.workers or usable_cores()
    found = embed_within(
        passes, every.paths, begun, options.seconds, workers, probe_seconds, every.least
    )
    videos, kept, notes = _compared(every, found)
    clips = {candidate: values[kept] for candidate, values in found.clips.items()}
    # Reserve the last tenth of the budget for the page.
    stop = begun + 0.9 * options.seconds
    scores, measured = score_candidates(clips, found.costs, videos, stop)
    tested, all_folds = len(np.unique(measured.folds)), len(np.unique(videos.folds))
    if tested < all_folds:
        notes.append(
            f"Only {len(measured)} videos ({tested} of {all_folds} folds) are tested, because the "
            "budget is used up. Give a larger --budget to test all folds."
        )
    # Undecodable videos and classes in a single fold were tried, so more time would not help them.
    unused = len(every) - found.tried + len(videos) - len(measured)
    decision = decide(scores, measured, unused)
    # Without labels, keep the user's order, because sorting by a number would suggest a ranking.
    if videos.labelled:
        scores.sort(key=lambda score: score.metrics[DECIDES], reverse=True)
    result = ChooseResult(
        scores=tuple(scores),
        decision=decision,
        command=_next_command(decision, options),
        videos=videos,
        total=len(every),
        failures=tuple(found.failures),
        notes=tuple(notes),
        page=Path(options.out, PAGE),
        data=Path(options.out, DATA),
    )
    result.write(options)
    return result


def _compared(
    every: ChoiceVideos, found: CandidateFeatures
) -> tuple[ChoiceVideos, np.ndarray, list[str]]:
    """Return the videos that can be compared, their rows in the features, and remarks.

    Raises:
        ValueError: If fewer than two classes are left.
    """
    videos, kept, notes = every.subset(found.rows), np.arange(len(found.rows)), []
    if videos.labelled:
        mask = videos.comparable()
        if not mask.all():
            left = Counter(videos.labels[~mask].tolist())
            notes.append(
                f"Left out are {left.total()} videos whose classes ({len(left)} of "
                f"{len(left) + len(np.unique(videos.labels[mask]))}) are in one fold only in this "
                "sample."
            )
            videos, kept = videos.subset(np.flatnonzero(mask)), kept[mask]
        if len(np.unique(videos.labels)) < 2:
            raise ValueError(
                f"{found.tried} videos contain fewer than two classes that are in two folds. Give "
                "a larger --budget, or other groups or folds"
            )
        if not videos.grouped:
            notes.append(
                "No groups are given, so videos of one recording may be compared with each other, "
                "which makes all numbers too high. --group-column names a column of recordings, "
                "scenes or persons."
            )
        units = len(np.unique(videos.groups))
        if units < _FEW_GROUPS:
            what = "groups" if units < len(videos) else "videos"
            notes.append(f"There are {units} {what}, so the intervals are rough.")
    if found.failures:
        notes.append(f"{len(found.failures)} of {found.tried} videos could not be decoded.")
    return videos, kept, notes


def _next_command(decision: Decision, options: ChooseOptions) -> str:
    """Return a command that uses the recommended network or trains one; empty if neither."""
    chosen, videos = decision.recommended, _argument(options.videos)
    if chosen is None:
        # Without --method, an installed image network would become the teacher, although no network
        # was useful for these videos.
        words = ["pretrain", videos, "--out", "RUN", "--method", "simclr"]
        if not decision.possible:
            return ""
    elif options.labels is None:
        words = ["index", videos, "--checkpoint", _argument(chosen.name), "--out", "INDEX"]
    else:
        words = ["finetune", _argument(chosen.name), "--out", "CLASSIFIER", "--train"]
        listed = [_argument(options.labels), "--data-root", videos]
        words += [videos] if options.labels == FOLDERS else listed
        for name in ("group_pattern", "group_column", "fold_column"):
            if (value := getattr(options, name)) is not None:
                # A value may begin with a dash, as in -person(\d+).
                words.append(f"--{name.replace('_', '-')}={value}")
    words += ["--all-files"] * options.all_files
    for module in own_modules().named:
        words += ["--import", module]
    return shlex.join(["sce-video", *words])


def _argument(path: str | os.PathLike[str]) -> str:
    """Return a path as an argument that is not read as an option."""
    text = os.fspath(path)
    return f"./{text}" if text.startswith("-") else text
