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

from sce_video.published import (
    BATCHES,
    EPOCHS,
    PRETRAINING_EPOCHS,
    TEST_SETS,
    TRAINING_SETS,
    PublishedSize,
)
from sce_video.reporting.paper_results import DEFAULT_VIEWS, TEST_CROP, VIEWS, PaperResult
from sce_video.reporting.result_files import Result, count_of, nested

_SETTING = ("protocol", "dataset", "network", "frames", "size", "pretrained_on", "pretraining")
#: Entries of a result's ``benchmark_problems`` in words.
_ENTRIES = {
    "network": "network",
    "training": "training",
    "pretrained_on": "pretraining data",
    "pretraining": "pretraining method",
    "pretraining_epochs": "pretraining epochs",
    "pretraining_schedule": "pretraining epochs",
    "pretraining_start": "pretraining",
    "pretraining_clip": "pretraining clips",
    "pretraining_network": "pretraining network",
}
_PRETRAINING_BATCH = 512  # videos of all processes (appendix D.3)
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
    return tuple(getattr(paper, name) for name in _SETTING)


def setting_of_result(result: Result) -> tuple[Any, ...]:
    """The same tuple as :func:`setting_of`, from the benchmark that a result states."""
    return tuple(result.benchmark.get(name) for name in _SETTING)


