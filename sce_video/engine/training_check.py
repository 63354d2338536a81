"""Before the first step: what cannot train is refused, what will not learn is warned of."""

from __future__ import annotations

from typing import Any

from mmengine.dist import get_world_size
from mmengine.hooks import CheckpointHook
from torch import nn

from sce_video.datasets.labels import check_dataset_labels
from sce_video.engine.checkpoint import describe_samples
from sce_video.engine.restarts import device_name
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
    dataset = loader.dataset
    if loop.iters_per_epoch == 0:
        raise ValueError(
            f"{len(dataset)} training samples do not fill one step of batch size "
            f"{loader.batch_size} per process: lower train_dataloader.batch_size or "
            "optim_wrapper.accumulative_counts"
        )
    head = getattr(model, "cls_head", None)
    if head is not None:
        check_dataset_labels(dataset, head.num_classes)
    if any(type(module) is nn.BatchNorm1d for module in model.modules()):
        rest = 0 if loader.drop_last else len(loader.sampler) % loader.batch_size
        if loader.batch_size == 1:
            raise ValueError(
                "train_dataloader.batch_size=1: BN of the MLP heads normalises over the batch and "
                "needs two samples per process at least"
            )
        if rest == 1:
            raise ValueError(
                f"the last batch of {len(loader.sampler)} samples in batches of "
                f"{loader.batch_size} has one sample, over which BN cannot normalise: set "
                "train_dataloader.drop_last=True"
            )
    made = getattr(dataset, "num_views", None)
    augmented = getattr(getattr(model, "data_preprocessor", None), "views", None)
    if made is not None and augmented and made != len(augmented):
        raise ValueError(
            f"the training pipeline makes {made} views of a sample (num_views), data_preprocessor "
            f"augments {len(augmented)} (views): give `views` one entry per view"
        )
    if made is not None:
        _check_targets(made, getattr(dataset, "num_local_views", 0), model)
    accumulation = loop.runner.optim_wrapper._accumulative_counts
    for hook in loop.runner.hooks:
        by_iter = isinstance(hook, CheckpointHook) and not hook.by_epoch and hook.interval > 0
        if by_iter and hook.interval % accumulation:
            raise ValueError(
                f"checkpoint interval {hook.interval} (iterations) must be a multiple of "
                f"accumulative_counts={accumulation}: a checkpoint in the middle of a "
                "step cannot be resumed"
            )


def _check_targets(num_views: int, num_local: int, model: nn.Module) -> None:
    """Raise ValueError if a target encodes one of the local views, the last ones."""
    name = "global_views" if hasattr(model, "global_views") else "target_views"
    chosen = getattr(model, name, None)
    if chosen is None and not getattr(model, "symmetric", True):
        chosen = (num_views - 1,)
    local = [view for view in chosen or () if num_local and view >= num_views - num_local]
    if local:
        raise ValueError(
            f"view {local[0]} is one of the {num_local} local views of {num_views}, and as a "
            f"target it must be a global one: set model.{name}, e.g. [{num_views - num_local - 1}]"
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
    found = describe_samples(dataset)
    kind = found.get("kind", "sample")
    source = found.get("ann_file") or found.get("data_root")
    count = len(found.get("classes", ())) or found.get("num_classes")
    classes = f"of {count} classes" if count else "without labels"
    processes = get_world_size()
    accumulation = loop.runner.optim_wrapper._accumulative_counts
    batch = loader.batch_size * processes * accumulation
    steps = loop.iters_per_epoch // accumulation
    return [
        f"{len(dataset)} {kind}s {classes}{f' in {source}' if source else ''}",
        f"{device_name(next(unwrap_model(loop.runner.model).parameters()).device)}, "
        f"{processes} process{'es' * (processes > 1)}; {loop.max_epochs} epochs of {steps} steps, "
        f"{batch} {kind}s each; all details in {loop.runner.logger.log_file}",
    ]
