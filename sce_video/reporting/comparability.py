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
    IMAGE_METHODS,
    IMAGE_TEST_SETS,
    IMAGE_TRAINING_SETS,
    PRETRAINING_EPOCHS,
    TEST_SETS,
    TRAINING_SETS,
    PublishedSize,
    class_list_problem,
    image_batch,
    image_epochs,
    linear_rate,
    linear_schedule,
)
from sce_video.published.paper_results import DEFAULT_VIEWS, TEST_CROP, VIEWS, PaperResult
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


#: Protocols on feature files, by tools/transfer.py.
TRANSFER = ("many_shot", "low_shot_svm")
#: (clips, crops) of a test on images.
ONE_VIEW = (1, 1)
#: Short side, central crop and filter of the test images, as in linusericsson/ssl-transfer and
#: salesforce/PCL. A linear evaluation at 224 has 256 and 224 (appendix D.1), without a stated
#: filter; smaller images are tested as they are.
_PIPELINES = {"many_shot": (224, 224, "bicubic"), "low_shot_svm": (256, 224, "bilinear")}
_SHORT_SIDE = {224: 256}
_VALUES_OF_C = 45  # of linusericsson/ssl-transfer, linear.py
_DRAWS = 5  # of salesforce/PCL, eval_svm_voc.py


