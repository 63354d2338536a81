"""Comparison of runs, and the page that shows it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from sce_video.evaluation.functional.statistics import (
    bootstrap_intervals,
    holm,
    paired_differences,
    paired_p_value,
    seeds_test,
)
from sce_video.evaluation.metrics.base import Outcomes, load_outcomes, outcomes_path
from sce_video.pages.compare_page import Chance, Difference, SeedMean, render_comparison
from sce_video.pages.run_record import RunRecord
from sce_video.runs.folder import different_settings, flattened, read_run
from sce_video.utils.files import write_text
from sce_video.utils.run_files import EVALUATIONS, METRICS

_SEED = "randomness.seed"
#: Names of the loss and the collapse metrics in a logged step
_LOGGED = ("loss", "h_rank", "h_std")
_NOT_METRICS = frozenset({"epoch", "iter", "videos", "failures", "seconds", "error"})


def chance_of_differences(records: Sequence[RunRecord]) -> Chance:
    """Compute means over seeds, and test each pair of groups in each metric of each file.

    Means are computed for the files with results, the last online evaluation and the last logged
    step. With groups of seeds, the test generalises to other seeds and videos. With single runs, it
    generalises only to other videos. Missing or mismatching results give a note. The records must
    have different names.
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
                notes.append(f"{' and '.join(names)} are not compared: {error}.")
        for family in families.values():  # all pairs for one metric of one file
            adjusted = zip(family, holm([one.p_value for one in family]), strict=True)
            differences += [replace(one, adjusted=p) for one, p in adjusted]
    return Chance(_seed_means(groups, files), differences, notes)


def seed_groups(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Group runs that differ only in their seed, by name. Runs with equal seeds are not grouped.

    The name of a group consists of the names of its runs, joined by ``" + "``. Runs with equal
    settings stay separate if the seed of one is unknown or two have the same seed.
    """
    found: dict[tuple, list[tuple[str, RunRecord]]] = {}
    for record in records:
        settings = flattened(record.config)
        seed = settings.pop(_SEED, "")
        # The settings without the seed identify a group.
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
    """Average each group's results in all files, then its values logged at a common iteration."""
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
    """Return the sorted outcomes of each run in a group; None with a note if any is missing."""
    parts: list[Outcomes] = []
    for record in records:
        path = outcomes_path(Path(record.folder, file))
        try:
            found = load_outcomes(path)
        except FileNotFoundError:
            notes.append(
                f"{record.name} has no outcomes of single videos next to {file} "
                f"({Path(path).name}), so its differences are not tested. Evaluate it again."
            )
            return None
        except (OSError, ValueError) as error:
            notes.append(f"{error}.")
            return None
        order = np.lexsort((found.labels, np.array(found.paths)))
        paths = [found.paths[i] for i in order]
        labels, values = found.labels[order], found.values[order]
        parts.append(replace(found, paths=paths, labels=labels, values=values))
    try:
        for part in parts[1:]:
            check_same_videos(parts[0], part)
    except ValueError as error:
        notes.append(f"The seeds {group} are not compared as one: {error}.")
        return None
    return parts


def check_same_videos(first: Outcomes, second: Outcomes) -> None:
    """Raise ValueError with a count unless both sorted outcomes have the same labelled samples."""
    if first.paths == second.paths and np.array_equal(first.labels, second.labels):
        return
    left, right = (
        Counter(zip(part.paths, part.labels.tolist(), strict=True)) for part in (first, second)
    )
    one, other = left - right, right - left
    path, label = next(iter(one or other))
    raise ValueError(
        f"a paired test needs the same labelled videos: {one.total()} of {left.total()} are only "
        f"in the first, {other.total()} of {right.total()} only in the second, for example {path} "
        f"with label {label}; evaluate both on one list"
    )


def _tests(
    file: str, names: tuple[str, str], pair: tuple[list[Outcomes], list[Outcomes]]
) -> list[Difference]:
    """Test each metric that all runs have, without correction for the number of pairs."""
    first, runs = pair[0][0], (len(pair[0]), len(pair[1]))
    check_same_videos(first, pair[1][0])
    # Clips of a video are not independent, so videos are the units of the test.
    units = np.unique(first.paths, return_inverse=True)[1]
    interval: tuple[float, float] | None
    found = []
    for column, metric in enumerate(first.names):
        if not all(metric in part.names for group in pair for part in group):
            continue
        a, b = (
            np.stack([part.values[:, part.names.index(metric)] for part in group], dtype=np.float64)
            for group in pair
        )
        classes = first.labels if first.by_class[column] else None
        parts = paired_differences(a.mean(axis=0), b.mean(axis=0), units, classes)
        # With several seeds, the result generalises to other seeds as well as to other videos.
        if max(runs) > 1 and len(parts) > 1:
            interval, p_value = seeds_test(a, b, units, classes)
        else:
            p_value = paired_p_value(parts)
            ends = bootstrap_intervals((b - a).mean(axis=0)[:, None], units, classes)
            interval = None if ends is None else (float(ends[0, 0]), float(ends[0, 1]))
        change = float(parts.sum())
        found.append(
            Difference(file, metric, *names, change, interval, p_value, p_value, len(parts), runs)
        )
    return found


def write_comparison(runs: Sequence[str | Path], out: str | Path) -> Chance:
    """Write the page of two or more runs.

    Returns:
        Which differences between their results are within chance, as stated on the page.

    Raises:
        FileNotFoundError: If a folder does not exist.
        ValueError: If a run is given twice, or a folder contains no run.
        WriteError: If the page cannot be written.
    """
    folders = [Path(run).resolve() for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if folders.count(folder) > 1:
            raise ValueError(f"{run} is given twice")
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):  # use the paths below the common folder
        shared = os.path.commonpath(folders)
        names = [str(folder.relative_to(shared)) for folder in folders]
    records = [
        replace(read_run(folder), name=name) for folder, name in zip(folders, names, strict=True)
    ]
    settings = different_settings([record.config for record in records])
    chance = chance_of_differences(records)
    write_text(out, render_comparison(records, settings, chance))
    return chance
