"""Decision whether a result may be shown next to a number of the paper, and with which remarks.

It may if the configs of its training runs equal the shipped recipes, except for paths, workers,
devices and logging. A check finds obstacles, deviations and notes. An obstacle makes a result
incomparable, for example a different training run, videos outside the published sets, or random
weights. A deviation is shown with the result, for example different views, a different crop, or a
few missing videos. A note explains something about the paper's number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any

from sce_video.engine.config.differences import PRECISION, differences
from sce_video.engine.config.snapshot import TEST, ConfigData
from sce_video.published.paper_results import (
    REQUIRED,
    TRANSFER,
    WITH_SPLITS,
    PublishedSize,
    Recipe,
    Setting,
    class_list_problem,
    evaluation_recipes,
    pretraining_recipe,
    size_of,
    variant_of,
)
from sce_video.reporting.result_files import Result, count_of
from sce_video.utils.records import JsonObject, at, lenient_record

#: Maximum share of failed samples for a result to count as a result on the test set.
_MAX_FAILED = 0.01
#: Number of values of C in linusericsson/ssl-transfer, linear.py.
_VALUES_OF_C = 45
#: Number of draws in salesforce/PCL, eval_svm_voc.py.
_DRAWS = 5
#: Names for the entries in a result's ``benchmark_problems``.
_ENTRIES = {
    "pretrained_on": "pretraining data",
    "pretraining": "pretraining method",
    "pretraining_epochs": "pretraining epochs",
}
#: Protocols that evaluate the weights of the pretraining run itself.
_OF_PRETRAINING = ("retrieval", *TRANSFER)
# Kinds of findings.
_OBSTACLE = "obstacle"
_DEVIATION = "deviation"
_NOTE = "note"
#: Findings of a check, as pairs of kind and text.
_Found = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Comparability:
    """Conclusion on whether a result may be compared with a number of the paper.

    Attributes:
        obstacles: Reasons why it may not be compared; empty if it may.
        deviations: Differences between its evaluation and the paper's evaluation.
        notes: Facts about the paper's number that a reader must know.
    """

    obstacles: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, found: Iterable[tuple[str, str]]) -> Comparability:
        """Sort the findings of checks by their kind."""
        items = list(found)
        kinds = (_OBSTACLE, _DEVIATION, _NOTE)
        return cls(*(tuple(text for k, text in items if k == kind) for kind in kinds))


def compare_with_paper(result: Result) -> Comparability:
    """Compare the training runs, data and test that a result states with the paper's."""
    if result.parts:
        return _compare_splits(result)
    if result.benchmark is None:
        return Comparability(("states no benchmark: own data or settings",))
    if missing := ", ".join(name for name in REQUIRED if name not in result.at("benchmark")):
        return Comparability((f"its benchmark does not state {missing}",))
    setting = result.benchmark
    return Comparability.of(
        chain(
            _check_mixups(result),
            _check_test_set(result, setting),
            _check_weights(result, setting),
            _check_transfer(result, setting),
            _check_trainings(result, setting),
            _check_test(result, setting),
        )
    )


def _compare_splits(result: Result) -> Comparability:
    """Compare every split. A deviation that all splits share is listed once, without a split."""
    compared = [(f"split {part.split}: ", compare_with_paper(part)) for part in result.parts]
    shared = set.intersection(*(set(found.deviations) for _, found in compared))
    deviations = (
        text if text in shared else split + text
        for split, found in compared
        for text in found.deviations
    )
    return Comparability(
        obstacles=tuple(split + text for split, found in compared for text in found.obstacles),
        deviations=tuple(dict.fromkeys(deviations)),
        notes=tuple(dict.fromkeys(text for _, found in compared for text in found.notes)),
    )


