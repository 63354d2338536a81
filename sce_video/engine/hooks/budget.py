"""Time budget of a training run, whose length is adapted to the measured speed of its steps."""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import asdict, dataclass

import torch
from mmengine.dist import broadcast, get_world_size
from mmengine.hooks import Hook

from sce_video.engine.restarts import append_or_warn
from sce_video.engine.schedules import position
from sce_video.registry import HOOKS
from sce_video.utils.records import at
from sce_video.utils.run_files import HISTORY

#: When to compare the speed with the budget, as shares of its time or steps: after each of the
#: first three quarters, and in the middle of the last one, when there is still time to react.
CHECKS = (0.25, 0.5, 0.75, 0.875)
#: The estimated time may differ from the budget by up to this share of the budget.
TOLERANCE = 0.1
#: Measure the speed over at least this share of the budget, unless half of the steps are done
#: earlier.
_MEASURED = 0.05
#: In a distributed run, the processes agree on the total number of steps only once in this many
#: steps, because they have to wait for each other.
_STEPS_PER_AGREEMENT = 10


@dataclass
class Budget:
    """State of a time budget. All times are seconds since the command began.

    Attributes:
        seconds: Budget for the whole command.
        reserved: Part of the budget that is kept for the work after training.
        since: Time and step from which the current speed is measured; None before the first step.
        checks: Number of :data:`CHECKS` that are done.
    """

    seconds: float
    reserved: float = 0.0
    since: tuple[float, int] | None = None
    checks: int = 0

    def plan(self, elapsed: float, step: int, total: int) -> int:
        """Return the number of steps in the run, which changes if the estimate misses the budget.

        The time of a step includes evaluation and saving.

        Args:
            elapsed: Time since the command began.
            step: Number of completed steps.
            total: Planned number of steps.

        Returns:
            The number of steps, at least ``step``. It equals ``step`` if the command can no longer
            end within the tolerance.
        """
        if self.since is None:  # Do not measure the first step, which starts workers and kernels.
            self.since = (elapsed, step)
            return total
        if elapsed + self.reserved > (1 + TOLERANCE) * self.seconds:
            return min(step, total)
        passed = bisect_right(CHECKS, max(elapsed / self.seconds, step / total))
        if passed <= self.checks or step >= total:
            return total
        begun, first = self.since
        if elapsed - begun < _MEASURED * self.seconds and step < total / 2:
            return total  # a few steps are not enough to measure the speed
        # Measure only since the last check, because the speed may have changed.
        each = (elapsed - begun) / (step - first)
        self.since, self.checks = (elapsed, step), passed
        left = self.seconds - self.reserved - elapsed
        if each <= 0 or abs((total - step) * each - left) <= TOLERANCE * self.seconds:
            return total
        return step + max(0, int(left / each))


@HOOKS.register_module()
class BudgetHook(Hook):
    """Hook that ends a training run so that its command stays within a time budget.

    The time of a step, with evaluation and saving, is measured again in each quarter. If the
    estimate misses the budget by more than a tenth, the number of steps is changed, and all
    schedules continue from their current values to their ends. Checkpoints record every change, so
    that a resumed run keeps it. The time between two starts does not count.

    Args:
        hours: Budget for the whole command.
        spent: Seconds that the command has taken before the training run is built.
        reserved: Seconds that the command needs after training.

    Raises:
        ValueError: If ``hours`` is not positive, or ``spent`` or ``reserved`` is negative.
    """

    priority = "NORMAL"  # runs before the iteration's checkpoint, which contains the plan

    clock = staticmethod(time.monotonic)

    def __init__(self, hours: float, spent: float = 0.0, reserved: float = 0.0) -> None:
        if not hours > 0 or spent < 0 or reserved < 0:
            raise ValueError(
                "the hours of a budget must be positive, and spent and reserved must be at least "
                f"0 seconds, got hours={hours}, spent={spent}, reserved={reserved}"
            )
        self.budget = Budget(3600 * hours, reserved)
        self._before, self._begun = spent, self.clock()

    @property
    def elapsed(self) -> float:
        """Seconds that the command has taken so far, in all starts of the run."""
        return self._before + self.clock() - self._begun

    @property
    def left(self) -> float:
        """Remaining seconds of the budget, negative after its end."""
        return self.budget.seconds - self.elapsed

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        """Continue the plan of a resumed run."""
        saved = at(checkpoint, "budget", dict)
        if not runner._resume or saved is None:
            return
        if saved["since"]:
            begun, step = saved["since"]
            self.budget.since = (float(begun), int(step))
        self.budget.checks = int(saved["checks"])
        self._before, self._begun = float(saved["elapsed"]), self.clock()
        runner.train_loop.replans = [(int(step), int(total)) for step, total in saved["replans"]]

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        """Store the measured speed and the planned number of steps."""
        checkpoint["budget"] = {
            **asdict(self.budget),
            "since": list(self.budget.since or ()),
            "elapsed": self.elapsed,
            "replans": [list(change) for change in runner.train_loop.replans],
        }

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Compare the estimate with the budget. Rank 0 decides."""
        accumulation = runner.optim_wrapper._accumulative_counts
        step, micro_batches = divmod(runner.iter + 1, accumulation)
        distributed = get_world_size() > 1
        if micro_batches or (distributed and step % _STEPS_PER_AGREEMENT):
            return
        loop, before = runner.train_loop, runner.train_loop.max_steps
        total = self.budget.plan(self.elapsed, step, before)
        if distributed:
            common = torch.tensor([total])
            broadcast(common)
            total = int(common)
        if total == before:
            return
        loop.replan(step, total)
        share = position(step, loop.planned_steps, loop.replans) / loop.planned_steps
        text = (
            f"{self.elapsed / 60:.1f} of {self.budget.seconds / 60:.1f} minutes have passed at "
            f"step {step:,}. {total:,} steps fit into the budget, not {before:,}. The learning "
            f"rate and all other schedules continue from {100 * share:.0f} % of their length to "
            "their end"
        )
        runner.logger.info(text)
        row = {"event": "replanned", "time": time.time(), "iter": runner.iter + 1}
        append_or_warn(runner, HISTORY, {**row, "epochs": loop.max_epochs, "message": text})
