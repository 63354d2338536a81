"""Schedules, which are pure functions ``f(step, total)`` of the optimiser step, 0 <= step < total.

Schedules have no state, so a resumed run gets the same values. If the length of a run changes
during the run, a step is placed between the whole numbers (:func:`position`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeGuard

from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper

from sce_video.engine.logs import MeanLogProcessor
from sce_video.registry import HOOKS
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.stored_arguments import Words

Schedule = partial[float]


def constant(step: float, total: int, *, value: float) -> float:
    """Return ``value`` at every step."""
    return value


def linear(step: float, total: int, *, start: float, end: float) -> float:
    """Go from ``start`` at step 0 to ``end`` at step ``total``."""
    return start + (end - start) * _share(step, total)


def cosine(step: float, total: int, *, start: float, end: float) -> float:
    """Go from ``start`` at step 0 to ``end`` at step ``total`` along half a cosine.

    The target's momentum goes from 0.99 to 1 (paper, appendix D.3).
    """
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * _share(step, total)))


def _warmup(step: float, peak: float, warmup_steps: int, start: float | None) -> float:
    """Warm up linearly from ``start`` or, if it is None, from ``peak / warmup_steps``."""
    if start is None:
        return peak * (step + 1) / warmup_steps
    return start + (peak - start) * step / warmup_steps


def warmup_cosine(
    step: float,
    total: int,
    *,
    peak: float,
    warmup_steps: int,
    end: float = 0.0,
    warmup_start: float | None = None,
) -> float:
    """Rise to ``peak`` in ``warmup_steps`` steps, then follow a cosine to ``end`` (appendix D.3).

    The warm-up begins at ``warmup_start`` or, if it is None, at ``peak / warmup_steps``::

    value   peak |      .-.
                 |    /     `.
                 |  /          `.
             end |/______________`.___
                  0   warmup       total
    """
    if step < warmup_steps:
        return _warmup(step, peak, warmup_steps, warmup_start)
    return cosine(step - warmup_steps, max(1, total - warmup_steps), start=peak, end=end)


def multistep(
    step: float,
    total: int,
    *,
    start: float,
    milestones: tuple[int, ...],
    factor: float = 0.1,
    warmup_steps: int = 0,
    warmup_start: float | None = None,
) -> float:
    """Rise to ``start`` in ``warmup_steps`` steps, then multiply by ``factor`` at each milestone.

    The warm-up begins at ``warmup_start`` or, if it is None, at ``start / warmup_steps``.
    """
    if step < warmup_steps:
        return _warmup(step, start, warmup_steps, warmup_start)
    return start * factor ** sum(step >= milestone for milestone in milestones)


def steps(
    step: float, total: int, *, values: tuple[float, ...], milestones: tuple[int, ...]
) -> float:
    """Return ``values[i]`` between milestones i - 1 and i, and the last value until the end."""
    return values[sum(step >= milestone for milestone in milestones)]


def position(step: int, total: int, changes: Sequence[tuple[int, int]]) -> float:
    """Convert a step to a position in the original schedules, whose length was changed.

    After a change, the rest of the schedule is stretched over the remaining steps, so that no value
    jumps and each schedule reaches its end::

        total 8, changes [(4, 12)]     step       0 1 2 3 4   6   8   10   12
                                       position   0 1 2 3 4   5   6    7    8

    Args:
        step: Optimiser step.
        total: Length of the schedules in steps.
        changes: Pairs (step, new total) in ascending order. Without changes, the position is the
            step.
    """
    begun, at, end = 0, 0.0, total
    for changed, new in changes:
        if changed >= step:
            break
        at += (changed - begun) * (total - at) / (end - begun)
        begun, end = changed, new
    return at + (step - begun) * (total - at) / (end - begun)


def _share(step: float, total: int) -> float:
    return min(1.0, step / total) if total > 0 else 1.0


_FUNCTIONS = (constant, linear, cosine, warmup_cosine, multistep, steps)
SCHEDULES: dict[str, Callable[..., float]] = {f.__name__: f for f in _FUNCTIONS}


def build_schedule(spec: float | Mapping[str, Any], steps_per_epoch: int) -> Schedule:
    """Build a schedule from a number (constant) or ``dict(name="cosine", start=0.99, end=1.0)``.

    Durations may be given in epochs, as ``warmup_epochs`` instead of ``warmup_steps`` and
    ``milestone_epochs`` instead of ``milestones``. The result is a ``functools.partial`` of one of
    :data:`SCHEDULES`.

    Raises:
        ValueError: If ``spec`` is not a number or dict, the name is unknown, an argument is missing
            or not accepted, a value is not a number, or milestones are not in order.
    """
    if _is_number(spec):
        return partial(constant, value=float(spec))
    if not isinstance(spec, Mapping):
        raise ValueError(f"a schedule is a number or a dict with a name, got {spec!r}")
    given, arguments = dict(spec), dict(spec)
    name = arguments.pop("name", None)
    if name not in SCHEDULES:
        raise ValueError(f"unknown schedule {name!r} in {given}. Use one of {sorted(SCHEDULES)}")
    _check_durations(arguments, given)
    if "warmup_epochs" in arguments:
        arguments["warmup_steps"] = round(arguments.pop("warmup_epochs") * steps_per_epoch)
    if "milestone_epochs" in arguments:
        epochs = arguments.pop("milestone_epochs")
        arguments["milestones"] = tuple(round(e * steps_per_epoch) for e in epochs)
    parameters = inspect.signature(SCHEDULES[name]).parameters.values()
    taken = {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}
    unknown = sorted(set(arguments) - set(taken))
    missing = sorted(key for key, required in taken.items() if required and key not in arguments)
    if unknown or missing:
        raise ValueError(
            f"schedule {name!r} in {given}: unknown arguments {unknown}, missing {missing}. It "
            f"accepts {sorted(taken)}"
        )
    _check_values(arguments, given)
    return partial(SCHEDULES[name], **arguments)


#: Arguments that are lists of numbers.
_LISTS = ("milestone_epochs", "milestones", "values")


def _check_durations(arguments: Mapping[str, Any], given: Mapping[str, object]) -> None:
    """Raise ValueError unless durations are numbers of at least 0, and lists consist of numbers."""
    for key in ("warmup_epochs", "warmup_steps"):
        duration = arguments.get(key, 0)
        if not _is_number(duration) or not 0 <= duration < math.inf:
            raise ValueError(f"{key} must be a number of at least 0 in {given}")
    for key in _LISTS:
        listed = arguments.get(key, ())
        if not isinstance(listed, list | tuple):
            raise ValueError(f"{key} must be a list in {given}. Write {key}=[{listed!r}]")
        if not all(_is_number(v) and math.isfinite(v) for v in listed):
            raise ValueError(f"{key} must contain only finite numbers in {given}")


def _check_values(arguments: Mapping[str, Any], given: Mapping[str, object]) -> None:
    """Raise ValueError if a value is not a finite number, or if milestones do not fit."""
    for key, value in arguments.items():
        if key not in _LISTS and not (_is_number(value) and math.isfinite(value)):
            raise ValueError(f"{key} must be a finite number in {given}")
    milestones, values = arguments.get("milestones", ()), arguments.get("values")
    if any(a >= b for a, b in pairwise((0, *milestones))):
        raise ValueError(f"milestones must increase and lie after step 0 in {given}")
    if values is not None and len(values) != len(milestones) + 1:
        raise ValueError(
            f"{len(values)} values need {len(values) - 1} milestones, but there are "
            f"{len(milestones)} in {given}"
        )


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


@HOOKS.register_module()
class ScheduleHook(Hook):
    """Hook that sets the learning rate and numbers of the model before every iteration.

    With gradient accumulation, all micro-batches of an optimiser step share its values. The
    learning rate follows the linear scaling rule: the optimiser's ``lr`` is meant for a global
    batch of ``base_batch_size``, and is multiplied by the actual batch divided by
    ``base_batch_size``. The actual batch is batch size x ranks x accumulated micro-batches.

    Args:
        lr: Schedule of the learning rate, for example ``dict(name="warmup_cosine",
            warmup_epochs=35)``. Its peak (or start) is the scaled rate. ``end`` and
            ``warmup_start`` are rates for ``base_batch_size`` too. Each parameter group is also
            scaled by its ``lr_scale``. None keeps the rate constant.
        model: Schedules by name of a number in the model, for example
            ``dict(momentum=dict(name="cosine", start=0.99, end=1.0))``.
        base_batch_size: Global batch that ``lr`` is meant for. None disables scaling.
        weight_decay: Schedule of the weight decay, for the parameter groups that have one. None
            keeps it constant.

    Raises:
        ValueError: If ``base_batch_size`` is below 1, or a duration is not a number.
    """

    priority = "HIGHEST"  # runs before RuntimeInfoHook, which logs the rates

    def __init__(
        self,
        lr: Mapping[str, Any] | None = None,
        model: Mapping[str, Any] | None = None,
        base_batch_size: int | None = 256,
        weight_decay: Words | None = None,
    ) -> None:
        if base_batch_size is not None and base_batch_size < 1:
            raise ValueError(f"base_batch_size must be at least 1 or None, got {base_batch_size}")
        for spec in (lr, weight_decay, *(model or {}).values()):
            if isinstance(spec, Mapping):
                _check_durations(spec, dict(spec))
        self.lr, self.model, self.base_batch_size = lr, dict(model or {}), base_batch_size
        self.weight_decay, self._is_decayed = weight_decay, [False]
        self._base_lrs: list[float] = []
        self._lr_scales: list[float] = []  # factors of layer decay, already included in the rates

    def before_run(self, runner) -> None:
        """Store the configured rates, because loading a checkpoint overwrites them."""
        if isinstance(runner.optim_wrapper, OptimWrapper):  # not built when only testing
            groups = runner.optim_wrapper.optimizer.param_groups
            self._base_lrs = [group["lr"] for group in groups]
            self._lr_scales = [group.get("lr_scale", 1.0) for group in groups]
            self._is_decayed = [bool(group["weight_decay"]) for group in groups]

    def before_train(self, runner) -> None:
        """Build the schedules, whose durations may be in epochs, and log the scaled rate.

        Raises:
            ValueError: If the model lacks a scheduled number or refuses its values, or a schedule
                is malformed.
        """
        self._accumulation = accumulation = runner.optim_wrapper._accumulative_counts
        steps_per_epoch = max(1, runner.train_loop.iters_per_epoch // accumulation)
        self._total = steps_per_epoch * runner.train_loop.planned_epochs
        own, ranks = runner.train_dataloader.batch_size, get_world_size()
        batch = own * ranks * accumulation
        factor = batch / self.base_batch_size if self.base_batch_size else 1.0
        rates = [rate * factor for rate in self._base_lrs]
        self.peak_lr, self.global_batch = rates[0], batch
        runner.logger.info(
            f"global batch {batch} ({own} x {ranks} ranks x {accumulation} accumulated), learning "
            f"rate {self._base_lrs[0]:g} "
            f"x {factor:g} = {rates[0]:g}, {self._total} optimiser steps"
        )
        specs: list[Any] = rates
        if self.lr is not None:
            first = "peak" if self.lr.get("name") == "warmup_cosine" else "start"
            specs = [{**self.lr, first: rate} for rate in rates]
            for spec, scale in zip(specs, self._lr_scales, strict=True):
                for name in {"end", "warmup_start"} & spec.keys():
                    spec[name] *= factor * scale
        self._lr_schedules = [build_schedule(spec, steps_per_epoch) for spec in specs]
        decay = self.weight_decay
        self._decay = None if decay is None else build_schedule(decay, steps_per_epoch)
        model = unwrap_model(runner.model)
        before = {name: getattr(model, name, None) for name in self.model}
        for name, value in before.items():
            if not _is_number(value):
                raise ValueError(
                    f"ScheduleHook: {type(model).__name__} has no number {name!r} to schedule"
                )
        if isinstance(runner.log_processor, MeanLogProcessor):
            runner.log_processor.show_current(self.model)
        schedules = {name: build_schedule(s, steps_per_epoch) for name, s in self.model.items()}
        self._model_schedules = schedules
        # Let the method check the values at the first, middle and last step and at milestones. Set
        # all values before each check, because the method may compare them.
        check = getattr(model, "check_settings", lambda: None)
        steps = {0, self._total // 2, self._total - 1}
        for schedule in schedules.values():
            steps |= {s for s in schedule.keywords.get("milestones", ()) if s < self._total}
        for step in sorted(steps):
            for name, schedule in schedules.items():
                setattr(model, name, schedule(step, self._total))
            check()
        for name, value in before.items():
            setattr(model, name, value)

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        done = runner.iter // self._accumulation
        step = position(done, self._total, runner.train_loop.replans)
        groups = runner.optim_wrapper.optimizer.param_groups
        # Set the rates instead of multiplying them, because resumed groups contain the rates from
        # their last step.
        for group, schedule in zip(groups, self._lr_schedules, strict=True):
            group["lr"] = schedule(step, self._total)
        if self._decay is not None:
            decay = self._decay(step, self._total)
            for group, decayed in zip(groups, self._is_decayed, strict=True):
                group["weight_decay"] = decay if decayed else 0.0
            runner.message_hub.update_scalar("train/weight_decay", decay)
        model = unwrap_model(runner.model)
        for name, schedule in self._model_schedules.items():
            value = schedule(step, self._total)
            setattr(model, name, value)
            runner.message_hub.update_scalar(f"train/{name}", value)
