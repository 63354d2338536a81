"""Division of a global batch over processes, which a resumed run may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, cast

from mmengine.dist import get_world_size

from sce_video.utils.private_parts import set_accumulation
from sce_video.utils.records import at, read_record


@dataclass(frozen=True)
class BatchLayout:
    """Division of a global batch into ``processes`` x ``batch_size`` x ``accumulated`` samples.

    ``ResumableSampler`` gives rank r the samples r, r + processes, ... of an epoch's order. An
    optimiser step therefore uses the same samples in every layout with the same global batch.

    Attributes:
        processes: Number of processes (ranks).
        batch_size: Samples in a rank's micro-batch.
        accumulated: Micro-batches per optimiser step.
        iters_per_epoch: Micro-batches of a rank per epoch.
        samples: Samples in the dataset.
    """

    processes: int
    batch_size: int
    accumulated: int
    iters_per_epoch: int
    samples: int

    @property
    def global_batch(self) -> int:
        """Number of samples in an optimiser step."""
        return self.processes * self.batch_size * self.accumulated

    def __str__(self) -> str:
        return (
            f"{self.global_batch} ({self.processes} process{'es' * (self.processes != 1)} x "
            f"{self.batch_size} x {self.accumulated} accumulated)"
        )


def layout_of(runner: Any) -> BatchLayout | None:
    """Return the batch layout of a runner with a built training loop; None without epochs."""
    loader = runner.train_dataloader
    iters = getattr(runner.train_loop, "iters_per_epoch", None)
    if loader.batch_size is None or iters is None:
        return None
    accumulated = runner.optim_wrapper._accumulative_counts
    return BatchLayout(get_world_size(), loader.batch_size, accumulated, iters, len(loader.dataset))


def divide_global_batch(cfg: Any, processes: int) -> None:
    """Set each process's batch size from the config's ``global_batch``, if there is one.

    The same config then runs the same training steps on any number of processes.

    Raises:
        ValueError: If the global batch cannot be divided equally.
    """
    total = at(cfg, "global_batch")
    if total is None:
        return
    accumulated = at(cfg, "optim_wrapper.accumulative_counts", int) or 1
    if type(total) is not int or total < 1:
        raise ValueError(f"global_batch must be a whole number of at least 1, got {total!r}")
    batch, rest = divmod(total, processes * accumulated)
    if rest:
        raise ValueError(
            f"global_batch={total} is not divisible by {processes} processes x {accumulated} "
            f"accumulated batches. Use a number of processes that divides {total}, or a different "
            "optim_wrapper.accumulative_counts"
        )
    cfg.train_dataloader.batch_size = batch


def resumed_iteration(runner: Any, meta: Mapping[str, Any], name: str) -> int:
    """Return the iteration at which a runner continues a checkpoint with the same global batch.

    If the number of processes has changed, the runner's ``accumulative_counts`` is adapted, and an
    epoch keeps its number of steps. With ``keep_global_batch=False`` in the config, the run uses
    its new batch, and the epoch continues after the last whole step of samples already seen.

    Args:
        runner: A runner whose training loop and optimiser are built.
        meta: The checkpoint's ``meta``, with ``epoch`` and ``iter``. It may also contain
            ``batch_layout``, without which the iteration is not converted.
        name: Name of the checkpoint in messages.

    Raises:
        ValueError: If the global batch cannot be kept. The message lists settings that keep it.
    """
    now = layout_of(runner)
    try:
        before = read_record(BatchLayout, at(meta, "batch_layout"))
    except ValueError:  # the layout is missing or damaged
        return meta["iter"]
    if now is None or min(astuple(before)) < 1:
        return meta["iter"]
    accumulated = now.accumulated
    if runner.cfg.get("keep_global_batch", True):
        accumulated = _accumulation(before, now, name)
    elif now.global_batch != before.global_batch:
        runner.logger.warning(
            f"{name} has a global batch of {before}, but this run has {now} "
            "(keep_global_batch=False). Learning rate and steps per epoch follow the new batch"
        )
    if accumulated != now.accumulated:
        set_accumulation(runner.optim_wrapper, accumulated)
        runner.logger.warning(
            f"{name} has a global batch of {before}: with {now.processes} x {now.batch_size} "
            f"samples, optim_wrapper.accumulative_counts is {accumulated}, not {now.accumulated}"
        )
    now = cast(BatchLayout, layout_of(runner))
    counted = (before.accumulated, before.global_batch)
    if runner.param_schedulers and counted != (now.accumulated, now.global_batch):
        raise ValueError(
            f"{name}: a param_scheduler counts iterations, but their number changes with "
            f"accumulative_counts={now.accumulated} and a global batch of {now.global_batch}. Use "
            "ScheduleHook, which counts optimiser steps"
        )
    # The samples per rank are rounded up, so their total depends on the number of ranks. If only
    # this rounding has changed the steps per epoch, keep the earlier number of steps.
    loader, in_epoch = runner.train_dataloader, before.iters_per_epoch // before.accumulated
    alike = (before.samples, before.global_batch) == (now.samples, now.global_batch)
    rounded = alike and abs(in_epoch - now.iters_per_epoch // now.accumulated) == 1
    if rounded and loader.drop_last and hasattr(loader.sampler, "set_total_size"):
        loader.sampler.set_total_size(in_epoch * now.global_batch)
        now = cast(BatchLayout, layout_of(runner))
    return _iteration(before, now, meta, name)


def _accumulation(before: BatchLayout, now: BatchLayout, name: str) -> int:
    """Return the micro-batches per step with which ``now`` keeps the global batch of ``before``.

    Raises:
        ValueError: If there is no such number. The message lists settings that keep the batch.
    """
    if now.global_batch == before.global_batch:
        return now.accumulated
    accumulated, rest = divmod(before.global_batch, now.processes * now.batch_size)
    if now.processes != before.processes and not rest:
        return accumulated
    # Suggest settings that keep the global batch without a larger micro-batch.
    per_process, rest = divmod(before.global_batch, now.processes)
    batch, accumulated = before.batch_size, before.accumulated
    if now.processes != before.processes and not rest:
        batch = next(b for b in range(now.batch_size, 0, -1) if per_process % b == 0)
        accumulated = per_process // batch
    advice = (
        f"train_dataloader.batch_size={batch} optim_wrapper.accumulative_counts={accumulated}, or "
        f"global_batch={before.global_batch}, which fits any number of processes that divides it"
    )
    if rest:
        advice = f"a number of processes that divides {before.global_batch}"
    raise ValueError(
        f"{name} was written with a global batch of {before}, but this run has {now}. To keep the "
        f"old batch, give {advice}. To continue with the new one, set keep_global_batch=False. To "
        "start a new run from the weights, use --cfg-options load_from=PATH"
    )


def _iteration(before: BatchLayout, now: BatchLayout, meta: Mapping[str, Any], name: str) -> int:
    """Return the iteration in the layout ``now`` that follows the steps done in ``before``."""
    epoch, iteration = meta["epoch"], meta["iter"]
    if before == now:
        return iteration
    # Count optimiser steps, because the layouts may differ in iterations per step.
    steps = (iteration - epoch * before.iters_per_epoch) // before.accumulated
    in_epoch = before.iters_per_epoch // before.accumulated
    if before.samples != now.samples and steps not in (0, in_epoch):
        raise ValueError(
            f"{name} was written in the middle of an epoch of {before.samples} samples, but an "
            f"epoch now has {now.samples}. Resume from a checkpoint that was written at the end "
            "of an epoch"
        )
    last = now.iters_per_epoch // now.accumulated
    seen = steps * before.global_batch // now.global_batch  # converted to steps of the new size
    done = last if steps == in_epoch else min(seen, last)
    return epoch * now.iters_per_epoch + done * now.accumulated
