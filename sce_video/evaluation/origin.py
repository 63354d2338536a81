"""What is known of a result's training: network, pretraining data, method and epochs.

A recipe names the result of the paper that it reproduces. Options, other checkpoints and other
files change what is really measured, so the claim of a recipe counts only where the records of the
checkpoints (:func:`~sce_video.engine.training_record.record_training`) confirm it.
"""

from __future__ import annotations

from typing import Any

from sce_video.evaluation.recorded_settings import UNKNOWN, crop_size, num_frames, settings_of
from sce_video.published import (
    IMAGE_TRAINING_SETS,
    METHODS,
    NETWORKS,
    PRETRAINING_SETS,
    TRAINING_SETS,
    WITH_SPLITS,
    PublishedSize,
    class_list_problem,
    image_settings,
)

#: What a result states of its pretraining, beside data set, network and clip of the evaluation.
_ENTRIES = ("pretrained_on", "pretraining", "pretraining_epochs")
#: Protocols of tools/transfer.py on feature files, whose recipes name no test set.
TRANSFER = ("many_shot", "low_shot_svm")
#: Protocols that evaluate the weights of the pretraining itself.
_OF_PRETRAINING = ("retrieval", "pretraining", *TRANSFER)
#: Entries of a training's record that are read here.
_RECORD = {
    "network": dict,
    "model": dict,
    "views": list,
    "pipeline": list,
    "data": dict,
    "changed": list,
}
#: Entries that older records do not have.
_LATER = ("model_parts", "model_defaults", "schedules", "optimizer")
#: Entries that a method's settings are read from.
_OF_METHOD = {"model", "views", "pipeline", "network", *_LATER}
#: What a data set's ``kind`` counts.
_UNITS = {"image": "images"}
#: Stages that a protocol freezes: all, or none.
_FROZEN = {"linear": 4, "attentive_probe": 4, "finetune": -1, "supervised": -1, "detection": -1}
#: Arguments of a backbone that make no other network, or that its number of parameters tells.
_SAME_NETWORK = (
    *("type", "depth", "parameters", "base_channels", "in_channels"),
    *("gating", "stem", "frozen_stages", "norm_eval", "zero_init_residual", "channels_last"),
)
_DEFAULTS = {"last_stage_stride": 2, "last_stage_dilation": 1, "init_cfg": None}


def confirmed_benchmark(
    benchmark: dict[str, Any],
    split: int | str | None,
    checkpoint: dict[str, Any],
    network: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, str]]:
    """The benchmark of a recipe with what is known of the training in place of what it claims.

    Args:
        benchmark: Claim of the recipe of the evaluation.
        split: Split of the recipe.
        checkpoint: Provenance of the evaluated weights, see
            :func:`~sce_video.engine.checkpoint.describe_checkpoint_file`.
        network: The evaluated backbone, see
            :func:`~sce_video.engine.training_record.describe_network`.

    Returns:
        The benchmark, in which ``network``, ``pretrained_on``, ``pretraining`` and
        ``pretraining_epochs`` are the real ones: None if not pretrained, ``"unknown"`` if the
        claim is not confirmed. And the reason for each entry that is unknown or contradicted.
    """
    problems: dict[str, str] = {}
    known = dict(benchmark)
    name = benchmark.get("network")
    problem = _network_problem(name, network)
    if problem is not None:
        known["network"], problems["network"] = UNKNOWN, problem
    if _is_random(checkpoint):
        return {**known, **dict.fromkeys(_ENTRIES)}, problems
    protocol = benchmark.get("protocol")
    origin: Any = checkpoint
    if protocol not in _OF_PRETRAINING:
        origin = checkpoint.get("pretrained")
        problem = _training_problem(checkpoint, benchmark, split)
        if problem is not None:
            problems["training"] = problem
    if origin == "random":
        return {**known, **dict.fromkeys(_ENTRIES)}, problems
    if isinstance(origin, dict):
        values, found = _origin_claims(origin), _origin_problems(origin, benchmark)
    else:
        reason = f"{_file(checkpoint)} does not state what its training started from"
        values, found = dict.fromkeys(_ENTRIES, UNKNOWN), dict.fromkeys(_ENTRIES, reason)
    known |= {key: UNKNOWN if key in found else value for key, value in values.items()}
    return known, problems | found


