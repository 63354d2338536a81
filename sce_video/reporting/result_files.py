"""Files of results, and what of the paper each may stand beside."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from sce_video.reporting.paper_results import (
    BANKS,
    DEFAULT_VIEWS,
    EPOCHS,
    MEAN_OF_SPLITS,
    TEST_CROP,
    TEST_SETS,
    VIEWS,
    PaperResult,
    PublishedSize,
)

_SETTING = ("protocol", "dataset", "network", "frames", "size", "pretrained_on")
_WITH_SPLITS = frozenset({"ucf101", "hmdb51"})
#: Other names of a metric: mmaction2 puts the name of the metric before its figures.
_ALIASES = {"mAP": ("mAP/overall",)}
_MAX_FAILED = 0.01  # share of failed videos up to which a figure is still one on that set
_SKIPPED_FOLDERS = frozenset({"vis_data"})  # what a training logged


@dataclass(frozen=True)
class Result:
    """Figures and what they are figures of.

    Attributes:
        name: The file as it was found, with ``/``.
        metrics: Figures by name; shares from 0 to 1, but for a few.
        protocol: What the file says of how they were measured.
        split: Number of the split, ``val``, ``mean of 3``, or None where it is not said.
        parts: The results of the splits, of a mean.
        marks: What is odd about the file itself.
    """

    name: str
    metrics: dict[str, float]
    protocol: dict[str, Any]
    split: int | str | None = None
    parts: tuple[Result, ...] = ()
    marks: tuple[str, ...] = ()

    @property
    def benchmark(self) -> dict[str, Any]:
        """What of the paper it means to reproduce; empty where it does not say."""
        return _benchmark(self.protocol)

    def metric(self, name: str) -> float | None:
        """A figure, or None where there is none."""
        names = (name, *_ALIASES.get(name, ()))
        return next((self.metrics[n] for n in names if n in self.metrics), None)


@dataclass(frozen=True)
class Comparability:
    """Whether a result may stand beside a number of the paper.

    Attributes:
        obstacles: Why it may not; empty when it may.
        marks: How it was measured otherwise than the paper's.
    """

    obstacles: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()


@dataclass
class Collection:
    """What was found.

    Attributes:
        results: Ordered by name; the splits of a mean are its parts and do not stand alone.
        foreign: (file, why) of the json files that hold no results.
    """

    results: list[Result] = field(default_factory=list)
    foreign: list[tuple[str, str]] = field(default_factory=list)


# -- finding and reading -------------------------------------------------------------------


def collect_results(sources: Iterable[str | os.PathLike[str]]) -> Collection:
    """Read all results below folders, and those of files given directly.

    Results of the three splits of one recipe that lie in three folders beside each other, or that a
    ``splits.json`` lists, are joined to their mean.

    Args:
        sources: Folders and json files.

    Raises:
        FileNotFoundError: One of them does not exist.
    """
    collection = Collection()
    single: dict[str, Result] = {}
    joined: dict[str, dict[str, Any]] = {}
    places: dict[str, str] = {}
    for name, path in _find(sources):
        real = os.path.realpath(path)
        if real in places:
            continue
        places[real] = name
        try:
            content = _read(path)
            if content.get("kind") == "splits":
                joined[real] = content
            else:
                single[real] = _single(name, content)
        except ValueError as error:
            collection.foreign.append((name, str(error)))
    for real, content in joined.items():
        try:
            collection.results.extend(_join_file(places[real], real, content, single))
        except ValueError as error:
            collection.foreign.append((places[real], str(error)))
    taken = {part.name for result in collection.results for part in (*result.parts, result)}
    left = [result for result in single.values() if result.name not in taken]
    collection.results.extend(_join_neighbours(left))
    collection.results.sort(key=lambda result: result.name)
    collection.foreign.sort()
    return collection


def _find(sources: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[str, str]]:
    """(name to show, path) of every json file."""
    for source in sources:
        given = os.fspath(source)
        if os.path.isfile(given):
            yield _show(given), given
        elif not os.path.isdir(given):
            raise FileNotFoundError(f"there is no file or folder {given!r}")
        for folder, subfolders, files in os.walk(given):
            subfolders[:] = sorted(
                name
                for name in subfolders
                if not name.startswith(".") and name not in _SKIPPED_FOLDERS
            )
            for file in sorted(files):
                path = os.path.join(folder, file)
                if file.endswith(".json") and not file.startswith(".") and os.path.isfile(path):
                    yield _show(path), path


def _show(path: str) -> str:
    """A path as text that any terminal and page takes."""
    return os.fsencode(os.path.normpath(path)).decode("utf-8", "replace").replace(os.sep, "/")


def _read(path: str) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError("is no json") from error
    if not isinstance(content, dict):
        raise ValueError("holds no results")
    return content


def _single(name: str, content: dict[str, Any]) -> Result:
    metrics, protocol = content.get("metrics"), content.get("protocol")
    if not isinstance(metrics, dict) or not isinstance(protocol, dict):
        raise ValueError("holds no results ('metrics' and 'protocol')")
    figures = _figures(metrics)
    if not figures:
        raise ValueError("its 'metrics' hold no figure")
    return Result(name, figures, protocol, _split(protocol))


def _figures(metrics: dict[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _benchmark(protocol: dict[str, Any]) -> dict[str, Any]:
    stated = protocol.get("benchmark")
    if not isinstance(stated, dict):
        return {}
    # Whatever a file says, it can be looked up.
    plain = (str, int, float, type(None))
    return {name: v if isinstance(v, plain) else str(v) for name, v in stated.items()}


def _split(protocol: dict[str, Any]) -> int | str | None:
    split = protocol.get("split")
    if isinstance(split, str) and split.isdecimal():
        return int(split)
    if isinstance(split, int | str) and not isinstance(split, bool):
        return split
    dataset = _benchmark(protocol).get("dataset")
    return None if dataset is None or dataset in _WITH_SPLITS else "val"


# -- several splits ------------------------------------------------------------------------


def _join_file(
    name: str, path: str, content: dict[str, Any], single: dict[str, Result]
) -> list[Result]:
    """The mean that a ``splits.json`` is about, from the results of its splits where they are.

    Of fewer than three splits the results themselves.
    """
    stated = content.get("splits")
    if not isinstance(stated, dict) or not stated:
        raise ValueError("lists no splits")
    shared = content.get("protocol")
    shared = shared if isinstance(shared, dict) else {}
    parts: list[Result] = []
    marks: list[str] = []
    for key, entry in sorted(stated.items()):
        if not str(key).isdecimal() or not isinstance(entry, dict):
            raise ValueError(f"split {key!r} is not a number with results")
        metrics = entry.get("metrics")
        written = _figures(metrics) if isinstance(metrics, dict) else {}
        part = _part_file(path, entry.get("results"), single)
        if part is None:
            if not written:
                raise ValueError(f"split {key} has no figures")
            protocol = _part_protocol(shared, entry, int(key), len(parts))
            part = Result(f"{name} (split {key})", written, protocol, int(key))
        elif any(part.metrics.get(n) != value for n, value in written.items()):
            marks.append(f"split {key} was measured again after {os.path.basename(name)}")
        parts.append(replace(part, split=int(key)))
    return [_mean(name, parts, marks)] if [p.split for p in parts] == [1, 2, 3] else parts


def _part_file(path: str, stated: Any, single: dict[str, Result]) -> Result | None:
    """The results file of a split: as stated, or beside the ``splits.json``."""
    if not isinstance(stated, str):
        return None
    for base in ("", os.path.dirname(path)):
        candidate = os.path.join(base, stated)
        real = os.path.realpath(candidate)
        if real in single:
            return single[real]
        if os.path.isfile(candidate):
            try:
                return _single(_show(candidate), _read(candidate))
            except ValueError:
                return None
    return None


def _part_protocol(
    shared: dict[str, Any], entry: dict[str, Any], split: int, place: int
) -> dict[str, Any]:
    """The protocol of a split whose own file is gone: what the ``splits.json`` keeps of it."""
    protocol = {"benchmark": shared, **shared, "split": split, "videos": entry.get("videos")}
    # A sum over the splits: what failed here is missing in the number of videos.
    protocol.pop("failures", None)
    checkpoints = shared.get("checkpoint")
    if isinstance(checkpoints, list):
        protocol["checkpoint"] = checkpoints[place] if place < len(checkpoints) else None
    return protocol


def _join_neighbours(results: Sequence[Result]) -> list[Result]:
    """Join splits 1, 2 and 3 of one benchmark in three folders of one folder."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        place = os.path.dirname(os.path.dirname(result.name))
        benchmark = json.dumps(result.benchmark, sort_keys=True, default=str)
        groups.setdefault(f"{place}\n{benchmark}", []).append(result)
    joined = []
    for key, group in groups.items():
        splits = sorted(str(result.split) for result in group)
        if group[0].benchmark.get("dataset") in _WITH_SPLITS and splits == ["1", "2", "3"]:
            ordered = sorted(group, key=lambda result: str(result.split))
            joined.append(_mean(key.split("\n")[0] or ".", ordered, ()))
        else:
            joined.extend(group)
    return joined


