"""How a global batch is divided over processes, and where another division resumes a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from mmengine.dist import get_world_size

from sce_video.utils.private_parts import set_accumulation


@dataclass(frozen=True)
class BatchLayout:
    """A global batch: ``processes`` x ``batch_size`` x ``accumulated`` samples.

    ``ResumableSampler`` gives rank r the samples r, r + processes, ... of an epoch's order, so an
    optimiser step has the same samples in every layout with the same global batch.

    """

    processes: int
    batch_size: int  # samples of a rank's micro-batch
    accumulated: int  # micro-batches of an optimiser step
    iters_per_epoch: int  # micro-batches of a rank in an epoch
    samples: int  # of the data set

    @property
    def global_batch(self) -> int:
        """Samples of an optimiser step."""
        return self.processes * self.batch_size * self.accumulated

    def __str__(self) -> str:
        return (
            f"{self.global_batch} ({self.processes} process{'es' * (self.processes != 1)} x "
            f"{self.batch_size} x {self.accumulated} accumulated)"
        )


def layout_of(runner: Any) -> BatchLayout | None:
    """The layout of a runner whose training loop and optimiser are built; None without epochs."""
    loader = runner.train_dataloader
    iters = getattr(runner.train_loop, "iters_per_epoch", None)
    if loader.batch_size is None or iters is None:
        return None
    accumulated = runner.optim_wrapper._accumulative_counts
    return BatchLayout(get_world_size(), loader.batch_size, accumulated, iters, len(loader.dataset))


def divide_global_batch(cfg: Any, processes: int) -> None:
    """Set the batch size of a process from ``global_batch`` of a config, if it has one.

    The same config then has the same steps on any number of processes.

    Raises:
        ValueError: the global batch cannot be divided equally.
    """
    total = cfg.get("global_batch")
    if total is None:
        return
    accumulated = (cfg.get("optim_wrapper") or {}).get("accumulative_counts", 1)
    if type(total) is not int or total < 1:
        raise ValueError(f"global_batch must be a whole number of at least 1, got {total!r}")
    batch, rest = divmod(total, processes * accumulated)
    if rest:
        raise ValueError(
            f"global_batch={total} cannot be divided over {processes} processes x {accumulated} "
            f"accumulated: give a number of processes that divides {total}, or another "
            "optim_wrapper.accumulative_counts"
        )
    cfg.train_dataloader.batch_size = batch


def resumed_iteration(runner: Any, meta: dict[str, Any], name: str) -> int:
    """The iteration from which a runner continues a checkpoint, with its global batch.

    With another number of processes the runner's ``accumulative_counts`` is adapted, and an epoch
    keeps its number of steps. ``keep_global_batch=False`` in the runner's config leaves the run its
    own batch; its epoch then continues after the samples that were seen, whole steps of them.

    Args:
        runner: A runner whose training loop and optimiser are built.
        meta: Of the checkpoint: ``epoch``, ``iter`` and, of a training of epochs, ``batch_layout``.
        name: The checkpoint, for messages.

    Raises:
        ValueError: the global batch cannot be kept; the message says which settings keep it.
    """
    now, stored = layout_of(runner), meta.get("batch_layout")
    if now is None or not isinstance(stored, dict):
        return meta["iter"]
    sound = stored.keys() == BatchLayout.__dataclass_fields__.keys()
    if not sound or not all(type(value) is int and value >= 1 for value in stored.values()):
        return meta["iter"]
    before = BatchLayout(**stored)
    accumulated = now.accumulated
    if runner.cfg.get("keep_global_batch", True):
        accumulated = _accumulation(before, now, name)
    elif now.global_batch != before.global_batch:
        runner.logger.warning(
            f"{name} has a global batch of {before}, this run has {now} (keep_global_batch=False): "
            "learning rate and steps per epoch are those of the new one"
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
            f"{name}: a param_scheduler counts iterations, which are others with "
            f"accumulative_counts={now.accumulated} and a global batch of {now.global_batch}; use "
            "ScheduleHook, which counts steps"
        )
    # Each rank's number of samples is rounded up, so that of all ranks depends on their number:
    # where only this has changed the number of steps, an epoch keeps those that it had.
    loader, in_epoch = runner.train_dataloader, before.iters_per_epoch // before.accumulated
    alike = (before.samples, before.global_batch) == (now.samples, now.global_batch)
    rounded = alike and abs(in_epoch - now.iters_per_epoch // now.accumulated) == 1
    if rounded and loader.drop_last and hasattr(loader.sampler, "set_total_size"):
        loader.sampler.set_total_size(in_epoch * now.global_batch)
        now = cast(BatchLayout, layout_of(runner))
    return _iteration(before, now, meta, name)


def _accumulation(before: BatchLayout, now: BatchLayout, name: str) -> int:
    """Micro-batches per step with which ``now`` has the global batch of ``before``."""
    if now.global_batch == before.global_batch:
        return now.accumulated
    accumulated, rest = divmod(before.global_batch, now.processes * now.batch_size)
    if now.processes != before.processes and not rest:
        return accumulated
    # Settings that keep the global batch, with micro-batches that are no larger than now.
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
        f"{name} was written with a global batch of {before}, this run has {now}: to keep it, give "
        f"{advice}; to go on with another: keep_global_batch=False; to start a new training from "
        "its weights: --cfg-options load_from=PATH"
    )


def _iteration(before: BatchLayout, now: BatchLayout, meta: dict[str, Any], name: str) -> int:
    """The iteration, counted by ``now``, after the steps that ``before`` has done."""
    epoch, iteration = meta["epoch"], meta["iter"]
    if before == now:
        return iteration
    # Both sides are counted in optimiser steps, which alone mean the same in two layouts.
    steps = (iteration - epoch * before.iters_per_epoch) // before.accumulated
    in_epoch = before.iters_per_epoch // before.accumulated
    if before.samples != now.samples and steps not in (0, in_epoch):
        raise ValueError(
            f"{name} was written in the middle of an epoch of {before.samples} samples, there are "
            f"{now.samples} now: resume from the end of an epoch"
        )
    last = now.iters_per_epoch // now.accumulated
    seen = steps * before.global_batch // now.global_batch  # steps, if the batch has changed
    done = last if steps == in_epoch else min(seen, last)
    return epoch * now.iters_per_epoch + done * now.accumulated