def compare_training(
    benchmark: Mapping[str, Any], split: int | None, training: JsonObject
) -> tuple[str, Comparability] | None:
    """Compare a training run that is about to begin with the recipe of the paper's number.

    Args:
        benchmark: Setting that the run's config claims to reproduce.
        split: Split of the data, if there are several.
        training: Record of the run (:func:`~sce_video.engine.checkpoint.record_training`) with its
            ``config``.

    Returns:
        The name of the recipe that the run should equal, and the differences from it; None if the
        paper has no number for such a training run.
    """
    setting, record = Setting.stated(benchmark), {"training": training}
    if setting.protocol == "pretraining":
        epochs = {"pretrained_on": setting.dataset, "pretraining_epochs": _planned(record)}
        origin = pretraining_recipe(replace(setting, **epochs))
        recipes = [] if origin is None else [origin]
    else:  # linear evaluation on images depends on the pretraining, which is not known yet
        recipes = [Recipe(name, {}) for name in evaluation_recipes(setting)]
    if not recipes:
        return None
    found = [list(_training_obstacles("training", record, recipe)) for recipe in recipes]
    best = min(found, key=lambda items: sum(kind == _OBSTACLE for kind, _ in items))
    done = "pretrained" if setting.protocol == "pretraining" else "trained"
    everything = [*best, *_data_obstacles(record, setting.dataset, split, done)]
    return recipes[found.index(best)].name, Comparability.of(everything)


def unit_of(protocol: JsonObject) -> str:
    """Return whether the samples of a test are ``images`` or ``videos``."""
    of_images = at(protocol, "benchmark.frames") == 1 or "Image" in str(at(protocol, "test.type"))
    return "images" if of_images else "videos"


def views_of(protocol: JsonObject) -> tuple[int, int] | None:
    """Return the numbers of clips and crops in a test, or None if the protocol lacks them.

    They are stated, or follow from the number of views.
    """
    views = count_of(at(protocol, "views"))
    for source in (protocol, at(protocol, "test")):
        clips, crops = (count_of(at(source, name)) for name in ("clips", "crops"))
        if clips and views and views % clips == 0:
            return clips, views // clips
        if clips and crops:
            return clips, crops
    return (1, 1) if views == 1 else None


def selection_of(protocol: JsonObject) -> str | None:
    """Return how the tested epoch was chosen; None if it was not chosen by a metric.

    An epoch counts as chosen on the test set unless ``chosen_on_test`` in the protocol is False.
    """
    if at(protocol, "checkpoint.selected", dict) is None:
        return None
    if at(protocol, "chosen_on_test") is not False:
        return "best epoch on the test set; the result is the last"
    return "best epoch on a validation list, not the last"


# -- configs -------------------------------------------------------------------------------


@cache
def _recipe(name: str, options: str = "{}") -> ConfigData:
    """Return the resolved config of a recipe with these options as JSON, which can be cached."""
    from sce_video.engine.config.load import recipe_config  # imported here, because it needs torch

    return recipe_config(name, json.loads(options))


def _check_trainings(result: Result, setting: Setting) -> _Found:
    """Check the training run of the weights, and the pretraining run before it."""
    pretraining = pretraining_recipe(setting)
    on_weights_of_pretraining = setting.protocol in _OF_PRETRAINING
    origin = result.at("checkpoint" if on_weights_of_pretraining else "pretrained")
    if not on_weights_of_pretraining:
        yield from _check_classifier(result, setting)
    if pretraining is not None and at(origin, "path") is not None:
        yield from _training_obstacles("pretraining", origin, pretraining)
        yield from _data_obstacles(origin, setting.pretrained_on, None, "pretrained")
        if at(origin, "pretrained") not in (None, "random"):
            yield _OBSTACLE, "the pretraining did not start from random weights"
        epoch, planned = at(origin, "epoch"), _planned(origin)
        if epoch != planned:
            yield _OBSTACLE, f"pretrained for {epoch} of {planned} epochs"
    # The authors keep the epoch that is best on the test split (juliendenize/eztorch,
    # ``eztorch/configs/run/evaluation/linear_classifier``). If one of our results does the same,
    # another check reports this.
    on_images = setting.frames == 1 and pretraining is not None
    if on_images and setting.protocol == "linear" and selection_of(result.protocol) is None:
        yield _NOTE, "paper: best epoch on the test split"


