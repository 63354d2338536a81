"""Comparison of runs: statistical tests of their differences, and the page that shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from sce_video.evaluation.functional.statistics import (
    ALPHA,
    holm,
    paired_change,
    seeds_test,
)
from sce_video.evaluation.metrics.base import Outcomes, load_outcomes, outcomes_path
from sce_video.pages.charts import comparison_charts
from sce_video.pages.run_page import interval_text, metric_text, number_text, page_frame, tiles
from sce_video.pages.run_record import (
    RunRecord,
    flattened,
    grouped_alarms,
    lasting_errors,
    run_state,
)
from sce_video.utils.html_template import render_template
from sce_video.utils.run_files import EVALUATIONS, METRICS


@dataclass(frozen=True)
class SeedMean:
    """Mean of a metric over runs that differ only in their seed."""

    group: str  # names of the group's runs
    file: str  # file with the results
    metric: str
    mean: float
    deviation: float  # standard deviation over runs (divided by n - 1)
    runs: int  # number of runs

    @property
    def text(self) -> str:
        """Mean and deviation as ``84.20 % ± 0.35 (3 seeds)``."""
        value = metric_text(self.metric, self.mean)
        percent = value.endswith("%")
        spread = f"{100 * self.deviation:.2f}" if percent else number_text(self.deviation)
        return f"{value} ± {spread} ({self.runs} seeds)"


@dataclass(frozen=True)
class Difference:
    """Test of one metric for two runs, or groups of seeds, on the same videos."""

    file: str  # file with the results
    metric: str  # name of a metric whose values are fractions
    first: str  # name of a run, or of a group of runs that differ only in their seed
    second: str
    change: float  # mean of the second minus the mean of the first, as a fraction
    # 95 % interval of the change. None if there is only one unit.
    interval: tuple[float, float] | None
    p_value: float  # uncorrected p-value
    adjusted: float  # p-value after Holm's correction over all pairs for this metric
    drawn: str  # units of the test, such as "928 videos" or "336 groups"
    runs: tuple[int, int] = (1, 1)  # number of runs in the first and in the second

    @property
    def verdict(self) -> str:
        """Name of the better of the two, or ``within chance``."""
        if self.adjusted >= ALPHA:
            return "within chance"
        return f"{self.second if self.change > 0 else self.first} is better"

    @property
    def points(self) -> str:
        """Change and interval in percentage points, as ``+2.10 [-0.40, +4.60]``."""
        ends = ""
        if self.interval is not None:
            ends = f" [{100 * self.interval[0]:+.2f}, {100 * self.interval[1]:+.2f}]"
        return f"{100 * self.change:+.2f}{ends}"

    @property
    def p_text(self) -> str:
        """Uncorrected p-value, followed by the corrected one if there are several pairs."""
        plain = _p(self.p_value)
        return plain if self.adjusted == self.p_value else f"{plain}, Holm {_p(self.adjusted)}"


@dataclass(frozen=True)
class Chance:
    """Statistics of the differences between runs."""

    seeds: list[SeedMean] = field(default_factory=list)  # mean over seeds for each group of runs
    differences: list[Difference] = field(default_factory=list)  # tests of all pairs
    notes: list[str] = field(default_factory=list)  # what could not be tested and why

    @property
    def scope(self) -> list[str]:
        """Sentences about the sources of variation that intervals and p-values cover."""
        runs = [sorted(d.runs) for d in self.differences]
        said = {
            "The spread over seeds is not known for single runs, so interval and p-value only "
            "describe how the difference between these two networks depends on the choice of "
            "videos. Another seed may give another difference.": any(most == 1 for _, most in runs),
            "With several seeds, interval and p-value cover both other seeds and other videos.": (
                any(most > 1 for _, most in runs)
            ),
            "If one of the two is a single run, its spread over seeds is assumed to equal that of "
            "the other.": any(least == 1 < most for least, most in runs),
        }
        return [sentence for sentence, applies in said.items() if applies]

    def lines(self) -> list[str]:
        """Return the statistics as lines for the terminal."""
        means = [f"{m.group}, {m.metric} of {m.file}: {m.text}" for m in self.seeds]
        tests = [
            f"{d.metric} of {d.file}, {d.first} to {d.second}: {d.points} points, p {d.p_text} "
            f"({d.drawn}): {d.verdict}"
            for d in self.differences
        ]
        return [*means, *tests, *self.scope, *self.notes]


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


_SEED = "randomness.seed"
#: Logged values that are averaged over seeds: the loss, and values that reveal a collapse
_LOGGED = ("loss", "h_rank", "h_std")
#: Keys in a row of the online evaluation that are not metrics
_NOT_METRICS = frozenset({"epoch", "iter", "videos", "failures", "seconds", "error"})


def chance_of_differences(records: Sequence[RunRecord]) -> Chance:
    """Compute means over seeds, and test all pairs of groups in every metric of every file.

    Means are computed for the result files, the last online evaluation and the last logged step.
    Tests of groups of seeds generalise to other seeds and other videos, tests of single runs only
    to other videos. A note explains why results could not be compared.

    Args:
        records: Records of the runs, which have different names.
    """
    groups = seed_groups(records)
    files = sorted({file for record in records for file in record.results})
    notes: list[str] = []
    differences: list[Difference] = []
    for file in files:
        found = {
            name: _outcomes(name, members, file, notes)
            for name, members in groups.items()
            if all(file in record.results for record in members)
        }
        outcomes = {name: parts for name, parts in found.items() if parts is not None}
        families: dict[str, list[Difference]] = {}
        for names in combinations(outcomes, 2):
            try:
                for one in _tests(file, names, (outcomes[names[0]], outcomes[names[1]])):
                    families.setdefault(one.metric, []).append(one)
            except ValueError as error:
                notes.append(f"{' and '.join(names)} are not compared, because {error}.")
        for family in families.values():  # all pairs for one metric in one file
            adjusted = zip(family, holm([one.p_value for one in family]), strict=True)
            differences += [replace(one, adjusted=p) for one, p in adjusted]
    return Chance(_seed_means(groups, files), differences, notes)


def seed_groups(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Group runs that differ only in their seed.

    The name of a group consists of the names of its runs, joined by ``" + "``. Runs with equal
    settings stay separate if a seed is unknown, or if two of them have the same seed.
    """
    found: dict[tuple, list[tuple[str, RunRecord]]] = {}
    for record in records:
        settings = flattened(record.config)
        seed = settings.pop(_SEED, "")
        # Group runs whose settings are the same except for the seed.
        key = tuple(sorted(settings.items())) if settings else (record.name,)
        found.setdefault(key, []).append((seed, record))
    groups = {}
    for pairs in found.values():
        seeds, members = {seed for seed, _ in pairs}, [record for _, record in pairs]
        together = len(seeds) == len(members) > 1 and "" not in seeds
        for one in (members,) if together else ([record] for record in members):
            groups[" + ".join(record.name for record in one)] = one
    return groups


