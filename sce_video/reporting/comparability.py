"""Decides whether a result may be shown next to a number of the paper, and with which remarks.

It may if the resolved configs that trained its weights equal those of the shipped recipes, but for
paths, workers, devices and logging. Two lists are made of every result. Obstacles make it
incomparable: another training, other videos than the published sets, random weights. Deviations
leave it comparable but are shown with the number: other views, another crop, a few videos missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sce_video.engine.config.snapshot import TEST, TRAINING, differences
from sce_video.engine.recipes import recipe_names
from sce_video.published.paper_results import PaperResult
from sce_video.published.recipes import evaluation_recipe, pretraining_recipe
from sce_video.published.sets import (
    IMAGE_TEST_SETS,
    IMAGE_TRAINING_SETS,
    PRETRAINING_SETS,
    TEST_SETS,
    TRAINING_SETS,
    TRANSFER,
    WITH_SPLITS,
    PublishedSize,
    class_list_problem,
)
from sce_video.reporting.result_files import Result, count_of, nested

_MAX_FAILED = 0.01  # fraction of failed samples up to which a result still counts for the test set
_VALUES_OF_C = 45  # of linusericsson/ssl-transfer, linear.py
_DRAWS = 5  # of salesforce/PCL, eval_svm_voc.py
_SETTING = ("protocol", "dataset", "network", "frames", "size", "pretrained_on", "pretraining")
#: Entries of a result's ``benchmark_problems`` in words.
_ENTRIES = {
    "pretrained_on": "pretraining data",
    "pretraining": "pretraining method",
    "pretraining_epochs": "pretraining epochs",
}
#: Protocols that evaluate the weights of the pretraining itself.
_OF_PRETRAINING = ("retrieval", *TRANSFER)


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


def compare(result: Result) -> Comparability:
    """Obstacles and deviations of a result.

    Obstacles: the setting is not stated; a config that trained the weights is unknown or not the
    recipe's; the training data or the test set are not the published ones; more than 1 % of the
    videos failed, or the weights are random. What else differs (the test's config, an epoch chosen
    by its metrics, some videos missing or failed) is a deviation.
    """
    if result.parts:
        compared = [(part.split, compare(part)) for part in result.parts]
        return Comparability(
            tuple(f"split {n}: {what}" for n, part in compared for what in part.obstacles),
            (*result.deviations, *dict.fromkeys(_deviations_of_parts(compared))),
        )
    protocol, benchmark = result.protocol, result.benchmark
    if not benchmark:
        return Comparability(("states no benchmark: own data or settings",))
    missing = [name for name in _SETTING if name not in benchmark]
    if missing:
        return Comparability((f"its benchmark does not state {', '.join(missing)}",))
    obstacles, deviations = check_test_set(result)
    obstacles += _unknown(protocol)
    obstacles += _check_weights(protocol, benchmark)
    if benchmark["protocol"] in TRANSFER:
        found = _check_transfer(protocol, benchmark)
        obstacles += found[0]
        deviations += found[1]
    if protocol.get("group_pattern") is not None:
        obstacles.append("retrieves within one set, leaving out the query's own group")
    for check in (_check_trainings, _check_test):
        found = check(result)
        obstacles += found[0]
        deviations += found[1]
    notes = _notes(protocol, benchmark)
    return Comparability(tuple(obstacles), (*result.deviations, *deviations), tuple(notes))


def setting_of(paper: PaperResult) -> tuple[Any, ...]:
    """What a result must share with a number of the paper, apart from the split."""
    return tuple(getattr(paper, name) for name in _SETTING)


def is_setting_of(paper: PaperResult, result: Result) -> bool:
    """Whether a result states the setting of a number of the paper, apart from the split."""
    stated = tuple(result.benchmark.get(name) for name in _SETTING)
    epochs = paper.pretraining_epochs
    return stated == setting_of(paper) and epochs in (
        None,
        result.benchmark.get("pretraining_epochs"),
    )


def unit_of(protocol: dict[str, Any]) -> str:
    """``images`` or ``videos``: what the samples of a test are."""
    frames = nested(protocol, "benchmark", "frames")
    kind = str(nested(protocol, "test", "type"))
    return "images" if frames == 1 or "Image" in kind else "videos"


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
    return (1, 1) if count_of(protocol.get("views")) == 1 else None


def percentage_problem(result: Result, metrics: Sequence[str]) -> str | None:
    """Why these metrics cannot be shown as percentages, or None if they can."""
    for name in metrics:
        value = result.metric(name)
        if value is None:
            return f"has no {name}"
        if not (math.isfinite(value) and 0 <= value <= 1):
            return f"{name} is {value:g}, which is not a fraction from 0 to 1"
    return None


def selection_of(protocol: dict[str, Any]) -> str | None:
    """How the tested epoch was chosen, in words; None if it was not chosen by its metrics."""
    if not isinstance(nested(protocol, "checkpoint", "selected"), dict):
        return None
    if protocol.get("chosen_on_test") is not False:
        return "best epoch on the test set; the result is the last"
    return "best epoch on a validation list, not the last"


# -- configs -------------------------------------------------------------------------------


@cache
def _recipe(name: str, options: tuple[tuple[str, Any], ...] = ()) -> dict[str, Any]:
    lists = {key: list(v) if isinstance(v, tuple) else v for key, v in options}
    from sce_video.engine.config.load import recipe_config  # here, since it imports torch

    return recipe_config(name, lists)


_recipe_names = cache(recipe_names)


def _recipes(benchmark: dict[str, Any]) -> tuple[str | None, tuple[str, dict[str, Any]] | None]:
    """Recipe of the evaluation, and that of the pretraining with its options."""
    clip = benchmark["network"], benchmark["frames"], benchmark["size"]
    method, epochs = benchmark["pretraining"], benchmark.get("pretraining_epochs")
    evaluation = evaluation_recipe(benchmark["protocol"], benchmark["dataset"], *clip, method)
    pretraining = pretraining_recipe(method, benchmark["pretrained_on"], *clip, epochs)
    # A file of results may state any network: only shipped recipes are read.
    known = _recipe_names()
    return (
        evaluation if evaluation in known else None,
        pretraining if pretraining is not None and pretraining[0] in known else None,
    )


def _check_trainings(result: Result) -> tuple[list[str], list[str]]:
    """Obstacles in how the weights were trained, and pretrained before; and deviations."""
    protocol, benchmark = result.protocol, result.benchmark
    evaluation, pretraining = _recipes(benchmark)
    checkpoint = nested(protocol, "checkpoint")
    origin = checkpoint
    obstacles: list[str] = []
    deviations: list[str] = []
    if benchmark["protocol"] not in _OF_PRETRAINING:
        origin = protocol.get("pretrained")
        if evaluation is not None and nested(checkpoint, "path") is not None:
            obstacles += _training_obstacles("training", checkpoint, evaluation, {})
            obstacles += _data_obstacles(checkpoint, benchmark["dataset"], result.split, "trained")
        epochs, planned = (count_of(n) for n in (protocol.get("epochs"), _planned(checkpoint)))
        chosen = selection_of(protocol)
        if epochs is None:
            obstacles.append("the epochs of the training are not stated")
        elif chosen is not None:
            deviations.append(chosen)
        elif planned is not None and epochs != planned:
            deviations.append(f"epoch {epochs} of a schedule of {planned}")
    if pretraining is not None and isinstance(origin, dict) and origin.get("path") is not None:
        obstacles += _training_obstacles("pretraining", origin, *pretraining)
        obstacles += _data_obstacles(origin, benchmark["pretrained_on"], None, "pretrained")
        if origin.get("pretrained") not in (None, "random"):
            obstacles.append("the pretraining did not start from random weights")
        if origin.get("epoch") != _planned(origin):
            words = f"{origin.get('epoch')} of {_planned(origin)} epochs"
            obstacles.append(f"pretrained for {words}")
    return obstacles, deviations


def _planned(provenance: Any) -> Any:
    return nested(provenance, "training", "config", "train_cfg", "max_epochs")


def _training_obstacles(
    what: str, provenance: Any, recipe: str, options: dict[str, Any]
) -> Iterator[str]:
    """Where a checkpoint's training is not that of a recipe with the options of a row."""
    config = nested(provenance, "training", "config")
    if not isinstance(config, dict):
        file = nested(provenance, "path") or nested(provenance, "source") or "the file"
        yield f"{what}: {file} has no record of its training (converted, or of other code)"
        return
    frozen = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in options.items())
    found = differences(config, _recipe(recipe, frozen), TRAINING)
    if found:
        changed = f" with {', '.join(f'{k}={v}' for k, v in options.items())}" if options else ""
        yield f"{what}: not the recipe {recipe}{changed}: {'; '.join(found)}"
    changed_later = nested(provenance, "training", "changed")
    if changed_later:
        listed = changed_later if isinstance(changed_later, list) else [changed_later]
        yield f"{what}: changed when it was resumed: {'; '.join(map(str, listed))}"


