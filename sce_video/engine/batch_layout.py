"""How a global batch is divided over processes, and where another division resumes a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmengine.dist import get_world_size


@dataclass(frozen=True)
class BatchLayout:
    """A global batch: ``processes`` x ``batch_size`` x ``accumulated`` samples.

    ``ResumableSampler`` gives rank r the samples r, r + processes, ... of an epoch's order, so an
    optimiser step has the same samples in every layout with the same global batch.

    Attributes:
        processes: Ranks.
        batch_size: Samples of a rank's micro-batch.
        accumulated: Micro-batches of an optimiser step.
        iters_per_epoch: Micro-batches of a rank in an epoch.
        samples: Samples of the data set.
    """

    processes: int
    batch_size: int
    accumulated: int
    iters_per_epoch: int
    samples: int

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
    return BatchLayout(
        processes=get_world_size(),
        batch_size=loader.batch_size,
        accumulated=runner.optim_wrapper._accumulative_counts,
        iters_per_epoch=iters,
        samples=len(loader.dataset),
    )


def resumed_iteration(runner: Any, meta: dict[str, Any], name: str) -> int:
    """The iteration from which a runner continues a checkpoint, with its global batch.

    With another number of processes the runner's ``accumulative_counts`` is adapted.

    Args:
        runner: A runner whose training loop and optimiser are built.
        meta: Of the checkpoint: ``epoch``, ``iter``, and ``batch_layout`` if it was written by a
            training of epochs.
        name: The checkpoint, for messages.

    Raises:
        ValueError: the global batch cannot be kept; the message says which settings keep it.
    """
    before, now = _stored(meta), layout_of(runner)
    if before is None or now is None:
        return meta["iter"]
    accumulated = _accumulation(before, now, name)
    if accumulated != now.accumulated:
        runner.optim_wrapper._accumulative_counts = accumulated
        runner.logger.warning(
            f"{name} has a global batch of {before}: with {now.processes} x {now.batch_size} "
            f"samples, optim_wrapper.accumulative_counts is {accumulated}, not {now.accumulated}"
        )
        now = layout_of(runner)
        assert now is not None
    if runner.param_schedulers and now.accumulated != before.accumulated:
        raise ValueError(
            f"{name}: a param_scheduler counts iterations, which are others with "
            f"accumulative_counts={now.accumulated}; use ScheduleHook, which counts steps"
        )
    return _iteration(before, now, meta, name)


def _stored(meta: dict[str, Any]) -> BatchLayout | None:
    stored = meta.get("batch_layout")
    if not isinstance(stored, dict) or set(stored) != set(BatchLayout.__dataclass_fields__):
        return None
    sound = all(type(value) is int and value >= 1 for value in stored.values())
    return BatchLayout(**stored) if sound else None


def _accumulation(before: BatchLayout, now: BatchLayout, name: str) -> int:
    """Micro-batches per step with which ``now`` has the global batch of ``before``."""
    if now.global_batch == before.global_batch:
        return now.accumulated
    accumulated, rest = divmod(before.global_batch, now.processes * now.batch_size)
    if now.processes != before.processes and not rest:
        return accumulated
    raise ValueError(
        f"{name} was written with a global batch of {before}, this run has {now}: to keep it, give "
        f"{_advice(before, now)}; to start a new training from its weights: --cfg-options "
        "load_from=PATH"
    )


def _advice(before: BatchLayout, now: BatchLayout) -> str:
    """Settings that keep the global batch, with micro-batches that are no larger than now."""
    per_process, rest = divmod(before.global_batch, now.processes)
    if rest:
        return f"a number of processes that divides {before.global_batch}"
    batch, accumulated = before.batch_size, before.accumulated
    if now.processes != before.processes:
        batch = next(b for b in range(now.batch_size, 0, -1) if per_process % b == 0)
        accumulated = per_process // batch
    return f"train_dataloader.batch_size={batch} optim_wrapper.accumulative_counts={accumulated}"


def _iteration(before: BatchLayout, now: BatchLayout, meta: dict[str, Any], name: str) -> int:
    """The iteration, counted by ``now``, after the steps that ``before`` has done."""
    epoch, iteration = meta["epoch"], meta["iter"]
    if before == now:
        return iteration
    steps = (iteration - epoch * before.iters_per_epoch) // before.accumulated
    in_epoch = before.iters_per_epoch // before.accumulated
    if before.samples != now.samples and steps not in (0, in_epoch):
        raise ValueError(
            f"{name} was written in the middle of an epoch of {before.samples} samples, there are "
            f"{now.samples} now: resume from the end of an epoch"
        )
    # The steps of an epoch may differ by one: each rank's number of samples is rounded up.
    last = now.iters_per_epoch // now.accumulated
    done = last if steps == in_epoch else min(steps, last)
    return epoch * now.iters_per_epoch + done * now.accumulated
