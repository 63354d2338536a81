"""Checks that a result was measured on the published test set that it names."""

from __future__ import annotations

from typing import Any

from sce_video.published import (
    IMAGE_TEST_SETS,
    TEST_SETS,
    TRAINING_SETS,
    PublishedSize,
    class_list_problem,
)
from sce_video.reporting.result_files import Result, count_of, nested

_MAX_FAILED = 0.01  # fraction of failed samples up to which a result still counts for the test set


def unit_of(protocol: dict[str, Any]) -> str:
    """``images`` or ``videos``: what the samples of a test are."""
    frames = nested(protocol, "benchmark", "frames")
    kind = str(nested(protocol, "test", "type"))
    return "images" if frames == 1 or "Image" in kind else "videos"


def check_videos(result: Result) -> tuple[list[str], list[str]]:
    """Obstacles and deviations in what was tested on, for a result that states its benchmark."""
    protocol, benchmark = result.protocol, result.benchmark
    dataset = benchmark["dataset"]
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
    unit = unit_of(protocol)
    if tested is None:
        obstacles.append(f"the number of {unit} is not stated")
        return obstacles, deviations
    published = _published_test_set(dataset, split)
    obstacles += _check_classes(protocol, dataset, published)
    if benchmark["protocol"] == "detection":  # samples are key frames, the published set is films
        films = count_of(nested(protocol, "test", "films"))
        if films is None:
            obstacles.append("the number of films is not stated")
        else:
            check_size(films, published, "films", obstacles, deviations)
    else:
        check_size(tested + failed, published, unit, obstacles, deviations)
    if failed > _MAX_FAILED * (tested + failed):
        obstacles.append(f"{failed:,} of {tested + failed:,} {unit} failed")
    elif failed:
        deviations.append(f"{failed:,} {unit} failed" if failed > 1 else f"1 {unit[:-1]} failed")
    if benchmark["protocol"] == "retrieval":
        size = count_of(protocol.get("bank_videos"))
        if size is None:
            obstacles.append("the number of gallery videos is not stated")
        else:
            lost = count_of(protocol.get("bank_failures")) or 0
            gallery = TRAINING_SETS.get((dataset, split))
            check_size(size + lost, gallery, "gallery videos", obstacles, deviations)
            if lost:
                deviations.append(f"{lost:,} gallery videos failed")
    return obstacles, deviations


def _published_test_set(dataset: Any, split: int | str) -> PublishedSize | None:
    return TEST_SETS.get((dataset, split)) or IMAGE_TEST_SETS.get(dataset)


def _check_classes(
    protocol: dict[str, Any], dataset: Any, published: PublishedSize | None
) -> list[str]:
    """Obstacles in the classes of a test set, and in its name, as far as they are stated."""
    test = nested(protocol, "test")
    found = []
    name, classes = nested(test, "name"), count_of(nested(test, "num_classes"))
    if name not in (None, dataset):
        found.append(f"tested on {name}, its benchmark is {dataset}")
    wanted = published.classes if published is not None else None
    if None not in (classes, wanted) and classes != wanted:
        found.append(f"tested on {classes:,} classes, {dataset} has {wanted:,}")
    problem = class_list_problem(str(dataset), nested(test, "classes"))
    return [*found, f"test set: {problem}"] if problem else found


def is_published_set(result: Result) -> bool:
    """Whether a result was measured on the published test set that it names."""
    part = result.parts[0] if result.parts else result
    named = {"dataset", "protocol"} <= set(part.benchmark)
    split = 1 if part.split is None else part.split
    if not named or _published_test_set(part.benchmark["dataset"], split) is None:
        return False
    return not check_videos(part)[0]


def check_size(
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
    if not published.contains(videos):
        obstacles.append(words)
    elif not published.low <= videos <= published.high:
        deviations.append(words)