def _check_test(result: Result) -> tuple[list[str], list[str]]:
    """Obstacles and deviations in the config of the test."""
    protocol = result.protocol
    recipe, _ = _recipes(result.benchmark)
    if recipe is None:
        return [], []
    files = protocol.get("files")
    parts = [protocol.get(name) for name in ("query", "bank")]
    parts += files.values() if isinstance(files, dict) else ()
    configs = [nested(part, "protocol", "resolved_config") for part in parts]
    of_files = [config for config in configs if isinstance(config, dict)]
    configs = of_files or [protocol.get("resolved_config")]
    if not isinstance(configs[0], dict):
        return ["states no resolved config of its test"], []
    # A file of features says how they were made; its metrics are those of the tool.
    keys = [key for key in TEST if not (of_files and key in ("test_cfg", "test_evaluator"))]
    found = (d for config in configs for d in differences(config, _recipe(recipe), keys))
    return [], [f"test: {difference}" for difference in dict.fromkeys(found)]


# -- data ----------------------------------------------------------------------------------


def check_test_set(result: Result) -> tuple[list[str], list[str]]:
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
            _check_size(films, published, "films", obstacles, deviations)
    else:
        _check_size(tested + failed, published, unit, obstacles, deviations)
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
            _check_size(size + lost, gallery, "gallery videos", obstacles, deviations)
            if lost:
                deviations.append(f"{lost:,} gallery videos failed")
    return obstacles, deviations