def _file(provenance: dict[str, Any]) -> str:
    return str(provenance.get("path") or provenance.get("source") or "the file")


def _is_random(checkpoint: dict[str, Any]) -> bool:
    return checkpoint.get("path") is None and str(checkpoint.get("source")).startswith("random")


def _origin_claims(origin: dict[str, Any]) -> dict[str, Any]:
    """What the recipe of the pretraining names, and the epochs that were trained."""
    declared = origin.get("benchmark")
    declared = declared if isinstance(declared, dict) else {}
    return {
        "pretrained_on": str(declared.get("dataset", UNKNOWN)),
        "pretraining": str(declared.get("pretraining", declared.get("protocol", UNKNOWN))),
        "pretraining_epochs": origin.get("epoch", UNKNOWN),
    }


def _record(provenance: dict[str, Any]) -> dict[str, Any] | None:
    """The record of a checkpoint's training; None without one, or if a file has a malformed one."""
    record = provenance.get("training")
    if not isinstance(record, dict):
        return None
    right = all(isinstance(record.get(name), kind) for name, kind in _RECORD.items())
    right = right and all(isinstance(record.get(name, {}), dict) for name in _LATER)
    return record if right else None


def _origin_problems(origin: dict[str, Any], benchmark: dict[str, Any]) -> dict[str, str]:
    """Why the claims on the pretraining are not confirmed, by the entry of the benchmark."""
    record = _record(origin)
    if record is None:
        reason = f"{_file(origin)} has no record of its training (converted, or of other code)"
        return dict.fromkeys(_ENTRIES, reason)
    claims = _origin_claims(origin)
    found = {
        "pretrained_on": _data_problem(record, claims["pretrained_on"], None, pretraining=True),
        "pretraining": _method_problem(record, claims["pretraining"], claims["pretrained_on"]),
        "pretraining_epochs": None
        if isinstance(origin.get("epoch"), int)
        else f"{_file(origin)} does not state its epoch",
        "pretraining_schedule": _schedule_problem(origin, record),
        "pretraining_start": None
        if origin.get("pretrained") in (None, "random")
        else "the pretraining did not start from random weights",
        "pretraining_clip": _clip_problem(record, benchmark),
        "pretraining_network": _network_problem(
            benchmark.get("network"), record["network"], strict=True
        ),
    }
    return {key: why for key, why in found.items() if why is not None}


def _network_problem(name: Any, network: dict[str, Any], strict: bool = False) -> str | None:
    """Why a backbone is not the paper's of that name; other names are not checked.

    Args:
        name: ``r3d18``, ...
        network: Config and ``parameters``.
        strict: No other strides than in pretraining, no weights from elsewhere.
    """
    if name not in NETWORKS:
        return None
    kind, depth, parameters = NETWORKS[name]
    found = network.get("parameters")
    own = str(network.get("type", "a network of unknown type")).rpartition(".")[2]
    if (own, network.get("depth")) != (kind, depth) or found != parameters:
        size = f"{found:,} parameters" if isinstance(found, int) else "an unknown size"
        return f"{own} of {size}, {name} is {kind} of {parameters:,}"
    other = {k: v for k, v in network.items() if k not in _SAME_NETWORK and v != _DEFAULTS.get(k)}
    return f"{name} with {_settings(other)}" if strict and other else None


def _data_problem(
    record: dict[str, Any], dataset: Any, split: int | str | None, pretraining: bool = False
) -> str | None:
    """Why the training data are not the named set; sets without published size are not checked."""
    data = record["data"]
    size = _published(dataset, split, pretraining)
    if dataset == UNKNOWN:
        return f"its recipe names no data set; trained on {describe_data(data)}"
    if "data" in record["changed"]:
        return "the data changed when the training was resumed"
    if size is None:
        return None
    samples = data.get("films", data.get("samples"))
    wanted = size.published() + (f" in {size.classes} classes" if size.classes else "")
    wrong_classes = size.classes is not None and data.get("num_classes") != size.classes
    wrong_set = data.get("name", dataset) != dataset
    if not isinstance(samples, int) or not size.contains(samples) or wrong_classes or wrong_set:
        return f"trained on {describe_data(data)}; {dataset} has {wanted}"
    problem = class_list_problem(dataset, data.get("classes"))
    return problem and f"trained on {describe_data(data)}: {problem}"


