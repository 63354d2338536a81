"""Before the first step: what cannot train is refused, what will not learn is warned of."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dist import get_world_size
from mmengine.hooks import CheckpointHook
from torch import nn

from sce_video.datasets.labels import check_dataset_labels
from sce_video.engine.alarms import Alarm
from sce_video.engine.restarts import device_name
from sce_video.registry import DATASETS
from sce_video.utils.distributed import unwrap_model

# A larger share of the samples left out of every epoch is warned of.
_MAX_LEFT_OUT = 0.2
# Fewer optimiser steps change a network too little to be worth a training.
_FEW_STEPS = 100


def check_training(loop: Any) -> None:
    """Refuse settings of a ResumableTrainLoop that would fail in a step, or could not be resumed.

    Raises:
        ValueError: no whole step in an epoch, a batch of one sample where BN needs more, another
            number of views than the augmentation has, a local view as target, labels out of range,
            or checkpoints in the middle of a step.
    """
    loader, model = loop.dataloader, unwrap_model(loop.runner.model)
    if loop.iters_per_epoch == 0:
        raise ValueError(
            f"{len(loader.dataset)} training samples do not fill one step of batch size "
            f"{loader.batch_size} per process: lower train_dataloader.batch_size or "
            "optim_wrapper.accumulative_counts"
        )
    head = getattr(model, "cls_head", None)
    if head is not None:
        check_dataset_labels(loader.dataset, head.num_classes)
    _check_batch(loader, model)
    _check_views(loader.dataset, model)
    _check_checkpoints(loop)


def _check_batch(loader: Any, model: nn.Module) -> None:
    if not any(type(module) is nn.BatchNorm1d for module in model.modules()):
        return
    rest = 0 if loader.drop_last else len(loader.sampler) % loader.batch_size
    if loader.batch_size == 1:
        raise ValueError(
            "train_dataloader.batch_size=1: BN of the MLP heads normalises over the batch and "
            "needs two samples per process at least"
        )
    if rest == 1:
        raise ValueError(
            f"the last batch of {len(loader.sampler)} samples in batches of {loader.batch_size} "
            "has one sample, over which BN cannot normalise: set train_dataloader.drop_last=True"
        )


def _check_views(dataset: Any, model: nn.Module) -> None:
    made = getattr(dataset, "num_views", None)
    augmented = getattr(getattr(model, "data_preprocessor", None), "views", None)
    if made is not None and augmented and made != len(augmented):
        raise ValueError(
            f"the training pipeline makes {made} views of a sample (num_views), data_preprocessor "
            f"augments {len(augmented)} (views): give `views` one entry per view"
        )
    num_local = getattr(dataset, "num_local_views", 0)
    if made is not None and num_local:
        _check_local_views(made, num_local, model)


def _check_local_views(num_views: int, num_local: int, model: nn.Module) -> None:
    """Raise ValueError if a target encodes one of the local views, the last ones."""
    name = "global_views" if hasattr(model, "global_views") else "target_views"
    chosen = getattr(model, name, None)
    if chosen is None and not getattr(model, "symmetric", True):
        chosen = (num_views - 1,)
    local = [view for view in chosen or () if view >= num_views - num_local]
    if local:
        raise ValueError(
            f"view {local[0]} is one of the {num_local} local views of {num_views}, and as a "
            f"target it must be a global one: set model.{name}, e.g. [{num_views - num_local - 1}]"
        )


def _check_checkpoints(loop: Any) -> None:
    accumulation = loop.runner.optim_wrapper._accumulative_counts
    for hook in loop.runner.hooks:
        if isinstance(hook, CheckpointHook) and not hook.by_epoch:
            if hook.interval > 0 and hook.interval % accumulation:
                raise ValueError(
                    f"checkpoint interval {hook.interval} (iterations) must be a multiple of "
                    f"accumulative_counts={accumulation}: a checkpoint in the middle of a "
                    "step cannot be resumed"
                )


def training_warnings(loop: Any) -> list[str]:
    """What lets a training run and learn little: batches and numbers of steps, and the method's.

    Raises:
        ValueError: the method cannot be trained with such samples.
    """
    loader, model = loop.dataloader, unwrap_model(loop.runner.model)
    accumulation = loop.runner.optim_wrapper._accumulative_counts
    batch = loader.batch_size * get_world_size() * accumulation
    samples = len(loader.dataset)
    steps = loop.max_iters // accumulation
    warnings = []
    left_out = samples - loop.iters_per_epoch * loader.batch_size * get_world_size()
    if left_out > _MAX_LEFT_OUT * samples:
        warnings.append(
            f"{left_out} of {samples} samples are left out of every epoch, since they do not fill "
            f"a batch of {batch}: a smaller train_dataloader.batch_size uses more of them"
        )
    if steps < _FEW_STEPS:
        warnings.append(
            f"the whole training has {steps} optimiser steps, too few to learn much: raise "
            "train_cfg.max_epochs or lower train_dataloader.batch_size"
        )
    check = getattr(model, "check_training", None)
    if check is not None:
        warnings += check(samples, batch, getattr(loader.dataset, "num_views", None))
    return warnings


def describe_training(loop: Any) -> list[str]:
    """What is trained on what, for the first lines of the log."""
    loader = loop.dataloader
    dataset = loader.dataset
    kind = getattr(dataset, "kind", "sample")
    source = getattr(dataset, "ann_file", None) or getattr(dataset, "data_root", "")
    processes = get_world_size()
    accumulation = loop.runner.optim_wrapper._accumulative_counts
    batch = loader.batch_size * processes * accumulation
    steps = loop.iters_per_epoch // accumulation
    return [
        f"{len(dataset)} {kind}s{_classes(dataset)}{f' in {source}' if source else ''}",
        f"{device_name(next(unwrap_model(loop.runner.model).parameters()).device)}, "
        f"{processes} process{'es' * (processes > 1)}; {loop.max_epochs} epochs of {steps} steps, "
        f"{batch} {kind}s each; all details in {loop.runner.logger.log_file}",
    ]


def _classes(dataset: Any) -> str:
    names = (getattr(dataset, "metainfo", None) or {}).get("classes")
    labels = getattr(dataset, "labels", None)
    count = len(names) if names else 0
    if labels is not None:
        labelled = labels[labels >= 0]
        count = (count or len(np.unique(labelled))) if len(labelled) else 0
    return f" of {count} classes" if count else " without labels"


_EDGE = 65536  # bytes compared at both ends of a file


def learning_rate(
    peak: tuple[float, int] | None, optimizer: str, ranges: Mapping[str, Sequence[float]]
) -> Alarm | None:
    """The alarm of a rate that the linear rule (rate proportional to batch) makes unlikely.

    Args:
        peak: Peak learning rate and global batch, None if not known.
        optimizer: Name of its class.
        ranges: By optimiser, least and largest rate for a batch of 256.
    """
    if peak is None or optimizer not in ranges:
        return None
    rate, batch = peak
    least, largest = ranges[optimizer]
    scaled = rate * 256 / batch
    if least <= scaled <= largest:
        return None
    return Alarm(
        "learning_rate",
        f"the peak learning rate {rate:g} of {optimizer} at a global batch of {batch} is "
        f"{scaled:.3g} for 256 samples by the linear rule; usual are {least:g} to {largest:g}. "
        "Check optim_wrapper.optimizer.lr and custom_hooks.ScheduleHook.base_batch_size, the batch "
        "that this rate is meant for",
        value=scaled,
        threshold=least if scaled < least else largest,
    )


def evaluated_files(runner: Any, max_compared: int) -> list[Alarm]:
    """Alarms of evaluation sets that share files with the training set.

    Evaluated are ``test_dataloader``, ``val_dataloader`` and the queries of an online evaluation. A
    gallery may be the training set: neighbours are usually taken from there. An evaluation set that
    cannot be listed here, because its files are elsewhere, is left out.

    Args:
        runner: The runner of a training.
        max_compared: Files of both sets up to which sizes and contents are compared; with more,
            paths alone.
    """
    training = runner.train_dataloader.dataset
    if not hasattr(training, "path"):
        return []
    supervised = hasattr(unwrap_model(runner.model), "cls_head")
    found = []
    for name, dataset in _evaluation_sets(runner):
        shared = common_files(_paths(training), _paths(dataset), max_compared)
        if shared:
            found.append(_shared_alarm(name, shared, len(dataset), supervised))
    return found


def _shared_alarm(name: str, shared: Sequence[str], count: int, supervised: bool) -> Alarm:
    meaning = (
        "their labels are trained on, so the result says nothing about new samples"
        if supervised
        else "no labels are trained on, but the result is better than on new samples"
    )
    return Alarm(
        "evaluated_files",
        f"{len(shared)} of {count} files of {name} are in the training set, too, such as "
        f"{shared[0]}: {meaning}. Evaluate on other files",
        value=len(shared) / count,
        threshold=0.0,
        level="error" if supervised else "warning",
    )


def _evaluation_sets(runner: Any) -> Iterator[tuple[str, Any]]:
    for name in ("test_dataloader", "val_dataloader"):
        config = runner.cfg.get(name)
        if config is not None and isinstance(config.get("dataset"), Mapping):
            dataset = _build(config["dataset"])
            if dataset is not None:
                yield name, dataset
    for hook in runner.hooks:
        queries = getattr(hook, "queries", None)
        dataset = queries.get("dataset") if isinstance(queries, Mapping) else None
        dataset = _build(dataset) if isinstance(dataset, Mapping) else None
        dataset = dataset or getattr(queries, "dataset", None)
        if hasattr(dataset, "path"):
            yield "the queries of the online evaluation", dataset


def _build(config: Mapping[str, Any]) -> Any | None:
    try:
        dataset = DATASETS.build(dict(config))
    except Exception:  # not on this machine, or anybody's class: the evaluation will say so
        return None
    return dataset if hasattr(dataset, "path") else None


def _paths(dataset: Any) -> list[str]:
    return [str(dataset.path(index)) for index in range(len(dataset))]


def common_files(training: Iterable[str], evaluated: Iterable[str], max_compared: int) -> list[str]:
    """The evaluated files that are in the training set by resolved path, or by size and content.

    Compared are the first and the last 64 KiB of files of one size.
    """
    seen, wanted = set(training), set(evaluated)
    few = len(seen) + len(wanted) <= max_compared
    folder = lru_cache(1024)(os.path.realpath)

    def resolve(path: str) -> str:
        # Links of single files cost a call each: of many files folders alone are resolved.
        if few:
            return os.path.realpath(path)
        return os.path.join(folder(os.path.dirname(path)), os.path.basename(path))

    resolved = {resolve(path) for path in seen}
    shared = {path for path in wanted if path in seen or resolve(path) in resolved}
    if not few:
        return sorted(shared)
    by_size: dict[int, list[str]] = {}
    for path in seen:
        by_size.setdefault(_size(path), []).append(path)
    digest = cache(_digest)
    for path in wanted - shared:
        size = _size(path)
        if size > 0 and any(digest(path) == digest(other) for other in by_size.get(size, ())):
            shared.add(path)
    return sorted(shared)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size if Path(path).is_file() else 0
    except OSError:
        return 0


def _digest(path: str) -> bytes:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        found.update(file.read(_EDGE))
        if os.fstat(file.fileno()).st_size > 2 * _EDGE:
            file.seek(-_EDGE, os.SEEK_END)
        found.update(file.read(_EDGE))
    return found.digest()