def is_published_set(result: Result) -> bool:
    """Whether a result was measured on the published test set that it names."""
    part = result.parts[0] if result.parts else result
    named = {"dataset", "protocol"} <= set(part.benchmark)
    split = 1 if part.split is None else part.split
    if not named or _published_test_set(part.benchmark["dataset"], split) is None:
        return False
    return not check_test_set(part)[0]


def describe_data(data: dict[str, Any]) -> str:
    """``36 videos in 4 classes of /path`` from the description of a data set's samples."""
    count, unit = data.get("samples"), "images" if data.get("kind") == "image" else "videos"
    if isinstance(data.get("films"), int):
        count, unit = data["films"], "films"
    words = f"{count:,} {unit}" if isinstance(count, int) else f"an unknown number of {unit}"
    if data.get("num_classes"):
        words += f" in {data['num_classes']} classes"
    place = data.get("ann_file") or data.get("data_root")
    words += f" of {place}" if place else ""
    return f"{words}, split {data['split']}" if data.get("split") else words


def _data_obstacles(
    provenance: Any, dataset: Any, split: int | str | None, what: str
) -> Iterator[str]:
    """Why the training data are not the named set; sets without published size are not checked."""
    data = nested(provenance, "training", "data")
    key = dataset, (split or 1) if dataset in WITH_SPLITS else "val"
    size = TRAINING_SETS.get(key) or IMAGE_TRAINING_SETS.get(dataset)
    if what == "pretrained":  # the unlabelled images, where a pretraining has those
        size = PRETRAINING_SETS.get(dataset, size)
    if not isinstance(data, dict) or size is None:
        return
    samples = data.get("films", data.get("samples"))
    wrong_classes = size.classes is not None and data.get("num_classes") != size.classes
    wrong_set = data.get("name", dataset) != dataset
    if not isinstance(samples, int) or not size.contains(samples) or wrong_classes or wrong_set:
        wanted = size.published() + (f" in {size.classes} classes" if size.classes else "")
        yield f"{what} on {describe_data(data)}; {dataset} has {wanted}"
    elif (problem := class_list_problem(dataset, data.get("classes"))) is not None:
        yield f"{what} on {describe_data(data)}: {problem}"


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


