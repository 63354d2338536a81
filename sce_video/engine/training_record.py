"""What a checkpoint says about its own training: network, method, data, clip, schedule.

A recipe declares what it reproduces (``benchmark``), but options change a recipe. This record holds
what was really built, so that a result made from the checkpoint can tell the two apart.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.runner import Runner

from sce_video.engine.checkpoint import file_sha256
from sce_video.registry import MODELS
from sce_video.utils.distributed import unwrap_model

#: Begin of the file names of checkpoints that a validation metric selects (mmengine's save_best).
BEST = "best_"
#: Entries that the records of earlier versions do not have.
_LATER = ("model_parts", "model_defaults", "optimizer", "schedules")


def record_training(runner: Runner, resumed: dict[str, Any] | None = None) -> dict[str, Any]:
    """The facts of a training as plain data, stored in its checkpoints.

    Args:
        runner: The runner, its model and training data set built.
        resumed: Record in the checkpoint that the training was resumed from, empty if that has
            none; None if it was not resumed.

    Returns:
        ``network`` (see :func:`describe_network`), what :func:`record_settings` takes from the
        config, ``data`` (see :func:`describe_samples`), ``batch_size`` (global), ``max_epochs``,
        and ``changed``: names of entries that differ between the parts of a resumed training.
    """
    cfg = _plain(runner.cfg)
    loader = cfg.get("train_dataloader") or {}
    steps = (cfg.get("optim_wrapper") or {}).get("accumulative_counts", 1)
    record = {
        **record_settings(cfg),
        "network": describe_network(runner),
        "data": describe_samples(runner.train_dataloader.dataset),
        "batch_size": (loader.get("batch_size") or 1) * steps * runner.world_size,
        "max_epochs": runner.max_epochs,
    }
    return {**record, "changed": [] if resumed is None else changed_entries(record, resumed)}


def changed_entries(record: dict[str, Any], resumed: dict[str, Any]) -> list[str]:
    """Names of entries that differ between a training and the part that it was resumed from.

    Args:
        record: Of the training, without ``changed``.
        resumed: Record of the earlier part, empty if it has none. What one of an earlier version
            does not hold cannot be compared.
    """
    known = {name for name in record if name in resumed or name not in _LATER or not resumed}
    changed = {name for name in known if _content(resumed, name) != _content(record, name)}
    if "model_defaults" in changed and resumed:  # an argument may be new, or stated now
        before, after = resumed["model_defaults"], record["model_defaults"]
        if all(before[name] == after[name] for name in before.keys() & after.keys()):
            changed.remove("model_defaults")
    return sorted(changed | set(resumed.get("changed", ())))


def record_settings(cfg: Any) -> dict[str, Any]:
    """The settings of a training that its config states, as plain data.

    Returns:
        ``model`` (arguments of the model that are single values, with its type), ``model_parts``
        (those that are dicts or lists: heads, free coefficients), ``model_defaults`` (single values
        that the config leaves to the class), ``views`` (augmentations), ``pipeline``,
        ``optimizer``, and ``schedules``: the arguments of the ScheduleHook.
    """
    cfg = _plain(cfg)
    model, loader = cfg.get("model") or {}, cfg.get("train_dataloader") or {}
    preprocessor = model.get("data_preprocessor") or cfg.get("data_preprocessor") or {}
    # Described elsewhere: the network with its parameters, the augmentation as ``views``.
    parts = {k: v for k, v in model.items() if k not in ("backbone", "data_preprocessor")}
    hooks = [hook for hook in cfg.get("custom_hooks") or [] if isinstance(hook, dict)]
    schedules = (hook for hook in hooks if _class_name(hook) == "ScheduleHook")
    return {
        "model": {k: v for k, v in model.items() if not isinstance(v, dict | list)},
        "model_parts": {k: v for k, v in parts.items() if isinstance(v, dict | list)},
        "model_defaults": _defaults(model),
        "views": preprocessor.get("views", []),
        "pipeline": (loader.get("dataset") or {}).get("pipeline", []),
        "optimizer": (cfg.get("optim_wrapper") or {}).get("optimizer") or {},
        "schedules": {k: v for k, v in next(schedules, {}).items() if k != "type"},
    }


def _class_name(config: dict[str, Any]) -> str:
    """``SCE`` of ``type="SCE"`` or ``type="sce_video.SCE"``."""
    return str(config.get("type", "")).rpartition(".")[2]


def _defaults(model: dict[str, Any]) -> dict[str, Any]:
    """Single values that the constructor of a model's class has for what its config leaves out."""
    kind = MODELS.get(_class_name(model)) if model else None
    if kind is None:
        return {}
    found = {name: p.default for name, p in inspect.signature(kind).parameters.items()}
    return {
        name: value
        for name, value in found.items()
        if name not in model and isinstance(value, bool | int | float | str | None)
    }