def _check_classifier(result: Result, setting: Setting) -> _Found:
    """Check the training of a classifier or detector."""
    checkpoint = result.at("checkpoint")
    for recipe in evaluation_recipes(setting)[: at(checkpoint, "path") is not None]:
        yield from _training_obstacles("training", checkpoint, Recipe(recipe, {}))
        yield from _data_obstacles(checkpoint, setting.dataset, result.split, "trained")
    trained, planned = result.count("epochs"), count_of(_planned(checkpoint))
    chosen = selection_of(result.protocol)
    if trained is None:
        yield _OBSTACLE, "the epochs of the training are not stated"
    elif chosen is not None:
        yield _DEVIATION, chosen
    elif planned is not None and trained != planned:
        yield _DEVIATION, f"epoch {trained} of a schedule of {planned}"


def _planned(provenance: Any) -> Any:
    return at(provenance, "training.config.train_cfg.max_epochs")


def _training_obstacles(what: str, provenance: Any, recipe: Recipe) -> _Found:
    """Check whether a checkpoint was trained with the recipe.

    Less precise arithmetic is a deviation, and a variant of the paper is a note.
    """
    config = at(provenance, "training.config", dict)
    if config is None:
        file = at(provenance, "path") or at(provenance, "source") or "the file"
        why = "has no record of its training (converted, or of other code)"
        yield _OBSTACLE, f"{what}: {file} {why}"
        return
    yield from _check_code(what, at(provenance, "training.foreign_classes"))
    other = []
    for difference in differences(config, _recipe(recipe.name, json.dumps(recipe.options))):
        variant = variant_of(recipe.name, difference.key, difference.ours)
        if variant is not None:
            yield _NOTE, f"{what}: {difference}, a variant ({variant.source})"
        elif difference.key == PRECISION:
            yield _DEVIATION, f"{what}: {difference}"
        else:
            other.append(str(difference))
    if other:
        options = ", ".join(f"{key}={value}" for key, value in recipe.options.items())
        name = f"{recipe.name} with {options}" if options else recipe.name
        yield _OBSTACLE, f"{what}: not the recipe {name}: {'; '.join(other)}"
    changes = _texts(at(provenance, "training.changed"))
    for kind, of_precision in ((_DEVIATION, True), (_OBSTACLE, False)):
        texts = [text for text in changes if text.startswith(f"{PRECISION}:") is of_precision]
        if texts:
            yield kind, f"{what}: changed when it was resumed: {'; '.join(texts)}"


def _texts(value: Any) -> list[str]:
    """Return a list's entries as text. A single value becomes a list, and None an empty list."""
    return [str(entry) for entry in (value if isinstance(value, list) else [value]) if entry]


def _check_test(result: Result, setting: Setting) -> _Found:
    """Check the config of the test."""
    # A feature file states the config it was made with, and the command defines the metrics.
    parts = (result.at("query"), result.at("bank"), *_feature_files(result))
    stored = (at(part, "protocol.resolved_config", dict) for part in parts)
    configs = [config for config in stored if config is not None]
    keys = [key for key in TEST if not (configs and key in ("test_cfg", "test_evaluator"))]
    configs = configs or [result.at("resolved_config", dict)]
    for recipe in evaluation_recipes(setting)[:1]:
        if configs[0] is None:
            yield _OBSTACLE, "states no resolved config of its test"
            return
        found = (d for config in configs for d in differences(config, _recipe(recipe), keys))
        for difference in dict.fromkeys(found):
            own_code = difference.key.startswith("custom_imports.")
            yield _OBSTACLE if own_code else _DEVIATION, f"test: {difference}"


# -- data ----------------------------------------------------------------------------------


