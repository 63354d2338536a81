"""Result files, which are found and read as JSON. The splits of a benchmark are joined."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from sce_video.published.paper_results import MEAN_OF_SPLITS, WITH_SPLITS, Setting
from sce_video.utils.command import printable_utf8, printable_values
from sce_video.utils.files import read_json
from sce_video.utils.records import JsonObject, at
from sce_video.utils.run_files import CHOOSE_KIND, RUN_KIND
from sce_video.utils.storage import walk_files

#: Other names for a metric. mmaction2 adds the name of the metric's class as a prefix.
_ALIASES = {"mAP": ("mAP/overall",)}
#: Folders that contain scalars and configs logged during training.
_SKIPPED_FOLDERS = frozenset({"vis_data"})
#: JSON files that contain no results: a log next to vis_data, the settings of a run over several
#: splits, and the state of a sweep's step.
_NOT_RESULTS = re.compile(r"(^|/)(\d{8}_\d{6}/\d{8}_\d{6}|split_settings|done|failed)\.json$")
#: ``kind`` of a sweep's table. The sweep's results are in separate files.
SWEEP = "sweep"
#: Maximum size of a JSON file with results, in bytes.
_MAX_BYTES = 2**26
#: Maximum rounding error of a metric. Its per-sample outcomes are stored in float32.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class Result:
    """Metrics of one evaluation, and a description of their measurement.

    Attributes:
        name: Path of the file as it was found, with ``/``.
        metrics: Values by name; fractions from 0 to 1, with few exceptions (``effective_rank``).
        protocol: Description of the evaluation, as JSON of any shape.
        split: Number of the split, ``val`` or ``mean of 3``; None if the file does not state it.
        parts: Results of the single splits, if this is a mean over splits.
        intervals: 95 % confidence intervals by metric, if the file states them.
        faults: Contradictions between the result's metrics and its intervals or per-sample
            outcomes.
    """

    name: str
    metrics: dict[str, float]
    protocol: JsonObject
    split: int | str | None = None
    parts: tuple[Result, ...] = ()
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @property
    def benchmark(self) -> Setting | None:
        """Return the paper's setting that the result reproduces; None if the file states none."""
        stated = self.at("benchmark", dict)
        return Setting.stated(stated) if stated else None

    def at(self, path: str, kind: type | None = None) -> Any:
        """Return an entry of the protocol (:func:`~sce_video.utils.records.at`)."""
        return at(self.protocol, path, kind)

    def count(self, path: str) -> int | None:
        """Return a number in the protocol, or the length of a list there."""
        return count_of(self.at(path))

    def metric(self, name: str) -> float | None:
        """Return the value of a metric, or None if the file does not state it."""
        names = (name, *_ALIASES.get(name, ()))
        return next((self.metrics[n] for n in names if n in self.metrics), None)


