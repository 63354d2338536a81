"""Hooks that watch a training: alarms in the log and in ``alarms.jsonl`` (docs/logging.md)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import Hook

from sce_video.engine.alarms import (
    Alarm,
    ChanceLevel,
    Collapse,
    DataWait,
    Detector,
    QueueFill,
    RepeatedFrames,
    report_alarm,
    report_cleared,
)
from sce_video.engine.restarts import continue_rows
from sce_video.engine.schedules import ScheduleHook, accumulative_counts
from sce_video.engine.training_check import evaluated_files, learning_rate
from sce_video.registry import HOOKS
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.errors import NamedWarning
from sce_video.utils.json_files import read_json_lines
from sce_video.utils.run_files import ALARMS, METRICS

#: Rates of SGD and LARS per 256 samples that the recipes of the papers use, and a factor of five.
LR_PER_256 = {"SGD": (0.01, 6.0), "LARS": (0.06, 18.0)}
#: Largest share of the clips of RGB differences in which frames repeat.
MAX_REPEATS = 0.25


class _DetectorHook(Hook):
    """Gives every logged row of the training to detectors and reports their alarms."""

    priority = "LOW"
    _detectors: Sequence[Detector] = ()

    @abstractmethod
    def detectors(self, runner) -> Sequence[Detector]:
        """The detectors of a training that begins."""

    def before_train(self, runner) -> None:
        """Prepare the detectors; those of a resumed run get its earlier rows again."""
        self._detectors = self.detectors(runner)
        if runner.iter:
            for row in _earlier_rows(runner):
                for detector in self._detectors:
                    detector.update(row)

    def after_row(self, runner, row: Mapping[str, Any]) -> None:
        """Report alarms that begin or end with a row."""
        if row["kind"] != "train":
            return
        for detector in self._detectors:
            was_active = detector.active
            alarm = detector.update(row)
            if alarm is not None:
                report_alarm(runner, alarm, row["iter"])
            elif was_active and not detector.active:
                report_cleared(runner, detector.name, row["iter"])


def _earlier_rows(runner) -> list[dict[str, Any]]:
    path = Path(runner.work_dir, METRICS)
    if not is_main_process() or not path.is_file():
        return []
    try:
        rows = [row for _, row in read_json_lines(path)]
    except (OSError, ValueError) as error:
        runner.logger.warning(f"alarms of this start do not know the earlier ones: {error}")
        return []
    known = [row for row in rows if row.get("kind") == "train" and type(row.get("iter")) is int]
    return [{k: v for k, v in row.items() if isinstance(v, int | float)} for row in known]


@HOOKS.register_module()
class AlarmHook(_DetectorHook):
    """Collapse, waiting for data, queue, repeated frames, learning rate, evaluated training files.

    Each alarm is reported once, and again only if its condition has ended meanwhile. None of them
    changes the training.

    Args:
        min_z_std: Spread of the embeddings z below which the network has collapsed. Of
            100 finished trainings of eight methods the least is 0.16; None for no alarm.
        min_h_std: The same for the spread of h; there the least is 0.23.
        min_h_rank: The same for the effective rank of h, 1 if all lie on a line; the least is 2.6.
        collapse_share: Share of its largest value so far below which it must be, too.
        collapse_steps: Iterations that this must last.
        first_steps: Iterations at the start in which nothing counts as collapse.
        max_data_wait: Largest share of the time spent on waiting for data; by default 0.3 on a GPU,
            and 0.7 on a CPU, which decodes on the cores that it trains on.
        data_wait_steps: Iterations of the mean of that share.
        lr_per_256: By optimiser, the least and the largest peak learning rate scaled to a batch of
            256 (linear rule); optimisers that are not named, such as AdamW, have no rule.
        max_compared_files: Files of training and evaluation up to which their content is compared,
            not only their paths.

    Raises:
        ValueError: a number of steps below 1, or ``max_data_wait`` outside 0 to 1.
    """

    def __init__(
        self,
        min_z_std: float | None = 0.15,
        min_h_std: float | None = 0.1,
        min_h_rank: float | None = 1.5,
        collapse_share: float = 0.5,
        collapse_steps: int = 50,
        first_steps: int = 100,
        max_data_wait: float | None = None,
        data_wait_steps: int = 200,
        lr_per_256: Mapping[str, Sequence[float]] | None = None,
        max_compared_files: int = 20_000,
    ) -> None:
        if collapse_steps < 1 or data_wait_steps < 1:
            raise ValueError(
                "collapse_steps and data_wait_steps must be at least 1, got "
                f"{collapse_steps} and {data_wait_steps}"
            )
        if max_data_wait is not None and not 0 <= max_data_wait <= 1:
            raise ValueError(f"max_data_wait must be from 0 to 1, got {max_data_wait}")
        minima = (("z_std", min_z_std), ("h_std", min_h_std), ("h_rank", min_h_rank))
        self.minima = {name: least for name, least in minima if least is not None}
        self.collapse_share = collapse_share
        self.collapse_steps = collapse_steps
        self.first_steps = first_steps
        self.max_data_wait = max_data_wait
        self.data_wait_steps = data_wait_steps
        self.lr_per_256 = dict(LR_PER_256 if lr_per_256 is None else lr_per_256)
        self.max_compared_files = max_compared_files

    def detectors(self, runner) -> Sequence[Detector]:
        model = unwrap_model(runner.model)
        device = next(model.parameters()).device.type
        limit = self.max_data_wait
        if limit is None:
            limit = 0.7 if device == "cpu" else 0.3
        accumulation = accumulative_counts(runner)
        queue_steps = getattr(model, "queue_steps", lambda: None)

        def iterations() -> int | None:
            steps = queue_steps()
            return None if steps is None else steps * accumulation

        return (
            Collapse(self.minima, self.collapse_share, self.collapse_steps, self.first_steps),
            DataWait(limit, self.data_wait_steps, on_gpu=device != "cpu"),
            QueueFill(iterations, lambda: runner.train_loop.max_iters),
            RepeatedFrames(MAX_REPEATS, self.data_wait_steps),
        )

    def before_train(self, runner) -> None:
        """Begin the file, or continue that of a resumed run; check what is known before."""
        path = Path(runner.work_dir, ALARMS)
        if is_main_process():
            continue_rows(runner, ALARMS)
        super().before_train(runner)
        self._queue_told = runner.iter > 0
        if is_main_process():
            self._check_before(runner, path)

    def _check_before(self, runner, path: Path) -> None:
        known: set[str] = set()  # messages of an earlier start
        with suppress(OSError, ValueError):
            known = {str(row.get("message")) for _, row in read_json_lines(path)}
        for text in getattr(runner.train_loop, "warnings", ()):  # in the log already
            if isinstance(text, NamedWarning) and text not in known:
                alarm = Alarm(text.alarm, str(text), text.value, text.threshold)
                report_alarm(runner, alarm, runner.iter, to_log=False)
        found = evaluated_files(runner, self.max_compared_files)
        if hasattr(unwrap_model(runner.model), "after_optimizer_step"):  # no classifier
            schedules = [hook for hook in runner.hooks if isinstance(hook, ScheduleHook)]
            peak = (schedules[0].peak_lr, schedules[0].global_batch) if schedules else None
            optimizer = type(runner.optim_wrapper.optimizer).__name__
            unusual = learning_rate(peak, optimizer, self.lr_per_256)
            found += [] if unusual is None else [unusual]
        for alarm in found:
            if alarm.message not in known:
                report_alarm(runner, alarm, runner.iter)

    def after_row(self, runner, row: Mapping[str, Any]) -> None:
        """Report alarms; once tell when the queue will be full of keys."""
        super().after_row(runner, row)
        if row["kind"] == "train" and not self._queue_told:
            steps = getattr(unwrap_model(runner.model), "queue_steps", lambda: None)()
            self._queue_told = steps is not None
            iterations = (steps or 0) * accumulative_counts(runner)
            if row["iter"] < iterations <= runner.train_loop.max_iters:
                runner.logger.info(
                    f"random vectors stay in the queue for {iterations - row['iter']} more "
                    f"iterations: it is full of keys after {iterations}"
                )


@HOOKS.register_module()
class ChanceLevelHook(_DetectorHook):
    """An alarm where the loss stays at that of a network that tells no samples apart.

    The chance level is the method's (``chance_level()``, see
    :class:`~sce_video.models.algorithms.base.SelfSupervisedModel`); a method without one is not
    watched.

    Args:
        share: Share of the training, from 0 to 1, that the loss may spend there.
        window: Iterations over which the loss is averaged.
        margin: The loss counts as that of chance within this share of the chance level.
        min_steps: Least number of iterations that the loss may spend there, however short the
            training is.

    Raises:
        ValueError: ``share`` or ``margin`` outside 0 to 1, or ``window`` below 1.
    """

    def __init__(
        self, share: float = 0.3, window: int = 20, margin: float = 0.01, min_steps: int = 300
    ) -> None:
        if not 0 <= share <= 1 or not 0 <= margin <= 1:
            raise ValueError(f"share and margin must be from 0 to 1, got {share} and {margin}")
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.share = share
        self.window = window
        self.margin = margin
        self.min_steps = min_steps

    def detectors(self, runner) -> Sequence[Detector]:
        chance = getattr(unwrap_model(runner.model), "chance_level", lambda: None)
        steps = max(self.min_steps, 1, math.ceil(self.share * runner.train_loop.max_iters))
        return (ChanceLevel(chance, steps, self.margin, self.window),)
