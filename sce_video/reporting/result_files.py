"""Finds and reads the JSON files that the tools write, and joins the splits of one benchmark."""

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
from sce_video.utils.records import at
from sce_video.utils.run_files import CHOOSE_KIND, RUN_KIND
from sce_video.utils.storage import walk_files

#: Other names of a metric, because mmaction2 prefixes the metric's class name.
_ALIASES = {"mAP": ("mAP/overall",)}
_SKIPPED_FOLDERS = frozenset({"vis_data"})  # scalars and configs logged during training
#: Other files that the tools write: a log next to vis_data, the settings of a run over splits, the
#: state of a step of a sweep.
_NOT_RESULTS = re.compile(r"(^|/)(\d{8}_\d{6}/\d{8}_\d{6}|split_settings|done|failed)\.json$")
#: ``kind`` of a sweep's table, whose results are in separate files.
SWEEP = "sweep"
_MAX_BYTES = 2**26  # largest JSON file with results
_ROUNDING = 1e-5  # outcomes of single samples are stored in float32


@dataclass(frozen=True)
class Result:
    """Metrics of one evaluation, and a description of their measurement.

    Attributes:
        name: Path of the file as it was found, with ``/``.
        metrics: Values by name; fractions from 0 to 1, with few exceptions (``effective_rank``).
        protocol: Description of the evaluation in the file, as JSON of any shape.
        split: Number of the split, ``val``, ``mean of 3``, or None if the file does not state it.
        parts: Results of the single splits, if this is a mean over splits.
        intervals: 95 % confidence intervals by metric, if the file states them.
        faults: Reasons why its numbers cannot be right, because they contradict its intervals or
            the outcomes of single samples.
    """

    name: str
    metrics: dict[str, float]
    protocol: dict[str, Any]
    split: int | str | None = None
    parts: tuple[Result, ...] = ()
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @property
    def benchmark(self) -> Setting | None:
        """Return the paper's setting that was reproduced; None if the file does not state one."""
        stated = self.at("benchmark", dict)
        return Setting.stated(stated) if stated else None

    def at(self, path: str, kind: type | None = None) -> Any:
        """Return what the protocol states (:func:`~sce_video.utils.records.at`)."""
        return at(self.protocol, path, kind)

    def count(self, path: str) -> int | None:
        """Return a count of the protocol, or the length of a list there."""
        return count_of(self.at(path))

    def metric(self, name: str) -> float | None:
        """Return the value of a metric, or None if the file does not state it."""
        names = (name, *_ALIASES.get(name, ()))
        return next((self.metrics[n] for n in names if n in self.metrics), None)


