"""One hook for all values that follow a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper

from sce_video.engine.log_processor import MeanLogProcessor
from sce_video.engine.schedules import build_schedule, position
from sce_video.registry import HOOKS
from sce_video.utils.distributed import unwrap_model


@HOOKS.register_module()
class ScheduleHook(Hook):
    """Sets the learning rate and numbers of the model before every iteration.

    A schedule is a function of the optimiser step; with gradient accumulation all micro-batches of
    a step share its values. Where the training is given another length on the way, the rest of the
    schedule is stretched over the steps that are left.

    The learning rate follows the linear scaling rule: the optimiser's ``lr`` is meant for
    ``base_batch_size`` and is multiplied by ``actual / base_batch_size``, where the actual global
    batch is batch size x ranks x accumulated micro-batches.

    Args:
        lr: Schedule of the learning rate without its peak (or start) value, which is the scaled
            rate: e.g. ``dict(name="warmup_cosine", warmup_epochs=35)``. Its ``end`` is a rate too
            and is scaled alike. None keeps the rate constant.
        model: Schedules by attribute of the model, any number of it, e.g. ``dict(momentum=dict(
            name="cosine", start=0.99, end=1.0))``; see :mod:`sce_video.engine.schedules`.
        base_batch_size: The global batch that the optimiser's ``lr`` is meant for; None for no
            scaling.

    Raises:
        ValueError: ``base_batch_size`` below 1.
    """

    priority = "HIGHEST"  # before RuntimeInfoHook, which logs the rates

    def __init__(
        self,
        lr: Mapping[str, Any] | None = None,
        model: Mapping[str, Any] | None = None,
        base_batch_size: int | None = 256,
    ) -> None:
        if base_batch_size is not None and base_batch_size < 1:
            raise ValueError(f"base_batch_size must be at least 1 or None, got {base_batch_size}")
        self.lr = lr
        self.model = dict(model or {})
        self.base_batch_size = base_batch_size
        self._base_lrs: list[float] = []

    def before_run(self, runner) -> None:
        """Keep the configured rates: a checkpoint, loaded later, overwrites them."""
        if isinstance(runner.optim_wrapper, OptimWrapper):  # not built when only testing
            groups = runner.optim_wrapper.optimizer.param_groups
            self._base_lrs = [group["lr"] for group in groups]

    def before_train(self, runner) -> None:
        """Build the schedules, whose durations may be in epochs, and log the scaled rate.

        Raises:
            ValueError: the model has no such number or refuses its values, or a schedule is
                malformed.
        """
        accumulation = accumulative_counts(runner)
        steps_per_epoch = max(1, runner.train_loop.iters_per_epoch // accumulation)
        self._accumulation = accumulation
        self._total = steps_per_epoch * runner.train_loop.planned_epochs
        batch = runner.train_dataloader.batch_size * get_world_size() * accumulation
        factor = batch / self.base_batch_size if self.base_batch_size else 1.0
        rates = [rate * factor for rate in self._base_lrs]
        self.peak_lr, self.global_batch = rates[0], batch
        runner.logger.info(
            f"global batch {batch} ({runner.train_dataloader.batch_size} x {get_world_size()} "
            f"ranks x {accumulation} accumulated), learning rate {self._base_lrs[0]:g} "
            f"x {factor:g} = {rates[0]:g}, {self._total} optimiser steps"
        )
        self._lr_schedules = [self._build_lr(rate, factor, steps_per_epoch) for rate in rates]
        model = unwrap_model(runner.model)
        for name in self.model:
            value = getattr(model, name, None)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(
                    f"ScheduleHook: {type(model).__name__} has no number {name!r} to schedule"
                )
        if isinstance(runner.log_processor, MeanLogProcessor):
            runner.log_processor.show_current(self.model)
        self._model_schedules = {
            name: build_schedule(spec, steps_per_epoch) for name, spec in self.model.items()
        }
        self._check_values(model)

    def _check_values(self, model) -> None:
        """Let the method check the values of the first, middle and last step and of milestones.

        All schedules are set together, since a method may compare its numbers.
        """
        check = getattr(model, "check_settings", lambda: None)
        schedules = self._model_schedules
        before = {name: getattr(model, name) for name in schedules}
        steps = {0, self._total // 2, self._total - 1}
        for schedule in schedules.values():
            steps |= {s for s in schedule.keywords.get("milestones", ()) if s < self._total}
        for step in sorted(steps):
            for name, schedule in schedules.items():
                setattr(model, name, schedule(step, self._total))
            check()
        for name, value in before.items():
            setattr(model, name, value)

    def _build_lr(self, rate: float, factor: float, steps_per_epoch: int):
        if self.lr is None:
            return build_schedule(rate, steps_per_epoch)
        spec = {**self.lr, "peak" if self.lr.get("name") == "warmup_cosine" else "start": rate}
        if "end" in spec:
            spec["end"] *= factor
        return build_schedule(spec, steps_per_epoch)

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        done = runner.iter // self._accumulation
        step = position(done, self._total, runner.train_loop.replans)
        groups = runner.optim_wrapper.optimizer.param_groups
        for group, schedule in zip(groups, self._lr_schedules, strict=True):
            group["lr"] = schedule(step, self._total)
        model = unwrap_model(runner.model)
        for name, schedule in self._model_schedules.items():
            value = schedule(step, self._total)
            setattr(model, name, value)
            runner.message_hub.update_scalar(f"train/{name}", value)


def accumulative_counts(runner) -> int:
    """Micro-batches per optimiser step."""
    return runner.optim_wrapper._accumulative_counts