def _check_mixups(result: Result) -> _Found:
    """Check for contradictory numbers, foreign code, and lists that are used twice."""
    for fault in result.faults:
        yield _OBSTACLE, f"the numbers contradict each other: {fault}"
    yield from _check_code("test", result.at("foreign_classes"))
    tested = result.at("test.ann_sha256")
    if tested is None:
        return
    for what, name in (("trained", "checkpoint"), ("pretrained", "pretrained")):
        if tested == result.at(f"{name}.training.data.ann_sha256"):
            yield _OBSTACLE, f"tested on the list that the network was {what} on"
    if tested == result.at("bank.ann_sha256"):
        yield _OBSTACLE, "the gallery is the list of the queries"


def _check_code(what: str, classes: Any) -> _Found:
    if listed := ", ".join(_texts(classes)):
        yield _OBSTACLE, f"{what}: with classes of other packages: {listed}"


def _check_test_set(result: Result, setting: Setting) -> _Found:
    """Check the test set of a result that states its benchmark."""
    dataset, protocol = setting.dataset, setting.protocol
    for what, stated in (("measured", result.at("dataset")), ("tested", result.at("test.name"))):
        if stated not in (None, dataset):
            yield _OBSTACLE, f"{what} on {stated}, its benchmark is {dataset}"
    if result.split is None:
        yield _DEVIATION, "split not stated"
    tested, failed = result.count("videos"), result.count("failures") or 0
    unit, published = unit_of(result.protocol), size_of("test", dataset, result.split or 1)
    if tested is None:
        yield _OBSTACLE, f"the number of {unit} is not stated"
        return
    classes, wanted = result.count("test.num_classes"), published and published.classes
    if None not in (classes, wanted) and classes != wanted:
        yield _OBSTACLE, f"tested on {classes:,} classes, {dataset} has {wanted:,}"
    problem = class_list_problem(str(dataset), result.at("test.classes"))
    if problem:
        yield _OBSTACLE, f"test set: {problem}"
    if protocol == "detection":  # samples are key frames, but the published size counts films
        yield from _check_size(result.count("test.films"), published, "films")
    else:
        yield from _check_size(tested + failed, published, unit)
    if failed > _MAX_FAILED * (tested + failed):
        yield _OBSTACLE, f"{failed:,} of {tested + failed:,} {unit} failed"
    elif failed:
        yield _DEVIATION, f"{failed:,} {unit} failed" if failed > 1 else f"1 {unit[:-1]} failed"
    if protocol == "retrieval":
        size, lost = result.count("bank_videos"), result.count("bank_failures") or 0
        gallery = size_of("training", dataset, result.split or 1)
        yield from _check_size(None if size is None else size + lost, gallery, "gallery videos")
        if size is not None and lost:
            yield _DEVIATION, f"{lost:,} gallery videos failed"


def is_published_set(result: Result) -> bool:
    """Return whether a result was measured on the published test set that it claims."""
    part = result.parts[0] if result.parts else result
    setting = part.benchmark
    if setting is None or setting.protocol is None:
        return False
    if size_of("test", setting.dataset, part.split or 1) is None:
        return False
    return all(kind != _OBSTACLE for kind, _ in _check_test_set(part, setting))


def _data_obstacles(provenance: Any, dataset: Any, split: int | str | None, what: str) -> _Found:
    """Check whether the training data are the set ``dataset``, if its size is published."""
    from sce_video.engine.checkpoint import SampleFacts  # imported here, because it needs torch

    record = at(provenance, "training.data", dict)
    size = size_of("training", dataset, (split or 1) if dataset in WITH_SPLITS else "val")
    if what == "pretrained":  # some datasets use other images for pretraining
        size = size_of("pretraining", dataset) or size
    if record is None or size is None:
        return
    data = lenient_record(SampleFacts, record)
    count, unit = data.samples, "images" if data.kind == "image" else "videos"
    if data.films is not None:  # AVA's samples are key frames, but its size counts films
        count, unit = data.films, "films"
    shown = f"an unknown number of {unit}" if count is None else f"{count:,} {unit}"
    shown += f" in {data.num_classes} classes" if data.num_classes else ""
    shown += f" of {place}" if (place := data.ann_file or data.data_root) else ""
    shown += f", split {data.split}" if data.split else ""
    wrong_classes = size.classes is not None and data.num_classes != size.classes
    wrong_set = (data.name or dataset) != dataset
    if count is None or not size.contains(count) or wrong_classes or wrong_set:
        wanted = size.published() + (f" in {size.classes} classes" if size.classes else "")
        yield _OBSTACLE, f"{what} on {shown}; {dataset} has {wanted}"
    elif (problem := class_list_problem(dataset, data.classes)) is not None:
        yield _OBSTACLE, f"{what} on {shown}: {problem}"


