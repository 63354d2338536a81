"""Hooks and detectors for training alarms in the log and ``alarms.jsonl`` (docs/logging.md)."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from mmengine.dist import is_main_process
from mmengine.hooks import Hook

from sce_video.engine.restarts import append_or_warn, continue_rows
from sce_video.engine.schedules import ScheduleHook
from sce_video.engine.training_check import evaluated_files, unusual_rate
from sce_video.registry import HOOKS
from sce_video.utils.command import printable_utf8
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.errors import Alarm
from sce_video.utils.files import read_json_lines
from sce_video.utils.records import at
from sce_video.utils.run_files import ALARMS, METRICS

#: Values in one row of the log, by name.
Row = Mapping[str, Any]
#: An alarm ends when its condition has not been met for this many rows. A single row is not enough,
#: because a value that hovers around its threshold would be reported again and again.
_ROWS_TO_CLEAR = 10
#: Range of learning rates per 256 samples in the papers' recipes, widened by a factor of 5.
LR_PER_256 = {"SGD": (0.01, 6.0), "LARS": (0.06, 18.0)}
#: Maximum share of RGB-difference clips that may contain repeated frames.
MAX_REPEATS = 0.25


def report_alarm(runner: Any, alarm: Alarm, iteration: int, to_log: bool = True) -> None:
    """Write an alarm to ``alarms.jsonl`` on rank 0, and to the log unless ``to_log`` is False."""
    message = printable_utf8(alarm.message)
    if to_log:
        # Log errors as warnings, too, because mmengine adds the source file and line to errors.
        runner.logger.warning(f"alarm {alarm.name}: {message}")
    _write_row(runner, iteration, {**alarm.row(), "message": message})


def _write_row(runner: Any, iteration: int, row: Row) -> None:
    epoch = runner.epoch + 1 if iteration else 0
    when = {"iter": iteration, "epoch": epoch, "time": time.time()}
    append_or_warn(runner, ALARMS, {**row, **when})


@dataclass
class Detector:
    """Base class of conditions that raise an alarm when they begin.

    An alarm can be raised again only after its condition has ended. The state of a detector depends
    only on the rows that it receives, so a resumed training run restores the state by passing the
    rows of ``metrics.jsonl`` again.
    """

    name: ClassVar[str]
    active = False
    _rows_without = 0
    #: Pairs (iteration, value) from the last iterations, by metric.
    _recent: dict[str, deque[tuple[int, float]]] = field(default_factory=dict, init=False)

    @abstractmethod
    def condition(self, row: Row) -> Alarm | None:
        """Return the alarm if the condition holds for a row. Every row is passed exactly once."""

    def update(self, row: Row) -> Alarm | None:
        """Process a row, and return the alarm if its condition begins with this row.

        Afterwards, ``active`` is True until ten rows in succession do not meet the condition.
        """
        alarm = self.condition(row)
        begins = alarm is not None and not self.active
        self._rows_without = 0 if alarm is not None else self._rows_without + 1
        self.active = begins or (self.active and self._rows_without < _ROWS_TO_CLEAR)
        return alarm if begins else None

    def mean(self, metric: str, row: Row, window: int) -> float:
        """Return the mean of a metric over the last ``window`` iterations; NaN without values.

        Every row must be passed exactly once.
        """
        rows = self._recent.setdefault(metric, deque())
        if metric in row:
            rows.append((row["iter"], row[metric]))
        while rows and rows[0][0] <= row["iter"] - window:
            rows.popleft()
        return sum(value for _, value in rows) / len(rows) if rows else math.nan


@dataclass
class Collapse(Detector):
    """Detector of a collapse, in which a batch's representations or embeddings become alike.

    A metric must be below its minimum and also below a share of its largest value so far, because
    some networks, such as transformers, have similar features before they are trained.

    Attributes:
        minima: Smallest healthy value by metric name.
        share: Share of the largest value so far.
        steps: Iterations for which a metric must stay below both limits.
        first: Number of initial iterations that are ignored.
    """

    minima: Mapping[str, float]
    share: float
    steps: int
    first: int
    name = "collapse"
    _largest: dict[str, float] = field(default_factory=dict, init=False)
    _since: dict[str, int] = field(default_factory=dict, init=False)

    def condition(self, row: Row) -> Alarm | None:
        below = []
        for name, least in self.minima.items():
            value = row.get(name, math.nan)
            self._largest[name] = max(self._largest.get(name, value), value)
            if value < least and value < self.share * self._largest[name]:
                below.append(name)
        if row["iter"] <= self.first:
            return None
        since = self._since
        self._since = {name: since[name] if name in since else row["iter"] for name in below}
        lasting = [name for name in below if row["iter"] - self._since[name] >= self.steps]
        if not lasting:
            return None
        values = " and ".join(f"{n} {row[n]:.3f} (below {self.minima[n]:g})" for n in lasting)
        text = (
            f"the network has collapsed: {values} for {row['iter'] - self._since[lasting[0]]} "
            "iterations. It maps different samples to nearly the same point, and further training "
            "will not help. The documentation explains how to prevent this (logs and alarms, "
            "collapse)"
        )
        return Alarm(text, self.name, row[lasting[0]], self.minima[lasting[0]], "error")


@dataclass
class ChanceLevel(Detector):
    """Detector of a loss that stays at chance level, such as log(K+1).

    Many training runs start above chance level, because other samples are close to the queries,
    and pass it on the way down.

    Attributes:
        chance: Function that returns the method's chance level, or None until it is known.
        steps: Iterations for which the loss may stay at chance level.
        margin: Relative distance up to which the loss counts as chance level.
        window: Iterations over which the loss is averaged.
    """

    chance: Callable[[], float | None]
    steps: int
    margin: float
    window: int
    name = "chance_level"
    _last_apart = 0

    def condition(self, row: Row) -> Alarm | None:
        chance, loss = self.chance(), self.mean("loss", row, self.window)
        if chance is None or not abs(loss - chance) <= self.margin * chance:
            self._last_apart = row["iter"]
            return None
        spent = row["iter"] - self._last_apart
        if spent < self.steps:
            return None
        text = (
            f"the loss is {loss:.3f} and has been at chance level {chance:.3f} for {spent} "
            "iterations, so the network cannot tell samples apart. If the loss stays there, use "
            "more iterations (train_cfg.max_epochs, a smaller batch) or a different learning rate"
        )
        return Alarm(text, self.name, loss, chance)


@dataclass
class DataWait(Detector):
    """Detector of training that spends too much of its time waiting for data.

    Attributes:
        threshold: Largest share of the time.
        steps: Iterations over which the share is averaged. As many are ignored at the start.
        on_gpu: Whether the network runs on a GPU, for the advice.
    """

    threshold: float
    steps: int
    on_gpu: bool
    name = "data_wait"

    def condition(self, row: Row) -> Alarm | None:
        if row["iter"] <= self.steps:
            return None  # workers are still starting, and files are not cached yet
        share = self.mean("data_wait", row, self.steps)
        if not share > self.threshold:
            return None
        rows = self._recent["data_wait"]
        if rows[-1][0] - rows[0][0] < 3 * self.steps // 4:
            return None
        advice = "The GPU waits. Raise train_dataloader.num_workers up to the number of cores"
        if not self.on_gpu:
            advice = (
                "Decoding takes longer than the network. If cores are idle, raise "
                "train_dataloader.num_workers (OMP_NUM_THREADS limits the network's cores)"
            )
        text = (
            f"{100 * share:.0f} % of the time of the last {self.steps} iterations was "
            f"spent waiting for data (more than {100 * self.threshold:.0f} %). {advice}, or reduce "
            "the size of the videos with `sce-video repack`"
        )
        return Alarm(text, self.name, share, self.threshold)


@dataclass
class QueueFill(Detector):
    """Detector of a queue that will still contain random initial vectors when training ends."""

    runner: Any
    name = "queue_fill"

    def iterations(self) -> int | None:
        """Return the iterations that fill the method's queue; None without a queue."""
        steps = getattr(unwrap_model(self.runner.model), "queue_steps", lambda: None)()
        return None if steps is None else steps * self.runner.optim_wrapper._accumulative_counts

    def condition(self, row: Row) -> Alarm | None:
        needed, total = self.iterations(), self.runner.train_loop.max_iters
        if needed is None or needed <= total:
            return None
        text = (
            f"the queue is full of keys after {needed} iterations, but the training has {total}, "
            "so it contains random vectors until the end. Use a shorter queue, or train longer"
        )
        return Alarm(text, self.name, needed, total)


