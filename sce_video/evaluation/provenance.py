"""Provenance of a result: everything its metrics depend on, written next to them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.runner import Runner

from sce_video.dependencies import installed_version
from sce_video.engine.checkpoint import (
    describe_checkpoint_file,
    describe_network,
    describe_samples,
    file_sha256,
    selected_on,
)
from sce_video.engine.config.snapshot import TEST, foreign_classes, imports_of, resolved_config
from sce_video.engine.run_json import describe_code
from sce_video.published.paper_results import TRANSFER
from sce_video.utils.records import at
from sce_video.version import __version__

#: Python packages that can decode videos.
_DECODERS = ("av", "decord", "torchcodec")
UNKNOWN = "unknown"
#: Entries of a result that describe pretraining. The others describe the dataset, network and clip
#: of the evaluation.
_OF_PRETRAINING = ("pretrained_on", "pretraining", "pretraining_epochs")
#: Entries of a dataset's description that are repeated at the top level.
_OF_DATASET = ("clips", "crops", "crop_size", "decoder", "decoder_version")


def describe_evaluation(runner: Runner, dataset: Any, num_views: int, kind: str) -> dict[str, Any]:
    """Describe the provenance of a test: recipe, checkpoint, dataset, views, software.

    ``benchmark`` is the recipe's benchmark, completed by the pretraining in the checkpoint's
    recipe, and ``benchmark_problems`` lists what is unknown about it. ``resolved_config`` is the
    config of the test. The configs of the training runs are in ``checkpoint``. For a checkpoint
    that a validation metric selected, ``chosen_on_test`` states whether it was selected on the
    tested data. ``kind`` is "recognition", "representation", "detection" or "features".
    """
    path = runner.cfg.get("load_from")
    if runner.iter > 0:
        source = f"trained in this run, {runner.iter} iterations"
        checkpoint: dict[str, object] = {"path": None, "source": source}
    elif path is None:
        checkpoint = {"path": None, "source": f"random initialisation, seed {runner.seed}"}
    else:
        checkpoint = describe_checkpoint_file(path)
    benchmark = at(runner.cfg, "benchmark")
    problems: dict[str, str] = {}
    if benchmark is not None:
        benchmark, problems = stated_benchmark(dict(benchmark), checkpoint)
    test = describe_dataset(dataset, num_views)
    selected = at(checkpoint, "selected", dict)
    chosen = {} if selected is None else {"chosen_on_test": selected_on(selected, test)}
    return {
        "kind": kind,
        "benchmark": benchmark,
        "benchmark_problems": problems,
        "network": describe_network(runner),
        "dataset": at(benchmark, "dataset"),
        "split": at(runner.cfg, "split"),
        "config": runner.cfg.filename,
        "resolved_config": resolved_config(runner.cfg),
        "checkpoint": checkpoint,
        "pretrained": at(checkpoint, "pretrained"),
        "epochs": at(checkpoint, "epoch"),
        **chosen,
        "views": num_views,
        **{name: test[name] for name in _OF_DATASET if name in test},
        "test": test,
        "foreign_classes": foreign_classes(runner.cfg, TEST),
        "imports": imports_of(runner.cfg, TEST),
        "code": describe_code(),
        "software": {
            "sce_video": __version__,
            "torch": torch.__version__,
            "mmaction2": str(installed_version("mmaction2")),
        },
    }


def stated_benchmark(
    benchmark: Mapping[str, object], checkpoint: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, str]]:
    """Return a recipe's benchmark, completed by the pretraining in the checkpoint's recipe.

    The entries ``pretrained_on``, ``pretraining`` and ``pretraining_epochs`` are None without
    pretraining, and "unknown" if the pretraining has no record. The second dict contains the reason
    for each unknown entry.
    """
    file = str(at(checkpoint, "path") or at(checkpoint, "source") or "the file")
    random = at(checkpoint, "path") is None and file.startswith("random")
    # Features come directly from a pretraining run, but a classifier comes from a finetuning run
    # that started from one.
    is_origin = at(benchmark, "protocol") in ("retrieval", "pretraining", *TRANSFER)
    origin = checkpoint if is_origin else at(checkpoint, "pretrained")
    if random or origin == "random":
        return {**benchmark, **dict.fromkeys(_OF_PRETRAINING)}, {}
    if at(origin, "training", dict) is None:
        reason = f"{file} does not state the initial weights of its training"
        if isinstance(origin, dict):
            source = at(origin, "path") or at(origin, "source") or "the file"
            reason = (
                f"{source} has no record of its training, because it was converted or comes from "
                "other code"
            )
        known = dict.fromkeys(_OF_PRETRAINING, UNKNOWN)
        return {**benchmark, **known}, dict.fromkeys(_OF_PRETRAINING, reason)
    declared = {"dataset": UNKNOWN, "protocol": UNKNOWN, **(at(origin, "benchmark", dict) or {})}
    method = declared["pretraining" if "pretraining" in declared else "protocol"]
    names = str(declared["dataset"]), str(method), origin.get("epoch", UNKNOWN)
    return {**benchmark, **dict(zip(_OF_PRETRAINING, names, strict=True))}, {}


def describe_dataset(dataset: Any, num_views: int) -> dict[str, Any]:
    """Describe samples, classes, clips x crops, pipeline and decoder version as plain data.

    Attributes that the dataset does not have are left out.
    """
    described: dict[str, Any] = {**describe_samples(dataset).row(), "views": num_views}
    if "classes" not in described and (classes := _folders_of_classes(dataset)):
        described["classes"] = classes
    if "ann_file" in described:
        described["ann_sha256"] = file_sha256(dataset.ann_file)
    described["pipeline"] = []
    for transform in getattr(dataset, "pipeline", ()):
        own = {name: v for name, v in vars(transform).items() if name[:1] != "_" and _is_plain(v)}
        described["pipeline"].append({"type": type(transform).__name__, **own})
        if hasattr(transform, "num_clips"):
            described["clips"] = transform.num_clips
            described["crops"] = num_views // transform.num_clips
        if hasattr(transform, "crop_size"):
            described["crop_size"] = transform.crop_size
            described["crops"] = transform.num_crops
        if hasattr(transform, "backend"):
            backend, versions = transform.backend, []
            # For a third-party backend, record the versions of all installed decoders.
            for name in (backend,) if backend in _DECODERS else _DECODERS:
                with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                    versions.append(f"{name} {importlib.metadata.version(name)}")
            described["decoder"], described["decoder_version"] = backend, ", ".join(versions)
    return described


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a string, None or a list of them."""
    values = value if isinstance(value, list | tuple) else (value,)
    return all(isinstance(one, bool | int | float | str | None) for one in values)


def _folders_of_classes(dataset: Any) -> list[str] | None:
    """Return the folders' names as class names; None unless each class has its own folder."""
    labels = getattr(dataset, "labels", None)
    if labels is None or len(labels) == 0 or labels.min() < 0:
        return None
    folders: dict[int, str] = {}
    for index, label in enumerate(labels.tolist()):
        folder = os.path.basename(os.path.dirname(dataset.path(index)))
        if folders.setdefault(label, folder) != folder:
            return None
    names = [folders[label] for label in sorted(folders)]
    return names if all(names) and len(set(names)) == len(names) else None