# -- weights, transfer, notes --------------------------------------------------------------


def _unknown(protocol: dict[str, Any]) -> list[str]:
    """Obstacles in what is not known of the pretraining."""
    problems = protocol.get("benchmark_problems")
    if not isinstance(problems, dict):
        return ["does not state what is known of its training"]
    entries: dict[str, list[str]] = {}
    for entry, why in problems.items():
        entries.setdefault(str(why), []).append(_ENTRIES.get(entry, str(entry)))
    return [f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in entries.items()]


def _check_weights(protocol: dict[str, Any], benchmark: dict[str, Any]) -> Iterator[str]:
    """Obstacles in what was evaluated."""
    checkpoint = protocol.get("checkpoint")
    if isinstance(checkpoint, dict) and checkpoint.get("path") is None:
        yield f"weights: {checkpoint.get('source', 'no checkpoint')}"
    if protocol.get("pretrained") == "random" and benchmark["protocol"] != "supervised":
        yield "trained from random weights, not pretrained"
    hashes = {
        nested(protocol, part, "protocol", "checkpoint", "sha256") for part in ("query", "bank")
    }
    if len(hashes - {None}) > 1:
        yield "queries and gallery were embedded by different checkpoints"
    fused = protocol.get("fusion")
    if fused is not None:
        yield f"fuses the scores of {count_of(fused) or 'several'} models"


def _check_transfer(
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
        _check_size(total, published, "training images", obstacles, deviations)
    files = nested(protocol, "files")
    hashes = {
        nested(file, "protocol", "checkpoint", "sha256")
        for file in (files.values() if isinstance(files, dict) else ())
    }
    if len(hashes - {None}) > 1:
        obstacles.append("the features of the parts were made by different checkpoints")
    if benchmark["protocol"] == "many_shot":
        tried = nested(protocol, "validation")
        number = len(tried) if isinstance(tried, dict) else 0
        if number != _VALUES_OF_C:
            how = f"chosen among {number} values" if number else "given"
            deviations.append(f"C {how}, the paper's chosen among {_VALUES_OF_C}")
    elif count_of(protocol.get("draws")) != _DRAWS:
        deviations.append(f"{protocol.get('draws')} draws instead of {_DRAWS}")
    return obstacles, deviations


def _notes(protocol: dict[str, Any], benchmark: dict[str, Any]) -> Iterator[str]:
    """Notes on the paper's numbers: the authors keep the epoch that is best on the test split.

    ``eztorch/configs/run/evaluation/linear_classifier`` of juliendenize/eztorch monitors the
    accuracy on it; a best epoch of our own is a deviation, with a text of its own.
    """
    on_images = benchmark["frames"] == 1 and _recipes(benchmark)[1] is not None
    if on_images and benchmark["protocol"] == "linear" and selection_of(protocol) is None:
        yield "paper: best epoch on the test split"


def _deviations_of_parts(compared: Sequence[tuple[Any, Comparability]]) -> Iterator[str]:
    """Deviations common to all splits once, the others prefixed with the split."""
    for split, part in compared:
        for deviation in part.deviations:
            everywhere = all(deviation in other.deviations for _, other in compared)
            yield deviation if everywhere else f"split {split}: {deviation}"
