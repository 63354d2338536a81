"""Page that compares several runs side by side, as self-contained HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sce_video.pages.charts import comparison_charts
from sce_video.pages.run_page import interval_text, metric_text, number_text, page_frame, tiles
from sce_video.pages.run_record import RunRecord, grouped_alarms, lasting_errors, run_state
from sce_video.utils.html_template import render_template

#: Adjusted p-values below it are called differences.
ALPHA = 0.05


@dataclass(frozen=True)
class SeedMean:
    """A metric of runs that differ in their seed only."""

    group: str  # name of the runs
    file: str  # with the results
    metric: str
    mean: float
    deviation: float  # standard deviation (n - 1)
    runs: int  # their number

    @property
    def text(self) -> str:
        """Return ``84.20 % ± 0.35 (3 seeds)``."""
        value = metric_text(self.metric, self.mean)
        percent = value.endswith("%")
        spread = f"{100 * self.deviation:.2f}" if percent else number_text(self.deviation)
        return f"{value} ± {spread} ({self.runs} seeds)"


@dataclass(frozen=True)
class Difference:
    """A test of two runs, or groups of seeds, on the same videos for one metric."""

    file: str  # with the results
    metric: str  # a fraction
    first: str  # name of a run, or of a group of runs that differ in their seed only
    second: str
    change: float  # mean of the second minus mean of the first, as a fraction
    interval: tuple[float, float] | None  # 95 % interval of the change; None for one video
    p_value: float  # not corrected
    adjusted: float  # after Holm's correction over the pairs of this metric
    videos: int  # number of videos in the test
    runs: tuple[int, int] = (1, 1)  # number of runs of the first and of the second

    @property
    def verdict(self) -> str:
        """Return ``within chance``, or which of the two is better."""
        if self.adjusted >= ALPHA:
            return "within chance"
        return f"{self.second if self.change > 0 else self.first} is better"

    @property
    def points(self) -> str:
        """Return ``+2.10 [-0.40, +4.60]``, in percentage points."""
        ends = ""
        if self.interval is not None:
            ends = f" [{100 * self.interval[0]:+.2f}, {100 * self.interval[1]:+.2f}]"
        return f"{100 * self.change:+.2f}{ends}"

    @property
    def p_text(self) -> str:
        """Return ``0.021`` and, if it was corrected for several pairs, ``0.063`` after it."""
        plain = _p(self.p_value)
        return plain if self.adjusted == self.p_value else f"{plain}, Holm {_p(self.adjusted)}"


@dataclass(frozen=True)
class Chance:
    """Statistical statements about the differences of runs."""

    seeds: list[SeedMean] = field(default_factory=list)  # one for each group of runs
    differences: list[Difference] = field(default_factory=list)  # for each two runs or groups
    notes: list[str] = field(default_factory=list)  # what could not be tested, and why

    @property
    def scope(self) -> list[str]:
        """Return sentences about what the differences' intervals and p-values cover."""
        runs = [sorted(d.runs) for d in self.differences]
        said = {
            "Of single runs the spread over seeds is not known: interval and p-value tell how the "
            "difference of these two networks depends on the choice of videos, and not what "
            "another seed would give.": any(most == 1 for _, most in runs),
            "Of several seeds interval and p-value cover both other seeds and other videos.": any(
                most > 1 for _, most in runs
            ),
            "Where one of the two is a single run, its spread over seeds is taken to be that of "
            "the other.": any(least == 1 < most for least, most in runs),
        }
        return [sentence for sentence, applies in said.items() if applies]

    def lines(self) -> list[str]:
        """Return lines for the terminal."""
        means = [f"{m.group}, {m.metric} of {m.file}: {m.text}" for m in self.seeds]
        tests = [
            f"{d.metric} of {d.file}, {d.first} to {d.second}: {d.points} points, p {d.p_text}: "
            f"{d.verdict}"
            for d in self.differences
        ]
        return [*means, *tests, *self.scope, *self.notes]


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


#: Colours of the theme.
_COLOURS = 8


def render_comparison(
    records: Sequence[RunRecord],
    settings: Mapping[str, Sequence[str]],
    chance: Chance | None = None,
) -> str:
    """Return the page of two or more runs with different names.

    ``settings`` are the values in each run of the settings in which they differ, by name.
    """
    charts = comparison_charts(records)
    runs = [
        {
            "record": record,
            "slot": slot % _COLOURS,
            "dashed": slot >= _COLOURS,
            "state": run_state(record),
            "alarms": grouped_alarms(record.alarms),
            "errors": lasting_errors(grouped_alarms(record.alarms)),
        }
        for slot, record in enumerate(records)
    ]
    # The tiles of all runs: name to values, empty if a run has none.
    standing = [{tile.title: tile.value for tile in tiles(record)} for record in records]
    names = dict.fromkeys(name for one in standing for name in one)
    values = {
        "title": " · ".join(record.name for record in records),
        "runs": runs,
        "standing": {name: [one.get(name, "") for one in standing] for name in names},
        "results": _results(records),
        "chance": chance or Chance(),
        "settings": settings,
        "charts": charts,
        **page_frame([chart.data() for chart in charts], bool(charts)),
    }
    return render_template("sce_video.pages", "compare.html", values)


def _results(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return a row for each metric of the files with results, with the best value marked.

    Metrics that are fractions are better when larger; of others none is marked.
    """
    rows = []
    keys = dict.fromkeys(
        (file, name)
        for record in records
        for file, found in record.results.items()
        for name in found.metrics
    )
    for file, name in keys:
        values = [record.result(file).value(name) for record in records]
        known = [value for value in values if value is not None]
        fractions = all(metric_text(name, value).endswith("%") for value in known)
        best = max(known) if fractions and len(set(known)) > 1 else None
        cells = [
            {
                "text": "" if v is None else metric_text(name, v),
                "interval": interval_text(record.result(file).interval(name)),
                "best": v is not None and v == best,
            }
            for v, record in zip(values, records, strict=True)
        ]
        rows.append({"name": name, "file": file, "cells": cells})
    return rows