def _published(
    dataset: Any, split: int | str | None, pretraining: bool = False
) -> PublishedSize | None:
    """Size of a training set; that of the unlabelled images where a pretraining has those."""
    if pretraining and dataset in PRETRAINING_SETS:
        return PRETRAINING_SETS[dataset]
    videos = TRAINING_SETS.get((dataset, (split or 1) if dataset in WITH_SPLITS else "val"))
    return videos or IMAGE_TRAINING_SETS.get(dataset)


def describe_data(data: dict[str, Any]) -> str:
    """``36 videos in 4 classes of /path`` from the description of a data set's samples."""
    count, unit = data.get("samples"), _UNITS.get(str(data.get("kind")), "videos")
    if isinstance(data.get("films"), int):
        count, unit = data["films"], "films"
    words = f"{count:,} {unit}" if isinstance(count, int) else f"an unknown number of {unit}"
    if data.get("num_classes"):
        words += f" in {data['num_classes']} classes"
    place = data.get("ann_file") or data.get("data_root")
    words += f" of {place}" if place else ""
    return f"{words}, split {data['split']}" if data.get("split") else words


def _method_problem(record: dict[str, Any], method: Any, dataset: Any) -> str | None:
    """Why the training is not by the named method with the paper's settings."""
    kind = str(record["model"].get("type", UNKNOWN)).rpartition(".")[2]
    if method == UNKNOWN:
        return f"its recipe names no method; trained with {kind}"
    changed = sorted(_OF_METHOD & {str(name) for name in record["changed"]})
    if changed:
        return f"{', '.join(changed)} changed when the training was resumed"
    wanted = METHODS.get(method) or image_settings(method, dataset, record.get("max_epochs"))
    if wanted is None:  # a method of one's own: at least its class has that name
        same = str(method).partition("_")[0].lower() == kind.lower()
        return None if same else f"trained with {kind}, its recipe names {method}"
    settings = settings_of(record)
    wrong = {
        name: settings.get(name, UNKNOWN)
        for name, value in wanted.items()
        if settings.get(name, UNKNOWN) != value
    }
    if not wrong:
        return None
    paper = {name: wanted[name] for name in wrong}
    return f"trained with {_settings(wrong)}, {method} has {_settings(paper)}"


def _clip_problem(record: dict[str, Any], benchmark: dict[str, Any]) -> str | None:
    """Why the pretraining had other clips than the recipe of the evaluation."""
    frames, size = num_frames(record), crop_size(record)
    wanted = benchmark.get("frames"), benchmark.get("size")
    if (frames, size) == wanted:
        return None
    found = [UNKNOWN if value is None else value for value in (frames, size)]
    return f"pretrained on clips of {found[0]} x {found[1]}², not of {wanted[0]} x {wanted[1]}²"


def _schedule_problem(origin: dict[str, Any], record: dict[str, Any]) -> str | None:
    """Why the pretraining is not one whole schedule."""
    epoch, planned = origin.get("epoch"), record.get("max_epochs")
    if "max_epochs" in record["changed"]:
        return "the schedule changed when the training was resumed"
    return None if epoch == planned else f"pretrained for {epoch} of {planned} epochs"


def _training_problem(
    checkpoint: dict[str, Any], benchmark: dict[str, Any], split: int | str | None
) -> str | None:
    """Why the training of the evaluated weights was not that of the benchmark."""
    record = _record(checkpoint)
    if record is None:
        return f"{_file(checkpoint)} has no record of its training"
    frozen = record["network"].get("frozen_stages", -1)
    protocol = benchmark.get("protocol")
    if frozen != _FROZEN.get(str(protocol), frozen):
        return f"{protocol} with frozen_stages={frozen} of the backbone"
    return _data_problem(record, benchmark.get("dataset"), split)


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