@dataclass
class Collection:
    """Results and skipped files that were found below the given folders.

    ``results`` are ordered by name. The splits of a mean are its ``parts`` and not listed again.
    ``skipped`` are (file, reason) of the JSON files that contain no results.
    """

    results: list[Result] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def count_of(value: Any) -> int | None:
    """Return a count, or the length of a list; None for anything else."""
    if isinstance(value, list):
        return len(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# -- finding and reading -------------------------------------------------------------------


def collect_results(sources: Iterable[str | os.PathLike[str]]) -> Collection:
    """Read all results below folders and in files that are given directly.

    Results of the three splits that a ``splits.json`` lists are joined to their mean.

    Raises:
        FileNotFoundError: If one of the sources does not exist.
    """
    collection = Collection()
    single: dict[str, Result] = {}
    summaries: dict[str, tuple[str, Any]] = {}  # shown name and content of splits, by path
    seen: set[str] = set()
    for name, path in _find(sources):
        real = os.path.realpath(path)
        if real in seen:  # given twice, or linked
            continue
        seen.add(real)
        try:
            content = _read(path)
            if content.get("kind") == "splits":
                summaries[real] = name, content
            elif content.get("kind") not in (SWEEP, RUN_KIND, CHOOSE_KIND):
                single[real] = _checked(parse_result(name, content), path)
        except ValueError as error:
            collection.skipped.append((name, str(error)))
    # After all files are read, since the files of the splits are among them.
    for real, (name, content) in summaries.items():
        try:
            collection.results += _join_splits(name, real, content, single)
            if isinstance(best := content.get("best"), dict):
                collection.results += _join_splits(f"{name}, best epochs", real, best, single)
        except ValueError as error:
            collection.skipped.append((name, str(error)))
    used = {part.name for result in collection.results for part in (*result.parts, result)}
    collection.results.extend(r for r in single.values() if r.name not in used)
    collection.results.sort(key=lambda result: result.name)
    collection.skipped.sort()
    return collection


def parse_result(name: str, content: dict[str, Any]) -> Result:
    """Return the result that the content of a JSON file describes, under a name for the report.

    Raises:
        ValueError: If ``metrics`` or ``protocol`` is missing, or ``metrics`` holds no number.
    """
    metrics, protocol = content.get("metrics"), content.get("protocol")
    if not isinstance(metrics, dict) or not isinstance(protocol, dict):
        raise ValueError("holds no results ('metrics' and 'protocol')")
    values = {key: value for key, v in metrics.items() if (value := _number(v)) is not None}
    if not values:
        raise ValueError("its 'metrics' hold no number")
    intervals = {}
    stated = content.get("intervals")
    for key, ends in stated.items() if isinstance(stated, dict) else ():
        low, high = (
            map(_number, ends) if isinstance(ends, list) and len(ends) == 2 else (None, None)
        )
        if low is not None and high is not None:
            intervals[key] = (low, high)
    return Result(name, values, protocol, _split_of(protocol), intervals=intervals)


def _split_of(protocol: dict[str, Any]) -> int | str | None:
    split = protocol.get("split")
    if isinstance(split, str):
        return int(split) if split.isdecimal() and len(split) < 10 else split
    if isinstance(split, int) and not isinstance(split, bool):
        return split
    # A list or dict in a file is not a name; the test of sets without splits is "val".
    dataset = at(protocol, "benchmark.dataset")
    return None if dataset is None or str(dataset) in WITH_SPLITS else "val"


def _number(value: Any) -> float | None:
    """Return a number of JSON; a whole number beyond all floats is infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _find(sources: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[str, str]]:
    """Yield the displayed name and the path of every JSON file."""
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
    """Return a path as printable UTF-8 text with ``/``; bytes that are not UTF-8 are replaced."""
    text = os.fsencode(os.path.normpath(path)).decode("utf-8", "replace").replace(os.sep, "/")
    return printable_utf8(text)


def _read(path: str) -> dict[str, Any]:
    try:
        small = os.path.getsize(path) <= _MAX_BYTES
        content = read_json(path) if small else None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError("is not JSON") from error
    if not isinstance(content, dict):
        raise ValueError("holds no results" if small else "is too large for a file of results")
    return printable_values(content)


# -- contradictions ------------------------------------------------------------------------


def _checked(result: Result, path: str) -> Result:
    """Add what contradicts the numbers of a result: its intervals, and its file of outcomes."""
    from sce_video.evaluation.metrics.base import outcomes_path  # here, since it imports torch

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
        yield f"{count:,} samples, its outcomes are of {len(outcomes.paths):,}"
    for name, value in outcomes.means().items():
        stated = result.metrics.get(name, value)
        if not abs(stated - value) <= _ROUNDING * max(1.0, abs(value)):
            yield f"{name} is {stated:.6g}, its outcomes give {value:.6g}"


# -- joining splits ------------------------------------------------------------------------


def _join_splits(
    name: str, path: str, content: dict[str, Any], single: dict[str, Result]
) -> list[Result]:
    """Return the mean over the splits in a ``splits.json``, or the splits if fewer than three.

    Each split has a file of results, at the stated path or relative to the ``splits.json``.
    """
    listed = content.get("splits")
    if not isinstance(listed, dict) or not listed:
        raise ValueError("lists no splits")
    parts: list[Result] = []
    for key, entry in sorted(listed.items()):
        if not (key.isdecimal() and len(key) < 10) or not isinstance(entry, dict):
            raise ValueError(f"split {key!r:.40} is not a number with results")
        stated = str(entry.get("results"))
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
