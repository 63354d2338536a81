"""A time budget: the length of a training run follows from the measured speed of its steps."""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import asdict, dataclass
from typing import Any

import torch
from mmengine.dist import broadcast, get_world_size
from mmengine.hooks import Hook

from sce_video.engine.restarts import append_or_warn
from sce_video.engine.schedules import position
from sce_video.registry import HOOKS
from sce_video.utils.run_files import HISTORY

#: Points at which the speed is compared with the budget, as shares of its time or of the steps: at
#: the end of each quarter, but in the last quarter half-way, while there is still time.
CHECKS = (0.25, 0.5, 0.75, 0.875)
#: Largest share of the budget by which the estimate may miss the budget.
TOLERANCE = 0.1
# Smallest share of the budget over which the speed is measured, unless half of the steps are done
# earlier.
_MEASURED = 0.05
#: Number of steps between agreements of the processes of a distributed training run. They wait for
#: each other each time.
_STEPS_PER_AGREEMENT = 10


@dataclass
class Budget:
    """Number of steps that fit into a budget. All times are seconds since the command began."""

    seconds: float  # budget for the whole command
    reserved: float = 0.0  # kept for the work after the training
    since: tuple[float, int] | None = None  # time and step: the present speed is measured from them
    checks: int = 0  # number of CHECKS that are done

    def plan(self, elapsed: float, step: int, total: int) -> int:
        """Return the number of steps, which is ``total`` unless the estimate misses the budget.

        A step includes evaluation and saving. The number is never lower than ``step``, which are
        done. It equals ``step`` if the command can no longer end within the tolerance.
        """
        if self.since is None:  # the first step also starts workers and tunes kernels
            self.since = (elapsed, step)
            return total
        if elapsed + self.reserved > (1 + TOLERANCE) * self.seconds:
            return min(step, total)
        passed = bisect_right(CHECKS, max(elapsed / self.seconds, step / total))
        if passed <= self.checks or step >= total:
            return total
        begun, first = self.since
        if elapsed - begun < _MEASURED * self.seconds and step < total / 2:
            return total  # a step or two tell little
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
    a resumed run continues with it. The time between two starts does not count.

    Args:
        hours: Budget of the whole command.
        spent: Seconds of the command before the training is built.
        reserved: Seconds of the command after the training.

    Raises:
        ValueError: If ``hours`` is not positive, or the others are negative.
    """

    priority = "NORMAL"  # before a checkpoint of the same iteration, because it contains the plan

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
        """Seconds of the budget that are left, negative after its end."""
        return self.budget.seconds - self.elapsed

    def after_load_checkpoint(self, runner, checkpoint: dict[str, Any]) -> None:
        """Continue the plan of a resumed run."""
        saved = checkpoint.get("budget")
        if not runner._resume or not isinstance(saved, dict):
            return
        if saved["since"]:
            begun, step = saved["since"]
            self.budget.since = (float(begun), int(step))
        self.budget.checks = int(saved["checks"])
        self._before, self._begun = float(saved["elapsed"]), self.clock()
        runner.train_loop.replans = [(int(step), int(total)) for step, total in saved["replans"]]

    def before_save_checkpoint(self, runner, checkpoint: dict[str, Any]) -> None:
        """Store what has been measured and planned."""
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
            f"step {step:,}: {total:,} steps fit into them, not {before:,}. Learning rate and all "
            f"other schedules go on from {100 * share:.0f} % of theirs to the end"
        )
        runner.logger.info(text)
        row = {"event": "replanned", "time": time.time(), "iter": runner.iter + 1}
        append_or_warn(runner, HISTORY, {**row, "epochs": loop.max_epochs, "message": text})