def compare(result: Result) -> Comparability:
    """Obstacles and deviations of a result.

    Obstacles: the setting is not stated, the network, the pretraining (data, method, epochs) or the
    training is unknown or another one, the test set is not the published one or too small, more
    than 1 % of the videos failed, or the weights are random. Everything else that differs (views,
    crop, epochs of the evaluation, an epoch chosen on the test set, some videos missing or failed)
    is a deviation.
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
    obstacles, deviations = check_videos(result)
    obstacles += _check_origin(result.protocol, benchmark)
    obstacles += _check_weights(result.protocol, benchmark)
    if result.protocol.get("group_pattern") is not None:
        obstacles.append("retrieves within one set, leaving out the query's own group")
    deviations += _check_protocol(result.protocol, benchmark)
    deviations += _check_training(result.protocol, benchmark)
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
    if tested is None:
        obstacles.append("the number of videos is not stated")
        return obstacles, deviations
    published = TEST_SETS.get((dataset, split))
    if benchmark["protocol"] == "detection":  # samples are key frames, the published set is films
        films = count_of(nested(protocol, "test", "films"))
        if films is None:
            obstacles.append("the number of films is not stated")
        else:
            _check_size(films, published, "films", obstacles, deviations)
    else:
        _check_size(tested + failed, published, "videos", obstacles, deviations)
    if failed > _MAX_FAILED * (tested + failed):
        obstacles.append(f"{failed:,} of {tested + failed:,} videos failed")
    elif failed:
        deviations.append(f"{failed:,} videos failed" if failed > 1 else "1 video failed")
    if benchmark["protocol"] == "retrieval":
        size = count_of(protocol.get("bank_videos"))
        if size is None:
            obstacles.append("the number of gallery videos is not stated")
        else:
            lost = count_of(protocol.get("bank_failures")) or 0
            gallery = TRAINING_SETS.get((dataset, split))
            _check_size(size + lost, gallery, "gallery videos", obstacles, deviations)
            if lost:
                deviations.append(f"{lost:,} gallery videos failed")
    return obstacles, deviations


def is_published_set(result: Result) -> bool:
    """Whether a result was measured on the published test set that it names."""
    part = result.parts[0] if result.parts else result
    named = {"dataset", "protocol"} <= set(part.benchmark)
    split = 1 if part.split is None else part.split
    if not named or (part.benchmark["dataset"], split) not in TEST_SETS:
        return False
    return not check_videos(part)[0]


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
    if not published.contains(videos):
        obstacles.append(words)
    elif not published.low <= videos <= published.high:
        deviations.append(words)


def _check_origin(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    """Obstacles in network and training: what is unknown, or another than the recipe names."""
    problems = protocol.get("benchmark_problems")
    if not isinstance(problems, dict):
        return ["does not state what is known of its training"]
    entries: dict[str, list[str]] = {}
    for entry, why in problems.items():
        entries.setdefault(str(why), []).append(_ENTRIES.get(entry, str(entry)))
    found = [f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in entries.items()]
    if benchmark["protocol"] != "retrieval" and count_of(protocol.get("epochs")) is None:
        found.append("the epochs of the training are not stated")
    epochs = benchmark.get("pretraining_epochs")
    known = not {"pretraining_epochs", "pretraining_schedule"} & set(problems)
    if benchmark["pretrained_on"] is not None and known and epochs != PRETRAINING_EPOCHS:
        found.append(
            f"pretrained for {epochs} epochs, the paper's network for {PRETRAINING_EPOCHS}"
        )
    return found


def _check_weights(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    """Obstacles in what was evaluated."""
    found = []
    checkpoint = protocol.get("checkpoint")
    if isinstance(checkpoint, dict) and checkpoint.get("path") is None:
        found.append(f"weights: {checkpoint.get('source', 'no checkpoint')}")
    pretrained = protocol.get("pretrained")
    if pretrained == "random" and benchmark["protocol"] != "supervised":
        found.append("trained from random weights, not pretrained")
    hashes = {
        nested(protocol, part, "protocol", "checkpoint", "sha256") for part in ("query", "bank")
    } - {None}
    if len(hashes) > 1:
        found.append("queries and gallery were embedded by different checkpoints")
    fused = protocol.get("fusion")
    if fused is not None:
        found.append(f"fuses the scores of {count_of(fused) or 'several'} models")
    return found


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
    frames = next(_settings_of(nested(protocol, "test", "pipeline"), "num_frames"), None)
    if frames is not None and frames != benchmark["frames"]:
        deviations.append(f"tested on {frames} frames")
    if protocol.get("backend") == "faiss" and protocol.get("faiss_index") != "Flat":
        deviations.append(f"approximate search, faiss {protocol.get('faiss_index')}")
    return deviations


def _check_training(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    """Deviations in epochs, in how the epoch was chosen, in clips and batch."""
    deviations = []
    epochs = protocol.get("epochs")
    usual = EPOCHS.get((benchmark["protocol"], benchmark["dataset"]))
    chosen = selection_of(protocol)
    if chosen is not None:
        deviations.append(chosen)
    elif epochs is not None and usual is not None and epochs != usual:
        deviations.append(f"{epochs} epochs instead of {usual}")
    if benchmark["protocol"] != "retrieval":
        record = nested(protocol, "checkpoint", "training")
        pipeline, planned = nested(record, "pipeline"), count_of(nested(record, "max_epochs"))
        for key, wanted, what in (
            ("num_frames", benchmark["frames"], "frames"),
            ("size", benchmark["size"], "pixels"),
        ):
            crops = ("RandomCropClips", "RandomResizedCropClips", "RandomCropWithBoxes")
            found = next(_settings_of(pipeline, key, crops if key == "size" else ()), wanted)
            if found != wanted:
                deviations.append(f"trained on {found} {what}")
        batch = nested(record, "batch_size")
        usual = BATCHES.get((benchmark["protocol"], benchmark["dataset"]))
        if None not in (batch, usual) and batch != usual:
            deviations.append(f"trained with a batch of {batch} instead of {usual}")
        if planned is not None and chosen is None and epochs != planned:
            deviations.append(f"epoch {epochs} of a schedule of {planned}")
        record = nested(protocol, "pretrained", "training")
    else:
        record = nested(protocol, "checkpoint", "training")
    batch = nested(record, "batch_size")
    if batch not in (None, _PRETRAINING_BATCH) and str(benchmark["pretraining"]).startswith("sce"):
        deviations.append(f"pretrained with a batch of {batch} instead of {_PRETRAINING_BATCH}")
    return deviations


def selection_of(protocol: dict[str, Any]) -> str | None:
    """How the tested epoch was chosen, in words; None if it was not chosen by its metrics."""
    if not isinstance(nested(protocol, "checkpoint", "selected"), dict):
        return None
    if protocol.get("chosen_on_test") is not False:
        return "best epoch on the test set; the result is the last"
    return "best epoch on a validation list, not the last"


def _settings_of(pipeline: Any, name: str, types: Sequence[str] = ()) -> Iterator[Any]:
    """Values of an argument in the steps of a described pipeline."""
    for step in pipeline if isinstance(pipeline, list) else ():
        if isinstance(step, dict) and isinstance(step.get(name), int):
            if not types or str(step.get("type")).rpartition(".")[2] in types:
                yield step[name]