def _content(record: dict[str, Any], name: str) -> Any:
    """An entry for comparison; of the data their numbers, since a folder may have moved."""
    value = record.get(name)
    if name == "data" and isinstance(value, dict):
        return [value.get(key) for key in ("type", "samples", "num_classes")]
    return value


def describe_network(runner: Runner) -> dict[str, Any]:
    """Config of the backbone and its number of parameters, which tells its width."""
    model = unwrap_model(runner.model)
    backbone = getattr(model, "backbone", model)
    config = _plain((runner.cfg.get("model") or {}).get("backbone")) or {}
    return {**config, "parameters": sum(p.numel() for p in backbone.parameters())}


def describe_samples(dataset: Any) -> dict[str, Any]:
    """Where the samples of a data set come from and how many there are, as plain data.

    Returns:
        ``type``, ``samples`` and, where the data set has them, ``kind``, ``name``, ``split``,
        ``data_root``, ``ann_file``, ``num_classes`` (different labels), ``classes`` (their names)
        and ``films`` (of AVA).
    """
    found: dict[str, Any] = {"type": type(dataset).__name__, "samples": len(dataset)}
    for name in ("kind", "name", "split", "data_root", "ann_file"):
        if getattr(dataset, name, None) is not None:
            found[name] = str(getattr(dataset, name))
    labels = np.asarray(getattr(dataset, "labels", ()))
    if (labels >= 0).any():
        found["num_classes"] = len(np.unique(labels[labels >= 0]))
    classes = (getattr(dataset, "metainfo", None) or {}).get("classes")
    if classes:
        found["classes"] = [str(name) for name in classes]
    if hasattr(dataset, "num_films"):
        found["films"] = dataset.num_films
    return found


def record_selection(runner: Runner, filename: str) -> dict[str, Any] | None:
    """How ``save_best`` chose a checkpoint: metric, value and validation list; None if it did not.

    Args:
        runner: The runner, with the best value so far in its message hub.
        filename: Name of the checkpoint, ``best_<metric>_epoch_<N>.pth``.
    """
    if not filename.startswith(BEST):
        return None
    dataset: Any = runner.val_dataloader.dataset
    found = {
        "metric": filename.removeprefix(BEST).rpartition("_epoch_")[0],
        "value": float(runner.message_hub.get_info("best_score", float("nan"))),
        "data_root": str(getattr(dataset, "data_root", "")),
    }
    if getattr(dataset, "split", None) is not None:  # of a set whose splits share a folder
        found["split"] = str(dataset.split)
    ann_file = getattr(dataset, "ann_file", None)
    if ann_file is not None:
        found |= {"ann_file": str(ann_file), "ann_sha256": file_sha256(ann_file)}
    return found


def selected_on(selected: dict[str, Any], data: dict[str, Any]) -> bool:
    """Whether a checkpoint was selected on the data that it is tested on.

    Args:
        selected: See :func:`record_selection`.
        data: Description of the tested data set: its ``ann_sha256``, or ``data_root`` and
            ``split`` where it has no list.
    """
    keys = ("ann_sha256",) if selected.get("ann_sha256") else ("data_root", "split")
    return all(selected.get(key) == data.get(key) for key in keys)


def _plain(node: Any) -> Any:
    """A part of a config as plain data; what is not (a built object) becomes its type's name."""
    if isinstance(node, dict | Config):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_plain(value) for value in node]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    return type(node).__name__