@dataclass
class Collection:
    """Results and skipped files that were found below the given folders.

    Attributes:
        results: Results, ordered by name. The splits of a mean are only in its ``parts``.
        skipped: Pairs (file, reason) for JSON files that contain no results.
    """

    results: list[Result] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def count_of(value: Any) -> int | None:
    """Return a whole number, or the length of a list; None for anything else."""
    if isinstance(value, list):
        return len(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# -- finding and reading -------------------------------------------------------------------


def collect_results(sources: Iterable[str | os.PathLike[str]]) -> Collection:
    """Read all results in folders and files.

    The results of three splits that a ``splits.json`` lists are joined to their mean.

    Raises:
        FileNotFoundError: If one of the sources does not exist.
    """
    collection = Collection()
    single: dict[str, Result] = {}
    summaries: dict[str, tuple[str, Any]] = {}  # displayed name and content, by path
    seen: set[str] = set()
    for name, path in _find(sources):
        real = os.path.realpath(path)
        if real in seen:  # the file was given twice, or is linked
            continue
        seen.add(real)
        try:
            content = _read(path)
            kind = at(content, "kind")
            if kind == "splits":
                summaries[real] = name, content
            elif kind not in (SWEEP, RUN_KIND, CHOOSE_KIND):
                single[real] = _checked(parse_result(name, content), path)
        except ValueError as error:
            collection.skipped.append((name, str(error)))
    # Join the splits last, because the files of single splits may be read in any order.
    for real, (name, content) in summaries.items():
        try:
            collection.results += _join_splits(name, real, content, single)
            if (best := at(content, "best", dict)) is not None:
                collection.results += _join_splits(f"{name}, best epochs", real, best, single)
        except ValueError as error:
            collection.skipped.append((name, str(error)))
    used = {part.name for result in collection.results for part in (*result.parts, result)}
    collection.results.extend(r for r in single.values() if r.name not in used)
    collection.results.sort(key=lambda result: result.name)
    collection.skipped.sort()
    return collection


def parse_result(name: str, content: JsonObject) -> Result:
    """Return the result in the content of a JSON file, with its name in the report.

    Raises:
        ValueError: If ``metrics`` or ``protocol`` is missing, or ``metrics`` contains no number.
    """
    metrics, protocol = at(content, "metrics", dict), at(content, "protocol", dict)
    if metrics is None or protocol is None:
        raise ValueError("contains no results ('metrics' and 'protocol')")
    values = {key: value for key, v in metrics.items() if (value := _number(v)) is not None}
    if not values:
        raise ValueError("its 'metrics' contain no number")
    intervals = {}
    for key, ends in (at(content, "intervals", dict) or {}).items():
        if isinstance(ends, list) and len(ends) == 2:
            low, high = map(_number, ends)
            if low is not None and high is not None:
                intervals[key] = (low, high)
    return Result(name, values, protocol, _split_of(protocol), intervals=intervals)


def _split_of(protocol: JsonObject) -> int | str | None:
    split = at(protocol, "split", str | int)
    if isinstance(split, str):
        return int(split) if split.isdecimal() and len(split) < 10 else split
    if split is not None:
        return split
    # If a dataset has no splits, its only test set is called "val".
    dataset = at(protocol, "benchmark.dataset")
    return None if dataset is None or str(dataset) in WITH_SPLITS else "val"


def _number(value: Any) -> float | None:
    """Return a number in JSON as a float. A whole number beyond all floats becomes infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _find(sources: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[str, str]]:
    """Yield the name in the report and the path of every JSON file."""
    for source in sources:
        given = os.fspath(source)
        if os.path.isfile(given):
            yield _displayed(given), given
        elif not os.path.isdir(given):
            raise FileNotFoundError(f"there is no file or folder {given!r}")
        for name in sorted(walk_files(given, [".json"], _SKIPPED_FOLDERS, False)):
            path = os.path.join(given, name)
            if not _NOT_RESULTS.search(name.replace(os.sep, "/")) and os.path.isfile(path):
                yield _displayed(path), path


def _displayed(path: str) -> str:
    """Return a path as printable text with ``/``, and replace bytes that are not UTF-8."""
    text = os.fsencode(os.path.normpath(path)).decode("utf-8", "replace").replace(os.sep, "/")
    return printable_utf8(text)


def _read(path: str) -> JsonObject:
    try:
        small = os.path.getsize(path) <= _MAX_BYTES
        content = read_json(path) if small else None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError("is not JSON") from error
    if not isinstance(content, dict):
        raise ValueError("contains no results" if small else "is too large for a file of results")
    return printable_values(content)


# -- contradictions ------------------------------------------------------------------------


def _checked(result: Result, path: str) -> Result:
    """Add contradictions between a result's metrics and its intervals or outcomes file."""
    from sce_video.evaluation.metrics.base import outcomes_path  # imported here: it needs torch

    faults = [
        f"{name} is {result.metrics[name]:.6g}, outside its interval {low:.6g} to {high:.6g}"
        for name, (low, high) in result.intervals.items()
        if name in result.metrics
        and not low - _ROUNDING <= result.metrics[name] <= high + _ROUNDING
    ]
    if os.path.isfile(outcomes_path(path)):
        faults += _faults_of_outcomes(result, outcomes_path(path))
    return replace(result, faults=tuple(faults))


def _faults_of_outcomes(result: Result, file: str) -> Iterator[str]:
    from sce_video.evaluation.metrics.base import load_outcomes

    try:
        outcomes = load_outcomes(file)
    except (OSError, ValueError) as error:
        yield f"its outcomes cannot be read: {error}"
        return
    count = result.count("videos")
    if count is not None and count != len(outcomes.paths):
        yield f"{count:,} samples, but its outcomes are of {len(outcomes.paths):,}"
    for name, value in outcomes.means().items():
        stated = result.metrics.get(name, value)
        if not abs(stated - value) <= _ROUNDING * max(1.0, abs(value)):
            yield f"{name} is {stated:.6g}, its outcomes give {value:.6g}"


# -- joining splits ------------------------------------------------------------------------


def _join_splits(
    name: str, path: str, content: JsonObject, single: dict[str, Result]
) -> list[Result]:
    """Return the mean over the splits in a ``splits.json``, or the splits if there are not three.

    The path of each split's file is absolute, or relative to the current folder or to the folder of
    the ``splits.json``.
    """
    listed = at(content, "splits", dict)
    if not listed:
        raise ValueError("lists no splits")
    parts: list[Result] = []
    for key, entry in sorted(listed.items()):
        if not (key.isdecimal() and len(key) < 10) or not isinstance(entry, dict):
            raise ValueError(f"split {key!r:.40} is not a number with results")
        stated = str(at(entry, "results"))
        candidates = [stated, os.path.join(os.path.dirname(path), stated)]
        file = next(filter(os.path.isfile, candidates), None)
        if file is None:
            raise ValueError(f"split {key} has no results at {stated:.200}")
        part = single.get(os.path.realpath(file))
        part = part or _checked(parse_result(_displayed(file), _read(file)), file)
        parts.append(replace(part, split=int(key)))
    if [part.split for part in parts] != [1, 2, 3]:
        return parts
    common = [n for n in parts[0].metrics if all(n in part.metrics for part in parts)]
    metrics = {n: fmean(part.metrics[n] for part in parts) for n in common}
    return [Result(name, metrics, parts[0].protocol, MEAN_OF_SPLITS, tuple(parts))]