@dataclass
class RepeatedFrames(Detector):
    """Detector of repeated frames, which turn RGB-difference clips grey, unlike in the paper.

    Attributes:
        threshold: Largest share of RGB-difference clips with repeated frames.
        steps: Iterations over which the share is averaged. Half as many are ignored at the start.
    """

    threshold: float
    steps: int
    name = "repeated_frames"

    def condition(self, row: Row) -> Alarm | None:
        share = self.mean("diff_repeats", row, self.steps)
        as_rgb = self.mean("diff_as_rgb", row, self.steps)
        if 2 * row["iter"] < self.steps or not share > self.threshold:
            return None
        text = (
            f"frames repeat in {100 * share:.0f} % of the RGB-difference clips (more than "
            f"{100 * self.threshold:.0f} %). With DecodeClips.skip_repeats=True, which sce-video "
            "pretrain sets, the next different frame is used. Otherwise, the difference is grey. "
            f"{100 * as_rgb:.0f} % of the clips stay RGB, because nothing changes for 0.5 s. Use "
            "videos with their original frame rate. For scenes without motion, turn RGB "
            "differences off with RandomClips.diff_prob=0"
        )
        return Alarm(text, self.name, share, self.threshold)


class _DetectorHook(Hook):
    """Base class of hooks that pass every training row to detectors and report their alarms."""

    priority = "LOW"
    _detectors: Sequence[Detector] = ()

    @abstractmethod
    def detectors(self, runner) -> Sequence[Detector]:
        """Return new detectors for a training run that begins."""

    def before_train(self, runner) -> None:
        """Create the detectors, and pass them the earlier rows of a resumed run."""
        self._detectors = self.detectors(runner)
        path = Path(runner.work_dir, METRICS)
        if not (runner.iter and is_main_process() and path.is_file()):
            return
        try:
            rows = [row for _, row in read_json_lines(path)]
        except (OSError, ValueError) as error:
            runner.logger.warning(
                f"earlier alarms cannot be read, so they may be raised again: {error}"
            )
            return
        for row in rows:
            if at(row, "kind") == "train" and at(row, "iter", int) is not None:
                numbers = {k: v for k, v in row.items() if isinstance(v, int | float)}
                for detector in self._detectors:
                    detector.update(numbers)

    def after_row(self, runner, row: Row) -> None:
        """Report alarms that begin or end with this row."""
        for detector in self._detectors if row["kind"] == "train" else ():
            was_active, alarm = detector.active, detector.update(row)
            if alarm is not None:
                report_alarm(runner, alarm, row["iter"])
            elif was_active and not detector.active:
                runner.logger.info(f"the alarm {detector.name} ended at iteration {row['iter']}")
                _write_row(runner, row["iter"], {"cleared": detector.name})