def _seed_means(groups: dict[str, list[RunRecord]], files: Sequence[str]) -> list[SeedMean]:
    """Average the metrics of each group, and values that all its runs logged at one iteration."""
    means = []
    for group, records in groups.items():
        if len(records) == 1:
            continue
        tables = [(file, [r.result(file).metrics for r in records], None) for file in files]
        evaluations = [(record.evaluations or [{}])[-1] for record in records]
        steps = [record.last for record in records]
        for file, rows, wanted in (
            *tables,
            (EVALUATIONS, evaluations, [n for n in evaluations[0] if n not in _NOT_METRICS]),
            (METRICS, steps, _LOGGED),
        ):
            if wanted is not None and len({row.get("iter") for row in rows}) > 1:
                continue
            for name in rows[0] if wanted is None else wanted:
                values = [row.get(name) for row in rows]
                numbers = [float(v) for v in values if isinstance(v, int | float) and isfinite(v)]
                if len(numbers) == len(rows):
                    average, spread = fmean(numbers), stdev(numbers)
                    means.append(SeedMean(group, file, name, average, spread, len(numbers)))
    return means


def _outcomes(
    group: str, records: Sequence[RunRecord], file: str, notes: list[str]
) -> list[Outcomes] | None:
    """Return the sorted outcomes of a group's runs; if any are missing, add a note instead."""
    parts: list[Outcomes] = []
    for record in records:
        path = outcomes_path(Path(record.folder, file))
        try:
            found = load_outcomes(path)
        except FileNotFoundError:
            notes.append(
                f"{record.name} has no outcomes of single videos next to {file} "
                f"({Path(path).name}), so it is not tested. Evaluate it again."
            )
            return None
        except (OSError, ValueError) as error:
            notes.append(f"{error}.")
            return None
        order = np.lexsort((found.labels, np.array(found.paths)))
        paths = [found.paths[i] for i in order]
        labels, values = found.labels[order], found.values[order]
        groups = None if found.groups is None else found.groups[order]
        parts.append(replace(found, paths=paths, labels=labels, values=values, groups=groups))
    try:
        for part in parts[1:]:
            check_same_videos(parts[0], part)
        _with_units(parts)
    except ValueError as error:
        notes.append(f"The seeds {group} are not tested as a group, because {error}.")
        return None
    return parts