def _mean(name: str, parts: Sequence[Result], marks: Sequence[str]) -> Result:
    """The mean over the three splits."""
    common = [n for n in parts[0].metrics if all(n in part.metrics for part in parts)]
    metrics = {n: fmean(part.metrics[n] for part in parts) for n in common}
    return Result(name, metrics, parts[0].protocol, MEAN_OF_SPLITS, tuple(parts), tuple(marks))


# -- comparing -----------------------------------------------------------------------------


def setting_of(paper: PaperResult) -> tuple[Any, ...]:
    """What a result must agree in with a number of the paper, but for the split."""
    return (*(getattr(paper, name) for name in _SETTING), paper.pretraining)


def setting_of_result(result: Result) -> tuple[Any, ...]:
    """The same of a result."""
    benchmark = result.benchmark
    default = None if benchmark.get("pretrained_on") is None else "sce"
    return (*(benchmark.get(n) for n in _SETTING), benchmark.get("pretraining", default))


def compare(result: Result) -> Comparability:
    """Look at how a result was measured.

    A result is not comparable (obstacles) when it says too little, was measured on other videos
    than the published test set or on too few of them, when more than 1 % of the videos failed, or
    when the weights are random. Other deviations (views, crop, epochs, some videos missing or
    failed) are marks.
    """
    if result.parts:
        judged = [(part.split, compare(part)) for part in result.parts]
        return Comparability(
            tuple(f"split {n}: {what}" for n, part in judged for what in part.obstacles),
            (
                *result.marks,
                *dict.fromkeys(_marks_of_parts(judged)),
            ),
        )
    benchmark = result.benchmark
    if not benchmark:
        return Comparability(("states no benchmark: own data or settings",))
    unsaid = [name for name in _SETTING if name not in benchmark]
    if unsaid:
        return Comparability((f"its benchmark does not state {', '.join(unsaid)}",))
    obstacles, marks = _look_at_videos(result)
    obstacles += _look_at_weights(result.protocol, benchmark)
    if result.protocol.get("group_pattern") is not None:
        obstacles.append("leaves groups of one set out")
    marks += _look_at_protocol(result.protocol, benchmark)
    return Comparability(tuple(obstacles), (*result.marks, *marks))