@HOOKS.register_module()
class AlarmHook(_DetectorHook):
    """Hook that reports alarms of a training run.

    It detects a collapse, waiting for data, a queue that never fills, repeated frames, an unusual
    learning rate, and files in both the training and the evaluation set. An alarm is reported again
    only after its condition has ended. No alarm changes the training run.

    Args:
        min_z_std: Spread of the embeddings z below which the network counts as collapsed. The
            smallest spread in 100 finished runs of eight methods is 0.16. None disables the alarm.
        min_h_std: The same limit for the spread of h, which is at least 0.23 in these runs.
        min_h_rank: The same limit for the effective rank of h, which is 1 if all h lie on a line
            and at least 2.6 in these runs.
        collapse_share: Share of a metric's largest value so far. A collapsed metric is also below
            this share.
        collapse_steps: Iterations for which a collapse must last.
        first_steps: Number of initial iterations in which nothing counts as a collapse.
        max_data_wait: Largest share of the time that may be spent waiting for data. The default is
            0.3 on a GPU, and 0.7 on a CPU, which decodes on the cores that it trains on.
        data_wait_steps: Iterations over which this share is averaged.
        lr_per_256: Smallest and largest usual peak learning rate per optimiser, scaled to a batch
            of 256 (linear rule). Optimisers that are not listed, such as AdamW, are not checked.
        max_compared_files: Largest number of training and evaluation files whose content is
            compared. With more files, only their paths are compared.

    Raises:
        ValueError: If a number of steps is below 1, or ``max_data_wait`` is not from 0 to 1.
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
        if min(collapse_steps, data_wait_steps) < 1:
            given = f"{collapse_steps} and {data_wait_steps}"
            raise ValueError(f"collapse_steps and data_wait_steps must be at least 1, got {given}")
        if max_data_wait is not None and not 0 <= max_data_wait <= 1:
            raise ValueError(f"max_data_wait must be from 0 to 1, got {max_data_wait}")
        minima = (("z_std", min_z_std), ("h_std", min_h_std), ("h_rank", min_h_rank))
        self.minima = {name: least for name, least in minima if least is not None}
        self.collapse_share, self.collapse_steps = collapse_share, collapse_steps
        self.first_steps, self.data_wait_steps = first_steps, data_wait_steps
        self.max_data_wait, self.max_compared_files = max_data_wait, max_compared_files
        self.lr_per_256 = dict(LR_PER_256 if lr_per_256 is None else lr_per_256)

    def detectors(self, runner) -> Sequence[Detector]:
        on_gpu = next(unwrap_model(runner.model).parameters()).device.type != "cpu"
        limit = (0.3 if on_gpu else 0.7) if self.max_data_wait is None else self.max_data_wait
        self._queue = QueueFill(runner)
        return (
            Collapse(self.minima, self.collapse_share, self.collapse_steps, self.first_steps),
            DataWait(limit, self.data_wait_steps, on_gpu),
            self._queue,
            RepeatedFrames(MAX_REPEATS, self.data_wait_steps),
        )

    def before_train(self, runner) -> None:
        """Begin or continue the alarm file, and report alarms that are known before training."""
        self._queue_reported = runner.iter > 0
        continue_rows(runner, ALARMS)
        super().before_train(runner)
        if not is_main_process():
            return
        known: set[object] = set()  # messages that an earlier start has already reported
        with suppress(OSError, ValueError):
            rows = read_json_lines(Path(runner.work_dir, ALARMS))
            known = {at(row, "message", str) for _, row in rows}
        warnings = getattr(runner.train_loop, "warnings", ())  # the log already contains them
        logged = [warning for warning in warnings if isinstance(warning, Alarm)]
        found = evaluated_files(runner, self.max_compared_files)
        schedules = [hook for hook in runner.hooks if isinstance(hook, ScheduleHook)]
        is_pretraining = hasattr(unwrap_model(runner.model), "after_optimizer_step")
        if schedules and is_pretraining:
            optimizer = type(runner.optim_wrapper.optimizer).__name__
            peak, batch = schedules[0].peak_lr, schedules[0].global_batch
            found += unusual_rate(peak, batch, optimizer, self.lr_per_256)
        for alarm in (*logged, *found):
            if alarm.message not in known:
                report_alarm(runner, alarm, runner.iter, to_log=alarm not in logged)

    def after_row(self, runner, row: Row) -> None:
        """Report alarms, and log once when the queue will be full of keys."""
        super().after_row(runner, row)
        if row["kind"] == "train" and not self._queue_reported:
            iterations = self._queue.iterations()
            self._queue_reported = iterations is not None
            if row["iter"] < (iterations or 0) <= runner.train_loop.max_iters:
                runner.logger.info(
                    f"the queue contains random vectors for {iterations - row['iter']} more "
                    f"iterations. It is full of keys after {iterations}"
                )


@HOOKS.register_module()
class ChanceLevelHook(_DetectorHook):
    """Hook that reports a loss that stays at chance level.

    The method computes its chance level (``chance_level()``, see
    :class:`~sce_video.models.algorithms.base.SelfSupervisedModel`). Without a chance level, the
    hook does nothing.

    Args:
        share: Share of the training steps, from 0 to 1, that the loss may spend at chance level.
        window: Iterations over which the loss is averaged.
        margin: Relative distance up to which the loss counts as chance level.
        min_steps: Iterations that the loss may spend at chance level even in a short run.

    Raises:
        ValueError: If ``share`` or ``margin`` is not from 0 to 1, or ``window`` is below 1.
    """

    def __init__(
        self, share: float = 0.3, window: int = 20, margin: float = 0.01, min_steps: int = 300
    ) -> None:
        if not 0 <= share <= 1 or not 0 <= margin <= 1:
            raise ValueError(f"share and margin must be from 0 to 1, got {share} and {margin}")
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.share, self.window = share, window
        self.margin, self.min_steps = margin, min_steps

    def detectors(self, runner) -> Sequence[Detector]:
        chance = getattr(unwrap_model(runner.model), "chance_level", lambda: None)
        steps = max(self.min_steps, 1, math.ceil(self.share * runner.train_loop.max_iters))
        return (ChanceLevel(chance, steps, self.margin, self.window),)