def check_image_pipeline(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    """Deviations in the size of the test images."""
    pipeline = nested(protocol, "test", "pipeline")
    if not isinstance(pipeline, list):
        return ["the size of the test images is not stated"]
    short = crop = interpolation = None
    for step in pipeline:
        kind = str(nested(step, "type")).rpartition(".")[2]
        if kind == "ResizeShortSide":
            short = nested(step, "size")
        elif kind == "CenterCropClips":
            crop = nested(step, "size")
        elif kind == "PillowResizeCenterCrop":
            short, crop = nested(step, "size"), nested(step, "crop")
            interpolation = nested(step, "interpolation")
    size = benchmark["size"]
    default = (_SHORT_SIDE.get(size, size), size, interpolation)
    wanted = _PIPELINES.get(benchmark["protocol"], default)
    if size not in _SHORT_SIDE:  # the images have this size
        short, crop = short or size, crop or size
    if (short, crop, interpolation) == wanted:
        return []
    return [f"test images {_words(short, crop, interpolation)} instead of {_words(*wanted)}"]


def _words(short: Any, crop: Any, interpolation: Any) -> str:
    """``resized to 256 (bilinear), cropped to 224``."""
    resized = "not resized" if short is None else f"resized to {short}"
    how = f" ({interpolation})" if interpolation else ""
    return f"{resized}{how}, {'not cropped' if crop is None else f'cropped to {crop}'}"


def check_linear_rate(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    """Deviations in the learning rate of a linear evaluation, as far as it is recorded."""
    rate = nested(protocol, "checkpoint", "training", "optimizer", "lr")
    method = benchmark["pretraining"]
    if benchmark["protocol"] != "linear" or method not in IMAGE_METHODS:
        return []
    usual = linear_rate(method)
    return [] if rate in (None, usual) else [f"a learning rate of {rate} instead of {usual:g}"]


def check_transfer(
    protocol: dict[str, Any], benchmark: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """Obstacles and deviations of a result on feature files (tools/transfer.py)."""
    obstacles: list[str] = []
    deviations: list[str] = []
    parts = nested(protocol, "images")
    counts = {
        name: count_of(nested(parts, name)) for name in ("train", "val") if nested(parts, name)
    }
    if "train" not in counts or None in counts.values():
        obstacles.append("the number of training images is not stated")
    else:
        total = sum(count for count in counts.values() if count is not None)
        published = IMAGE_TRAINING_SETS.get(benchmark["dataset"])
        check_size(total, published, "training images", obstacles, deviations)
    files = nested(protocol, "files")
    hashes = {
        nested(file, "protocol", "checkpoint", "sha256")
        for file in (files.values() if isinstance(files, dict) else ())
    }
    if len(hashes - {None}) > 1:
        obstacles.append("the features of the parts were made by different checkpoints")
    if benchmark["protocol"] == "many_shot":
        tried = nested(protocol, "validation")
        if not isinstance(tried, dict) or len(tried) != _VALUES_OF_C:
            number = len(tried) if isinstance(tried, dict) else 0
            how = f"chosen among {number} values" if number else "given"
            deviations.append(f"C {how}, the paper's chosen among {_VALUES_OF_C}")
    elif count_of(protocol.get("draws")) != _DRAWS:
        deviations.append(f"{protocol.get('draws')} draws instead of {_DRAWS}")
    return obstacles, deviations


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


@dataclass(frozen=True)
class Comparability:
    """Whether a result may be compared with a number of the paper.

    Attributes:
        obstacles: Why it may not; empty if it may.
        deviations: Where its evaluation differs from the paper's.
        notes: What a reader must know of the paper's number beside it.
    """

    obstacles: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def setting_of(paper: PaperResult) -> tuple[Any, ...]:
    """What a result must share with a number of the paper, apart from the split."""
    return tuple(getattr(paper, name) for name in _SETTING)


def is_setting_of(paper: PaperResult, result: Result) -> bool:
    """Whether a result states the setting of a number of the paper, apart from the split."""
    epochs = paper.pretraining_epochs
    return setting_of_result(result) == setting_of(paper) and epochs in (
        None,
        result.benchmark.get("pretraining_epochs"),
    )


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
    if benchmark["protocol"] in TRANSFER:
        found = check_transfer(result.protocol, benchmark)
        obstacles += found[0]
        deviations += found[1]
    if result.protocol.get("group_pattern") is not None:
        obstacles.append("retrieves within one set, leaving out the query's own group")
    deviations += _check_protocol(result.protocol, benchmark)
    deviations += _check_training(result.protocol, benchmark)
    notes = _notes(result.protocol, benchmark)
    return Comparability(tuple(obstacles), (*result.deviations, *deviations), tuple(notes))


def _notes(protocol: dict[str, Any], benchmark: dict[str, Any]) -> Iterator[str]:
    """Notes on the paper's numbers: the authors keep the epoch that is best on the test split.

    ``eztorch/configs/run/evaluation/linear_classifier`` of juliendenize/eztorch monitors the
    accuracy on it; a best epoch of our own is a deviation, with a text of its own.
    """
    on_images = benchmark["pretraining"] in IMAGE_METHODS
    if on_images and benchmark["protocol"] == "linear" and selection_of(protocol) is None:
        yield "paper: best epoch on the test split"


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
    return ONE_VIEW if count_of(protocol.get("views")) == 1 else None


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


def _check_origin(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    """Obstacles in network and training: what is unknown, or another than the recipe names."""
    problems = protocol.get("benchmark_problems")
    if not isinstance(problems, dict):
        return ["does not state what is known of its training"]
    entries: dict[str, list[str]] = {}
    for entry, why in problems.items():
        entries.setdefault(str(why), []).append(_ENTRIES.get(entry, str(entry)))
    found = [f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in entries.items()]
    trained = benchmark["protocol"] not in ("retrieval", *TRANSFER)
    if trained and count_of(protocol.get("epochs")) is None:
        found.append("the epochs of the training are not stated")
    epochs = benchmark.get("pretraining_epochs")
    known = not {"pretraining_epochs", "pretraining_schedule"} & set(problems)
    method = benchmark["pretraining"]
    usual = image_epochs(method) if method in IMAGE_METHODS else (PRETRAINING_EPOCHS,)
    if benchmark["pretrained_on"] is not None and known and epochs not in usual:
        words = " or ".join(map(str, usual))
        found.append(f"pretrained for {epochs} epochs, the paper's network for {words}")
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
    """Deviations in views, crop and search."""
    deviations = []
    image = benchmark["frames"] == 1
    if benchmark["protocol"] != "detection":
        expected = ONE_VIEW if image else VIEWS.get(benchmark["dataset"], DEFAULT_VIEWS)
        views = views_of(protocol)
        if views is None:
            deviations.append("views not stated")
        elif views != expected:
            deviations.append(f"{views[0]} x {views[1]} views")
    if image:
        deviations += check_image_pipeline(protocol, benchmark)
    crop = None if image else protocol.get("crop_size", protocol.get("test_size"))
    if crop is not None and crop != TEST_CROP.get(benchmark["size"]):
        deviations.append(f"test crop {crop}")
    frames = next(_settings_of(nested(protocol, "test", "pipeline"), "num_frames"), None)
    if frames is not None and frames != benchmark["frames"]:
        deviations.append(f"tested on {frames} frames")
    return deviations


def _check_training(protocol: dict[str, Any], benchmark: dict[str, Any]) -> list[str]:
    """Deviations in epochs, in how the epoch was chosen, in clips and batch."""
    deviations = check_linear_rate(protocol, benchmark)
    epochs = protocol.get("epochs")
    usual, usual_batch = _schedule(benchmark)
    chosen = selection_of(protocol)
    if chosen is not None:
        deviations.append(chosen)
    elif epochs is not None and usual is not None and epochs != usual:
        deviations.append(f"{epochs} epochs instead of {usual}")
    if benchmark["protocol"] not in ("retrieval", *TRANSFER):
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
        if None not in (batch, usual_batch) and batch != usual_batch:
            deviations.append(f"trained with a batch of {batch} instead of {usual_batch}")
        if planned is not None and chosen is None and epochs != planned:
            deviations.append(f"epoch {epochs} of a schedule of {planned}")
        record = nested(protocol, "pretrained", "training")
    else:
        record = nested(protocol, "checkpoint", "training")
    batch, usual = nested(record, "batch_size"), _pretraining_batch(benchmark)
    if None not in (batch, usual) and batch != usual:
        deviations.append(f"pretrained with a batch of {batch} instead of {usual}")
    return deviations


def _schedule(benchmark: dict[str, Any]) -> tuple[int | None, int | None]:
    """Epochs and batch of the training of an evaluation."""
    protocol, dataset = benchmark["protocol"], benchmark["dataset"]
    if protocol == "linear" and benchmark["pretraining"] in IMAGE_METHODS:
        return linear_schedule(benchmark["pretraining"], dataset)
    return EPOCHS.get((protocol, dataset)), BATCHES.get((protocol, dataset))


def _pretraining_batch(benchmark: dict[str, Any]) -> int | None:
    method = benchmark["pretraining"]
    if method in IMAGE_METHODS:
        return image_batch(method, benchmark["pretrained_on"])
    return _PRETRAINING_BATCH if str(method).startswith("sce") else None


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