def _marks_of_parts(judged: Sequence[tuple[Any, Comparability]]) -> Iterator[str]:
    """Marks of all splits once, those of some with their number."""
    for split, part in judged:
        for mark in part.marks:
            everywhere = all(mark in other.marks for _, other in judged)
            yield mark if everywhere else f"split {split}: {mark}"


def _look_at_videos(result: Result) -> tuple[list[str], list[str]]:
    protocol, dataset = result.protocol, result.benchmark["dataset"]
    obstacles: list[str] = []
    marks: list[str] = []
    split = result.split
    stated = protocol.get("dataset")
    if stated is not None and stated != dataset:
        obstacles.append(f"measured on {stated}, meant for {dataset}")
    if split is None:
        split = 1
        marks.append("split not stated")
    tested, failed = count_of(protocol.get("videos")), count_of(protocol.get("failures")) or 0
    if tested is None:
        obstacles.append("the number of videos is not stated")
        return obstacles, marks
    _look_at_size(tested + failed, TEST_SETS.get((dataset, split)), "videos", obstacles, marks)
    if failed > _MAX_FAILED * (tested + failed):
        obstacles.append(f"{failed:,} of {tested + failed:,} videos failed")
    elif failed:
        marks.append(f"{failed:,} videos failed" if failed > 1 else "1 video failed")
    if result.benchmark["protocol"] == "retrieval":
        searched = count_of(protocol.get("bank_videos"))
        if searched is None:
            obstacles.append("the number of videos searched is not stated")
        else:
            lost = count_of(protocol.get("bank_failures")) or 0
            bank = BANKS.get((dataset, split))
            _look_at_size(searched + lost, bank, "videos searched", obstacles, marks)
            if lost:
                marks.append(f"{lost:,} failed in the bank")
    return obstacles, marks


