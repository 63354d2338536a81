"""Schedules: pure functions ``f(step, total)`` of the optimiser step, 0 <= step < total.

Where the length of a training is changed on the way, steps are no whole numbers (:func:`position`).

They have no state, so a resumed run gets the same values.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

Schedule = partial[float]


def constant(step: float, total: int, *, value: float) -> float:
    """Always ``value``."""
    return value


def linear(step: float, total: int, *, start: float, end: float) -> float:
    """From ``start`` at step 0 to ``end`` at step ``total``."""
    return start + (end - start) * _share(step, total)


def cosine(step: float, total: int, *, start: float, end: float) -> float:
    """From ``start`` at step 0 to ``end`` at step ``total`` along half a cosine.

    The target's momentum: 0.99 to 1 (paper, appendix D.3).
    """
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * _share(step, total)))


def warmup_cosine(
    step: float,
    total: int,
    *,
    peak: float,
    warmup_steps: int,
    end: float = 0.0,
) -> float:
    """Linear up to ``peak`` in ``warmup_steps`` steps, then a cosine to ``end`` (appendix D.3)::

    value   peak |      .-.
                 |    /     `.
                 |  /          `.
             end |/______________`.___
                  0   warmup       total
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return cosine(step - warmup_steps, max(1, total - warmup_steps), start=peak, end=end)


def multistep(
    step: float,
    total: int,
    *,
    start: float,
    milestones: tuple[int, ...],
    factor: float = 0.1,
    warmup_steps: int = 0,
) -> float:
    """Linear up to ``start`` in ``warmup_steps`` steps, then times ``factor`` at each milestone."""
    if step < warmup_steps:
        return start * (step + 1) / warmup_steps
    return start * factor ** sum(step >= milestone for milestone in milestones)


def steps(
    step: float, total: int, *, values: tuple[float, ...], milestones: tuple[int, ...]
) -> float:
    """``values[i]`` from milestone i - 1 on: the first value at step 0, the last until the end."""
    return values[sum(step >= milestone for milestone in milestones)]


def position(step: int, total: int, changes: Sequence[tuple[int, int]]) -> float:
    """Where a step lies in schedules of ``total`` steps whose length was changed on the way.

    After a change the rest of the schedule is stretched over the steps that are left, so that no
    value jumps and each ends where it would have::

        total 8, changes [(4, 12)]     step       0 1 2 3 4   6   8   10   12
                                       position   0 1 2 3 4   5   6    7    8

    Args:
        step: Optimiser step.
        total: Steps that were planned.
        changes: (step, new total), ascending by step; without any the position is the step.
    """
    place: float = step
    begun, at, end = 0, 0.0, total
    for changed, new in changes:
        if changed >= step:
            break
        at += (changed - begun) * (total - at) / (end - begun)
        begun, end = changed, new
        place = at + (step - begun) * (total - at) / (end - begun)
    return place


def _share(step: float, total: int) -> float:
    return min(1.0, step / total) if total > 0 else 1.0


SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "warmup_cosine": warmup_cosine,
    "multistep": multistep,
    "steps": steps,
}


def build_schedule(spec: float | Mapping[str, Any], steps_per_epoch: int) -> Schedule:
    """A schedule from a number (constant) or ``dict(name="cosine", start=0.99, end=1.0)``.

    Durations may be given in epochs: ``warmup_epochs`` for ``warmup_steps`` and
    ``milestone_epochs`` for ``milestones``. The result is a ``functools.partial`` of one of
    :data:`SCHEDULES`.

    Raises:
        ValueError: no number or dict, an unknown name, arguments that the schedule does not take
            or lacks, or whose values are no numbers or in no order.
    """
    if isinstance(spec, int | float) and not isinstance(spec, bool):
        return partial(constant, value=float(spec))
    if not isinstance(spec, Mapping):
        raise ValueError(f"a schedule is a number or a dict with a name, got {spec!r}")
    arguments = dict(spec)
    name = arguments.pop("name", None)
    if name not in SCHEDULES:
        raise ValueError(f"unknown schedule {name!r} in {dict(spec)}; known: {sorted(SCHEDULES)}")
    for key in ("warmup_epochs", "warmup_steps"):
        if arguments.get(key, 0) < 0:
            raise ValueError(f"{key} must not be negative in {dict(spec)}")
    if "warmup_epochs" in arguments:
        arguments["warmup_steps"] = round(arguments.pop("warmup_epochs") * steps_per_epoch)
    if "milestone_epochs" in arguments:
        epochs = arguments.pop("milestone_epochs")
        arguments["milestones"] = tuple(round(e * steps_per_epoch) for e in epochs)
    function = SCHEDULES[name]
    parameters = inspect.signature(function).parameters.values()
    allowed = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    required = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    unknown, missing = set(arguments) - allowed, required - set(arguments)
    if unknown or missing:
        raise ValueError(
            f"schedule {name!r} in {dict(spec)}: unknown arguments {sorted(unknown)}, "
            f"missing {sorted(missing)}; it takes {sorted(allowed)}"
        )
    _check_arguments(spec, arguments)
    return partial(function, **arguments)


def _check_arguments(spec: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for what is no finite number, and for milestones that do not fit."""
    for key, value in arguments.items():
        is_list = isinstance(value, list | tuple) and key in ("values", "milestones")
        for number in value if is_list else [value]:
            real = isinstance(number, int | float) and not isinstance(number, bool)
            if not real or not math.isfinite(number):
                raise ValueError(f"{key} must be made of finite numbers in {dict(spec)}")
    milestones = arguments.get("milestones", ())
    if any(a >= b for a, b in pairwise((0, *milestones))):
        raise ValueError(f"milestones must increase and lie after step 0 in {dict(spec)}")
    if "values" in arguments and len(arguments["values"]) != len(milestones) + 1:
        raise ValueError(
            f"{len(arguments['values'])} values need {len(arguments['values']) - 1} milestones, "
            f"got {len(milestones)} in {dict(spec)}"
        )
