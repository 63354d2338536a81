"""Checks before the first step: errors for impossible settings, warnings for unpromising ones.

The alarms on the learning rate and on evaluated files (:class:`~sce_video.utils.errors.Alarm`)
compare numbers that are known before training.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

from mmengine.dist import get_world_size
from mmengine.hooks import CheckpointHook
from torch import nn

from sce_video.datasets.labelled import check_dataset_labels
from sce_video.engine.checkpoint import describe_samples
from sce_video.engine.restarts import device_name
from sce_video.models.modules.sync_batch_norm import SyncBatchNorm, check_equal_batches
from sce_video.registry import DATASETS
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.errors import Alarm
from sce_video.utils.files import regular_file

#: Maximum share of samples that an epoch may leave out without a warning.
_MAX_LEFT_OUT = 0.2
#: Number of optimiser steps below which training hardly changes a network.
_FEW_STEPS = 100
#: Number of bytes that are compared at the beginning and at the end of a file.
_EDGE = 65536


def check_training(loop: Any) -> None:
    """Refuse settings of a ResumableTrainLoop that would fail in a step or could not be resumed.

    Raises:
        ValueError: If an epoch has no whole step, a batch has one sample but batch norm needs more,
            the number of views does not match the augmentation, a target view is a local view,
            labels are out of range, or a checkpoint would be written in the middle of a step.
    """
    loader, model = loop.dataloader, unwrap_model(loop.runner.model)
    dataset = loader.dataset
    if loop.iters_per_epoch == 0:
        raise ValueError(
            f"{len(dataset)} training samples do not fill one step of batch size "
            f"{loader.batch_size} per process. Lower train_dataloader.batch_size or "
            "optim_wrapper.accumulative_counts"
        )
    head = getattr(model, "cls_head", None)
    if head is not None:
        check_dataset_labels(dataset, head.num_classes)
    if any(type(module) is nn.BatchNorm1d for module in model.modules()):
        if loader.batch_size == 1:
            raise ValueError(
                "train_dataloader.batch_size is 1, but BN in the MLP heads normalises over the "
                "batch and needs at least two samples per process"
            )
        if not loader.drop_last and len(loader.sampler) % loader.batch_size == 1:
            raise ValueError(
                f"{len(loader.sampler)} samples in batches of {loader.batch_size} leave a last "
                "batch with one sample, over which BN cannot normalise. Set "
                "train_dataloader.drop_last=True"
            )
    if any(isinstance(module, SyncBatchNorm) for module in model.modules()):
        check_equal_batches(len(loader.sampler), loader.batch_size, loader.drop_last)
    made = getattr(dataset, "num_views", None)
    augmented = getattr(getattr(model, "data_preprocessor", None), "views", None)
    if made is not None and augmented and made != len(augmented):
        raise ValueError(
            f"the training pipeline makes {made} views of a sample (num_views), but "
            f"data_preprocessor augments {len(augmented)} (views). Give `views` one entry per view"
        )
    if made is not None:
        _check_targets(made, getattr(dataset, "num_local_views", 0), model)
    accumulation = loop.runner.optim_wrapper._accumulative_counts
    for hook in loop.runner.hooks:
        by_iter = isinstance(hook, CheckpointHook) and not hook.by_epoch and hook.interval > 0
        if by_iter and hook.interval % accumulation:
            raise ValueError(
                f"the checkpoint interval, {hook.interval} iterations, must be a multiple of "
                f"accumulative_counts={accumulation}, because a checkpoint in the middle of a step "
                "cannot be resumed"
            )


def _check_targets(num_views: int, num_local: int, model: nn.Module) -> None:
    """Raise ValueError if the target network encodes a local view. The local views come last."""
    name = "global_views" if hasattr(model, "global_views") else "target_views"
    chosen = getattr(model, name, None)
    if chosen is None and not getattr(model, "symmetric", True):
        chosen = (num_views - 1,)
    local = [view for view in chosen or () if num_local and view >= num_views - num_local]
    if local:
        raise ValueError(
            f"view {local[0]} is one of the {num_local} local views of {num_views}, but a target "
            f"view must be global. Set model.{name}, for example to [{num_views - num_local - 1}]"
        )


def training_warnings(loop: Any) -> list[str | Alarm]:
    """Return warnings about settings that may limit learning: batch, number of steps, method.

    Raises:
        ValueError: If the method cannot be trained on these samples.
    """
    loader, model = loop.dataloader, unwrap_model(loop.runner.model)
    accumulation = loop.runner.optim_wrapper._accumulative_counts
    batch = loader.batch_size * get_world_size() * accumulation
    samples = len(loader.dataset)
    steps = loop.max_iters // accumulation
    warnings: list[str | Alarm] = []
    left_out = samples - loop.iters_per_epoch * loader.batch_size * get_world_size()
    if left_out > _MAX_LEFT_OUT * samples:
        warnings.append(
            f"every epoch leaves out {left_out} of {samples} samples, because they do not fill a "
            f"batch of {batch}. A smaller train_dataloader.batch_size uses more of them"
        )
    if steps < _FEW_STEPS and loop.learns_by_steps:
        warnings.append(
            f"the whole training has {steps} optimiser steps, too few to learn much. Use more "
            "epochs (train_cfg.max_epochs, --epochs) or a smaller batch"
        )
    check: Any = getattr(model, "check_training", lambda *_: [])
    return [*warnings, *check(samples, batch, getattr(loader.dataset, "num_views", None))]


def describe_training(loop: Any) -> list[str]:
    """Return the first lines of the log: the dataset, the device and the length of training."""
    found = describe_samples(loop.dataloader.dataset)
    kind, processes = found.kind or "sample", get_world_size()
    source = found.ann_file or found.data_root
    count = len(found.classes or ()) or found.num_classes
    classes = f"of {count} classes" if count else "without labels"
    accumulation = loop.runner.optim_wrapper._accumulative_counts
    batch = loop.dataloader.batch_size * processes * accumulation
    device = device_name(next(unwrap_model(loop.runner.model).parameters()).device)
    return [
        f"{found.samples} {kind}s {classes}{f' in {source}' if source else ''}",
        f"{device}, {processes} process{'es' * (processes > 1)}. {loop.max_epochs} epochs of "
        f"{loop.iters_per_epoch // accumulation} steps with {batch} {kind}s each. All details are "
        f"in {loop.runner.logger.log_file}",
    ]


def unusual_rate(
    rate: float, batch: int, optimizer: str, ranges: Mapping[str, Sequence[float]]
) -> list[Alarm]:
    """Return an alarm if a learning rate is unusual for its batch by the linear rule.

    Args:
        rate: Peak learning rate.
        batch: Global batch.
        optimizer: Name of the optimiser.
        ranges: Smallest and largest usual rate for a batch of 256, by name of the optimiser. Other
            optimisers are not checked.
    """
    if optimizer not in ranges:
        return []
    scaled, (least, largest) = rate * 256 / batch, ranges[optimizer]
    if least <= scaled <= largest:
        return []
    text = (
        f"the peak learning rate of {optimizer}, {rate:g} at a global batch of {batch}, "
        f"corresponds to {scaled:.3g} for 256 samples by the linear rule, but {least:g} to "
        f"{largest:g} is usual. Check optim_wrapper.optimizer.lr and the batch that it is meant "
        "for, custom_hooks.ScheduleHook.base_batch_size"
    )
    bound = least if scaled < least else largest
    return [Alarm(text, "learning_rate", scaled, bound)]


def evaluated_files(runner: Any, max_compared: int) -> list[Alarm]:
    """Return alarms for evaluation sets that share files with the training set.

    The checked sets are ``test_dataloader``, ``val_dataloader`` and the queries of an online
    evaluation. A gallery may be the training set, because neighbours are usually retrieved from it.
    An evaluation set is skipped if it cannot be listed here, for example because its files are on
    another machine.

    Args:
        runner: Runner with a built training dataset.
        max_compared: Largest number of files in both sets whose contents are compared. With more
            files, only their paths are compared.
    """
    training = runner.train_dataloader.dataset
    if not hasattr(training, "path"):
        return []
    supervised = hasattr(unwrap_model(runner.model), "cls_head")
    meaning = "Their labels are not used, but the result is better than it would be on new samples"
    if supervised:
        meaning = "Their labels are trained on, so the result says nothing about new samples"
    loaders = [(name, runner.cfg.get(name)) for name in ("test_dataloader", "val_dataloader")]
    queries = [getattr(hook, "queries", None) for hook in runner.hooks]
    loaders += [("the queries of the online evaluation", loader) for loader in queries]
    found = []
    for name, loader in loaders:
        dataset: Any = None if isinstance(loader, Mapping) else getattr(loader, "dataset", None)
        if isinstance(loader, Mapping):
            # Files may be missing here, or a user's class may fail. The evaluation will report it.
            with suppress(Exception):
                dataset = DATASETS.build(dict(loader["dataset"]))
        if not hasattr(dataset, "path"):
            continue
        own, other = ([str(d.path(i)) for i in range(len(d))] for d in (training, dataset))
        if shared := common_files(own, other, max_compared):
            text = (
                f"{len(shared)} of {len(other)} files of {name} are also in the training set, for "
                f"example {shared[0]}. {meaning}. Evaluate on other files"
            )
            level = "error" if supervised else "warning"
            share = len(shared) / len(other)
            found.append(Alarm(text, "evaluated_files", share, 0.0, level))
    return found


def common_files(training: Iterable[str], evaluated: Iterable[str], max_compared: int) -> list[str]:
    """Return the evaluated files that are training files, or have the same content as one.

    Files of the same size are compared by their first and last 64 KiB.
    """
    seen, wanted = set(training), set(evaluated)
    few = len(seen) + len(wanted) <= max_compared
    folder = lru_cache(1024)(os.path.realpath)

    def resolve(path: str) -> str:
        # Resolving each file takes a system call, so resolve only folders if there are many files.
        if few:
            return os.path.realpath(path)
        return os.path.join(folder(os.path.dirname(path)), os.path.basename(path))

    def size(path: str) -> int:
        return os.path.getsize(path) if os.path.isfile(path) else 0

    @cache
    def digest(path: str) -> bytes:
        with open(path, "rb", opener=regular_file) as file:
            begin = file.read(_EDGE)
            file.seek(max(file.tell(), size(path) - _EDGE))
            return hashlib.sha256(begin + file.read(_EDGE)).digest()

    resolved = {resolve(path) for path in seen}
    shared = {path for path in wanted if path in seen or resolve(path) in resolved}
    by_size = defaultdict(list)
    for path in seen if few else ():
        by_size[size(path)].append(path)
    for path in wanted - shared if few else ():
        alike = by_size[size(path)] if size(path) > 0 else ()
        if any(digest(path) == digest(other) for other in alike):
            shared.add(path)
    return sorted(shared)