def _look_at_size(
    videos: int, published: PublishedSize | None, what: str, obstacles: list[str], marks: list[str]
) -> None:
    if published is None:
        marks.append(f"{videos:,} {what}, no published number to check against")
        return
    words = f"{videos:,} {what}, published {published.published()}"
    if not published.least <= videos <= published.most:
        obstacles.append(words)
    elif not published.low <= videos <= published.high:
        marks.append(words)


def count_of(value: Any) -> int | None:
    """A number of things, or the length of a list of them; None where it is neither."""
    if isinstance(value, list):
        return len(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _look_at_weights(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    found = []
    checkpoint = protocol.get("checkpoint")
    if isinstance(checkpoint, dict) and checkpoint.get("path") is None:
        found.append(f"weights: {checkpoint.get('source', 'no checkpoint')}")
    pretrained = protocol.get("pretrained")
    if pretrained == "random" and benchmark["pretrained_on"] is not None:
        found.append("trained from random weights, not pretrained")
    hashes = {
        _nested(protocol, part, "protocol", "checkpoint", "sha256") for part in ("query", "bank")
    } - {None}
    if len(hashes) > 1:
        found.append("queries and bank were embedded by different checkpoints")
    fused = protocol.get("fusion")
    if fused is not None:
        found.append(f"fuses the scores of {count_of(fused) or 'several'} models")
    return found


def _nested(content: Any, *names: str) -> Any:
    for name in names:
        content = content.get(name) if isinstance(content, dict) else None
    return content


def _look_at_protocol(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    marks = []
    if benchmark["protocol"] != "detection":
        wanted = VIEWS.get(benchmark["dataset"], DEFAULT_VIEWS)
        views = views_of(protocol)
        if views is None:
            marks.append("views not stated")
        elif views != wanted:
            marks.append(f"{views[0]} x {views[1]} views")
    crop = protocol.get("crop_size", protocol.get("test_size"))
    if crop is not None and crop != TEST_CROP.get(benchmark["size"]):
        marks.append(f"test crop {crop}")
    epochs = benchmark.get("epochs", protocol.get("epochs"))
    usual = EPOCHS.get((benchmark["protocol"], benchmark["dataset"]))
    if epochs is not None and usual is not None and epochs != usual:
        marks.append(f"{epochs} epochs instead of {usual}")
    if protocol.get("backend") == "faiss" and protocol.get("faiss_index") != "Flat":
        marks.append(f"approximate search, faiss {protocol.get('faiss_index')}")
    return marks


def views_of(protocol: dict[str, Any]) -> tuple[int, int] | None:
    """Clips and crops of a test, where they are stated or follow from the number of views."""
    test = protocol.get("test")
    for source in (protocol, test if isinstance(test, dict) else {}):
        clips, crops = count_of(source.get("clips")), count_of(source.get("crops"))
        views = count_of(protocol.get("views"))
        if clips and views and views % clips == 0:
            return clips, views // clips
        if clips and crops:
            return clips, crops
    return None


def share_problem(result: Result, metrics: Sequence[str]) -> str | None:
    """Why these metrics cannot be shown as percentages, or None."""
    for name in metrics:
        value = result.metric(name)
        if value is None:
            return f"has no {name}"
        if not (math.isfinite(value) and 0 <= value <= 1):
            return f"{name} is {value:g}, which is no share from 0 to 1"
    return None
