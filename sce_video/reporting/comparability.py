"""Decides whether a result may be shown next to a number of the paper, and with which remarks.

Two lists are made of every result. Obstacles make it incomparable: other videos than the published
test set, random weights, an unstated setting. Deviations leave it comparable but are shown with
the number: other views, another crop, a few videos missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sce_video.reporting.paper_results import (
    DEFAULT_VIEWS,
    EPOCHS,
    GALLERIES,
    TEST_CROP,
    TEST_SETS,
    VIEWS,
    PaperResult,
    PublishedSize,
)
from sce_video.reporting.result_files import Result, count_of

_SETTING = ("protocol", "dataset", "network", "frames", "size", "pretrained_on")
_MAX_FAILED = 0.01  # fraction of failed videos up to which a result still counts for the test set


@dataclass(frozen=True)
class Comparability:
    """Whether a result may be compared with a number of the paper.

    Attributes:
        obstacles: Why it may not; empty if it may.
        deviations: Where its evaluation differs from the paper's.
    """

    obstacles: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()


def setting_of(paper: PaperResult) -> tuple[Any, ...]:
    """What a result must share with a number of the paper, apart from the split."""
    return (*(getattr(paper, name) for name in _SETTING), paper.pretraining)


def setting_of_result(result: Result) -> tuple[Any, ...]:
    """The same tuple as :func:`setting_of`, from the benchmark that a result states."""
    benchmark = result.benchmark
    default = None if benchmark.get("pretrained_on") is None else "sce"
    return (*(benchmark.get(n) for n in _SETTING), benchmark.get("pretraining", default))


def compare(result: Result) -> Comparability:
    """Obstacles and deviations of a result.

    Obstacles: the setting is not stated, the test set is not the published one or too small, more
    than 1 % of the videos failed, or the weights are random. Everything else that differs (views,
    crop, epochs, some videos missing or failed) is a deviation.
    """
    if result.parts:
        compared = [(part.split, compare(part)) for part in result.parts]
        return Comparability(
            tuple(f"split {n}: {what}" for n, part in compared for what in part.obstacles),
            (*result.deviations, *dict.fromkeys(_deviations_of_parts(compared))),
        )
    benchmark = result.benchmark
    if not benchmark:
        return Comparability(("states no benchmark: own data or settings",))
    missing = [name for name in _SETTING if name not in benchmark]
    if missing:
        return Comparability((f"its benchmark does not state {', '.join(missing)}",))
    obstacles, deviations = _check_videos(result)
    obstacles += _check_weights(result.protocol, benchmark)
    if result.protocol.get("group_pattern") is not None:
        obstacles.append("retrieves within one set, leaving out the query's own group")
    deviations += _check_protocol(result.protocol, benchmark)
    return Comparability(tuple(obstacles), (*result.deviations, *deviations))


def views_of(protocol: dict[str, Any]) -> tuple[int, int] | None:
    """(clips, crops) of a test, stated or derived from the number of views; None if unknown."""
    test = protocol.get("test")
    for source in (protocol, test if isinstance(test, dict) else {}):
        clips, crops = count_of(source.get("clips")), count_of(source.get("crops"))
        views = count_of(protocol.get("views"))
        if clips and views and views % clips == 0:
            return clips, views // clips
        if clips and crops:
            return clips, crops
    return None


def percentage_problem(result: Result, metrics: Sequence[str]) -> str | None:
    """Why these metrics cannot be shown as percentages, or None if they can."""
    for name in metrics:
        value = result.metric(name)
        if value is None:
            return f"has no {name}"
        if not (math.isfinite(value) and 0 <= value <= 1):
            return f"{name} is {value:g}, which is not a fraction from 0 to 1"
    return None


def _deviations_of_parts(compared: Sequence[tuple[Any, Comparability]]) -> Iterator[str]:
    """Deviations common to all splits once, the others prefixed with the split."""
    for split, part in compared:
        for deviation in part.deviations:
            everywhere = all(deviation in other.deviations for _, other in compared)
            yield deviation if everywhere else f"split {split}: {deviation}"


def _check_videos(result: Result) -> tuple[list[str], list[str]]:
    """Obstacles and deviations in what was tested on."""
    protocol, dataset = result.protocol, result.benchmark["dataset"]
    obstacles: list[str] = []
    deviations: list[str] = []
    split = result.split
    stated = protocol.get("dataset")
    if stated is not None and stated != dataset:
        obstacles.append(f"measured on {stated}, its benchmark is {dataset}")
    if split is None:
        split = 1
        deviations.append("split not stated")
    tested, failed = count_of(protocol.get("videos")), count_of(protocol.get("failures")) or 0
    if tested is None:
        obstacles.append("the number of videos is not stated")
        return obstacles, deviations
    published = TEST_SETS.get((dataset, split))
    _check_size(tested + failed, published, "videos", obstacles, deviations)
    if failed > _MAX_FAILED * (tested + failed):
        obstacles.append(f"{failed:,} of {tested + failed:,} videos failed")
    elif failed:
        deviations.append(f"{failed:,} videos failed" if failed > 1 else "1 video failed")
    if result.benchmark["protocol"] == "retrieval":
        size = count_of(protocol.get("bank_videos"))
        if size is None:
            obstacles.append("the number of gallery videos is not stated")
        else:
            lost = count_of(protocol.get("bank_failures")) or 0
            gallery = GALLERIES.get((dataset, split))
            _check_size(size + lost, gallery, "gallery videos", obstacles, deviations)
            if lost:
                deviations.append(f"{lost:,} gallery videos failed")
    return obstacles, deviations


def _check_size(
    videos: int,
    published: PublishedSize | None,
    what: str,
    obstacles: list[str],
    deviations: list[str],
) -> None:
    """Append to ``obstacles`` or ``deviations`` if a set has not its published size."""
    if published is None:
        deviations.append(f"{videos:,} {what}, no published number to check against")
        return
    words = f"{videos:,} {what}, published {published.published()}"
    if not published.least <= videos <= published.most:
        obstacles.append(words)
    elif not published.low <= videos <= published.high:
        deviations.append(words)


def _check_weights(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    """Obstacles in what was evaluated."""
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
        found.append("queries and gallery were embedded by different checkpoints")
    fused = protocol.get("fusion")
    if fused is not None:
        found.append(f"fuses the scores of {count_of(fused) or 'several'} models")
    return found


def _nested(content: Any, *names: str) -> Any:
    for name in names:
        content = content.get(name) if isinstance(content, dict) else None
    return content


def _check_protocol(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    """Deviations in views, crop, epochs and search."""
    deviations = []
    if benchmark["protocol"] != "detection":
        expected = VIEWS.get(benchmark["dataset"], DEFAULT_VIEWS)
        views = views_of(protocol)
        if views is None:
            deviations.append("views not stated")
        elif views != expected:
            deviations.append(f"{views[0]} x {views[1]} views")
    crop = protocol.get("crop_size", protocol.get("test_size"))
    if crop is not None and crop != TEST_CROP.get(benchmark["size"]):
        deviations.append(f"test crop {crop}")
    epochs = benchmark.get("epochs", protocol.get("epochs"))
    usual = EPOCHS.get((benchmark["protocol"], benchmark["dataset"]))
    if epochs is not None and usual is not None and epochs != usual:
        deviations.append(f"{epochs} epochs instead of {usual}")
    if protocol.get("backend") == "faiss" and protocol.get("faiss_index") != "Flat":
        deviations.append(f"approximate search, faiss {protocol.get('faiss_index')}")
    return deviations
