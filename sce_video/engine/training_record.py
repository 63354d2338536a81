"""What a checkpoint says about its own training: its resolved config, and what no config states."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from mmengine.runner import Runner

from sce_video.engine.batch_layout import layout_of
from sce_video.engine.checkpoint import file_sha256
from sce_video.engine.config.snapshot import differences, plain, resolved_config
from sce_video.utils.distributed import unwrap_model

#: Begin of the file names of checkpoints that a validation metric selects (mmengine's save_best).
BEST = "best_"


def record_training(
    runner: Runner, config: dict[str, Any], resumed: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The facts of a training as plain data, stored in its checkpoints.

    Args:
        runner: The runner, its model and training data set built.
        config: Of :func:`training_snapshot`.
        resumed: Record in the checkpoint that the training was resumed from, empty if that has
            none; None if it was not resumed.

    Returns:
        ``network`` (see :func:`describe_network`), ``data`` (see
        :func:`describe_samples`) and the ``ann_sha256`` of its list, ``batch_size`` (global),
        ``max_epochs``, and ``changed``: settings that differ between the parts of a resumed
        training.
    """
    data = describe_samples(runner.train_dataloader.dataset)
    if "ann_file" in data:
        with suppress(OSError):  # the list may be gone by now
            data["ann_sha256"] = file_sha256(data["ann_file"])
    record = {
        "network": describe_network(runner),
        "data": data,
        "batch_size": (config.get("train_dataloader") or {}).get("batch_size"),
        "max_epochs": runner.max_epochs,
    }
    return {
        **record,
        "changed": []
        if resumed is None
        else changed_settings({**record, "config": config}, resumed),
    }


def training_snapshot(runner: Runner) -> dict[str, Any]:
    """The resolved config of a training; its epochs are those of the loop, which a budget sets."""
    layout = layout_of(runner)
    config = resolved_config(runner.cfg, None if layout is None else layout.global_batch)
    if isinstance(config.get("train_cfg"), dict) and "max_epochs" in config["train_cfg"]:
        config["train_cfg"]["max_epochs"] = runner.max_epochs
    return config


def changed_settings(record: dict[str, Any], resumed: dict[str, Any]) -> list[str]:
    """Settings and facts of the data that a training does not share with the part it continues."""
    if not isinstance(resumed.get("config"), dict):
        return ["the earlier part has no record"]
    found = differences(record["config"], resumed["config"])
    for name in ("samples", "num_classes"):  # the folder may have moved
        now, before = ((part.get("data") or {}).get(name) for part in (record, resumed))
        if now != before:
            found.append(f"{name} of the training data: {now} -> {before}")
    return [*resumed.get("changed", ()), *found]


def describe_network(runner: Runner) -> dict[str, Any]:
    """Config of the backbone and its number of parameters, which tells its width."""
    model = unwrap_model(runner.model)
    backbone = getattr(model, "backbone", model)
    config = plain((runner.cfg.get("model") or {}).get("backbone")) or {}
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