def _check_size(count: int | None, published: PublishedSize | None, what: str) -> _Found:
    """Check whether a set has its published size."""
    if count is None:
        yield _OBSTACLE, f"the number of {what} is not stated"
    elif published is None:
        yield _DEVIATION, f"{count:,} {what}, no published number to check against"
    elif not published.low <= count <= published.high:
        kind = _DEVIATION if published.contains(count) else _OBSTACLE
        yield kind, f"{count:,} {what}, published {published.published()}"


# -- weights, transfer ---------------------------------------------------------------------


def _check_weights(result: Result, setting: Setting) -> _Found:
    """Check which weights were evaluated, and whether their origin is known."""
    problems = result.at("benchmark_problems", dict)
    if problems is None:
        yield _OBSTACLE, "does not state what is known of its training"
        problems = {}
    for why in dict.fromkeys(map(str, problems.values())):
        same = [str(entry) for entry, text in problems.items() if str(text) == why]
        names = dict.fromkeys(_ENTRIES.get(entry, entry) for entry in same)
        yield _OBSTACLE, f"{', '.join(names)}: {why}"
    checkpoint, pretrained = result.at("checkpoint"), result.at("pretrained")
    for what, file in (("checkpoint", checkpoint), ("pretraining", pretrained)):
        if at(file, "other_weights"):
            yield _OBSTACLE, f"{what}: its weights are not those that its training wrote"
    if isinstance(checkpoint, dict) and at(checkpoint, "path") is None:
        yield _OBSTACLE, f"weights: {checkpoint.get('source', 'no checkpoint')}"
    if pretrained == "random" and setting.protocol != "supervised":
        yield _OBSTACLE, "trained from random weights, not pretrained"
    if _of_several([result.at("query"), result.at("bank")]):
        yield _OBSTACLE, "queries and gallery were embedded by different checkpoints"
    if result.at("fusion") is not None:
        yield _OBSTACLE, f"fuses the scores of {result.count('fusion') or 'several'} models"
    if result.at("group_pattern") is not None:
        yield _OBSTACLE, "retrieves within one set, leaving out the query's own group"


def _feature_files(result: Result) -> list[Any]:
    """Return the descriptions of the feature files in a result of ``sce-video transfer``."""
    return list((result.at("files", dict) or {}).values())


def _of_several(files: list[Any]) -> bool:
    """Return whether feature files come from different checkpoints."""
    hashes = {at(file, "protocol.checkpoint.sha256") for file in files}
    return len(hashes - {None}) > 1


def _check_transfer(result: Result, setting: Setting) -> _Found:
    """Check a result of ``sce-video transfer``, which uses feature files."""
    if setting.protocol not in TRANSFER:
        return
    train, val = (result.count(f"images.{part}") for part in ("train", "val"))
    total = None if not train else train + (val or 0)
    published = size_of("training", setting.dataset)
    yield from _check_size(total, published, "training images")
    if _of_several(_feature_files(result)):
        yield _OBSTACLE, "the features of the parts were made by different checkpoints"
    if setting.protocol == "many_shot":
        number = len(result.at("validation", dict) or {})
        if number != _VALUES_OF_C:
            how = f"chosen among {number} values" if number else "given"
            yield _DEVIATION, f"C {how}, the paper's chosen among {_VALUES_OF_C}"
    elif result.count("draws") != _DRAWS:
        yield _DEVIATION, f"{result.at('draws')} draws instead of {_DRAWS}"