def check_same_videos(first: Outcomes, second: Outcomes) -> None:
    """Raise ValueError unless two sorted outcomes belong to the same labelled videos."""
    if first.paths == second.paths and np.array_equal(first.labels, second.labels):
        return
    left, right = (
        Counter(zip(part.paths, part.labels.tolist(), strict=True)) for part in (first, second)
    )
    one, other = left - right, right - left
    path, label = next(iter(one or other))
    raise ValueError(
        f"a paired test needs the same labelled videos, but {one.total()} of {left.total()} are "
        f"only in the first, and {other.total()} of {right.total()} only in the second, such as "
        f"{path} with label {label}. Evaluate both on the same list"
    )


def _with_units(parts: Sequence[Outcomes]) -> Outcomes:
    """Return the sorted outcomes of the same samples whose units a test draws.

    These have groups if any of them have. ValueError is raised if they have different groups.
    """
    grouped = [part for part in parts if part.groups is not None]
    for other in grouped[1:]:
        pairs = {*zip(grouped[0].units.tolist(), other.units.tolist(), strict=True)}
        if not len(pairs) == len(np.unique(grouped[0].units)) == len(np.unique(other.units)):
            raise ValueError(
                f"a paired test needs the same groups, but there are {grouped[0].drawn} and other "
                f"{other.drawn}; evaluate both with one --group-pattern or --group-column"
            )
    return (grouped or parts)[0]


def _tests(
    file: str, names: tuple[str, str], pair: tuple[list[Outcomes], list[Outcomes]]
) -> list[Difference]:
    """Test each metric that all runs have, without a correction for the number of pairs."""
    first, runs = pair[0][0], (len(pair[0]), len(pair[1]))
    check_same_videos(first, pair[1][0])
    drawn = _with_units([*pair[0], *pair[1]])
    units = drawn.units
    found = []
    for column, metric in enumerate(first.names):
        if not all(metric in part.names for group in pair for part in group):
            continue
        a, b = (
            np.stack([part.values[:, part.names.index(metric)] for part in group], dtype=np.float64)
            for group in pair
        )
        classes = first.labels if first.by_class[column] else None
        # If there are several seeds, the test also generalises to other seeds.
        if max(runs) > 1 and len(np.unique(units)) > 1:
            test = seeds_test(a, b, units, classes)
        else:
            test = paired_change(a.mean(axis=0), b.mean(axis=0), units, classes)
        change, p = (test.change, test.interval), test.p_value
        found.append(Difference(file, metric, *names, *change, p, p, drawn.drawn, runs))
    return found


#: Number of colours in the theme.
_COLOURS = 8


def render_comparison(
    records: Sequence[RunRecord],
    settings: Mapping[str, Sequence[str]],
    chance: Chance | None = None,
) -> str:
    """Render the page that compares two or more runs.

    Args:
        records: Records of the runs, which have different names.
        settings: For each setting in which the runs differ, the value in each run.
        chance: Tests of the differences; None for none.
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
    # Values of each tile by its title, one per run. A value is empty if the run lacks the tile.
    standing: dict[str, list[str]] = {}
    for number, record in enumerate(records):
        for tile in tiles(record):
            standing.setdefault(tile.title, [""] * len(records))[number] = tile.value
    values = {
        "title": " · ".join(record.name for record in records),
        "runs": runs,
        "standing": standing,
        "results": _results(records),
        "chance": chance or Chance(),
        "settings": settings,
        "charts": charts,
        **page_frame([chart.data() for chart in charts], bool(charts)),
    }
    return render_template("sce_video.pages", "compare.html", values)


def _results(records: Sequence[RunRecord]) -> list[dict[str, object]]:
    """Return a row for each metric of the result files, with the best value marked.

    Larger fractions are better. For other metrics, no value is marked.
    """
    rows: list[dict[str, object]] = []
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
