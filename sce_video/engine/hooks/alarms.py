"""Alarms of a training, in the log and in ``alarms.jsonl`` (docs/logging.md): hooks, detectors."""

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
from sce_video.utils.errors import NamedWarning
from sce_video.utils.files import read_json_lines
from sce_video.utils.run_files import ALARMS, METRICS

Row = Mapping[str, Any]
# Logged rows without the condition after which an alarm has ended, so that a value that hovers
# about its threshold is not reported at every row.
_ROWS_TO_CLEAR = 10
#: Rates of SGD and LARS per 256 samples that the recipes of the papers use, and a factor of five.
LR_PER_256 = {"SGD": (0.01, 6.0), "LARS": (0.06, 18.0)}
#: Largest share of the clips of RGB differences in which frames repeat.
MAX_REPEATS = 0.25


def report_alarm(runner: Any, alarm: NamedWarning, iteration: int, to_log: bool = True) -> None:
    """Write an alarm to ``alarms.jsonl`` and, unless it is there already, to the log; on rank 0."""
    message = printable_utf8(alarm)
    if to_log:
        # A warning in both cases: to errors mmengine's format adds a line of the source.
        runner.logger.warning(f"alarm {alarm.alarm}: {message}")
    row = {"alarm": alarm.alarm, "level": alarm.level, "message": message}
    _write_row(runner, iteration, {**row, "value": alarm.value, "threshold": alarm.threshold})


def _write_row(runner: Any, iteration: int, row: dict[str, Any]) -> None:
    epoch = runner.epoch + 1 if iteration else 0
    when = {"iter": iteration, "epoch": epoch, "time": time.time()}
    append_or_warn(runner, ALARMS, {**row, **when})


@dataclass
class Detector:
    """Raises an alarm when its condition begins, and again only after it has ended.

    A detector is a function of the rows that it was given: a resumed training gives it those of
    ``metrics.jsonl`` again and has the state of the interrupted one.
    """

    name: ClassVar[str]
    active = False
    _rows_without = 0
    #: Of some metrics the (iteration, value) of the rows of the last iterations.
    _recent: dict[str, deque[tuple[int, float]]] = field(default_factory=dict, init=False)

    @abstractmethod
    def condition(self, row: Row) -> NamedWarning | None:
        """The alarm while its condition holds, else None; called once for every row of training."""

    def update(self, row: Row) -> NamedWarning | None:
        """The alarm if its condition begins with this row.

        Afterwards ``active`` tells whether it goes on; ten rows without the condition end it.
        """
        alarm = self.condition(row)
        begins = alarm is not None and not self.active
        self._rows_without = 0 if alarm is not None else self._rows_without + 1
        self.active = begins or (self.active and self._rows_without < _ROWS_TO_CLEAR)
        return alarm if begins else None

    def mean(self, metric: str, row: Row, window: int) -> float:
        """The mean of a metric over the last ``window`` iterations up to this row.

        NaN without any value. Every row must be given once.
        """
        rows = self._recent.setdefault(metric, deque())
        if row.get(metric) is not None:
            rows.append((row["iter"], row[metric]))
        while rows and rows[0][0] <= row["iter"] - window:
            rows.popleft()
        return sum(value for _, value in rows) / len(rows) if rows else math.nan


@dataclass
class Collapse(Detector):
    """The representations or embeddings of a batch have become alike.

    A metric must be below its minimum, and below a share of its largest value so far: the features
    of some networks, such as transformers, are alike before they are trained.
    """

    minima: Mapping[str, float]  # smallest healthy value by name of the metric
    share: float
    steps: int  # iterations that a metric must stay there
    first: int  # iterations at the start that do not count
    name = "collapse"
    _largest: dict[str, float] = field(default_factory=dict, init=False)
    _since: dict[str, int] = field(default_factory=dict, init=False)

    def condition(self, row: Row) -> NamedWarning | None:
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
            "iterations: different samples are mapped to nearly the same point, and further "
            "training will not help. The documentation says what prevents it: logs and alarms, "
            "collapse"
        )
        return NamedWarning(text, self.name, row[lasting[0]], self.minima[lasting[0]], "error")


@dataclass
class ChanceLevel(Detector):
    """The loss stays at that of a network that tells no samples apart, such as log(K+1).

    Many trainings start above it, where wrong samples are near, and pass it on their way down.
    """

    chance: Callable[[], float | None]  # the method's chance level, None while not known
    steps: int  # iterations that the loss may stay there
    margin: float  # it is there within this share of the chance level
    window: int  # iterations over which the loss is averaged
    name = "chance_level"
    _last_apart = 0

    def condition(self, row: Row) -> NamedWarning | None:
        chance, loss = self.chance(), self.mean("loss", row, self.window)
        if chance is None or not abs(loss - chance) <= self.margin * chance:
            self._last_apart = row["iter"]
            return None
        spent = row["iter"] - self._last_apart
        if spent < self.steps:
            return None
        text = (
            f"the loss is {loss:.3f} and has been at chance level {chance:.3f} for {spent} "
            "iterations: the network does not tell samples apart. If it stays there: more "
            "iterations (train_cfg.max_epochs, a smaller batch) or another learning rate"
        )
        return NamedWarning(text, self.name, loss, chance)


@dataclass
class DataWait(Detector):
    """A larger share of the time than the threshold is spent on waiting for data."""

    threshold: float
    steps: int  # iterations of the mean, and those at the start that do not count
    on_gpu: bool
    name = "data_wait"

    def condition(self, row: Row) -> NamedWarning | None:
        if row["iter"] <= self.steps:
            return None  # workers start, files are read for the first time
        share = self.mean("data_wait", row, self.steps)
        if not share > self.threshold:
            return None
        rows = self._recent["data_wait"]
        if rows[-1][0] - rows[0][0] < 3 * self.steps // 4:
            return None
        advice = "the GPU waits: raise train_dataloader.num_workers up to the number of cores, or "
        if not self.on_gpu:
            advice = (
                "decoding takes longer than the network: raise train_dataloader.num_workers if "
                "cores are idle (OMP_NUM_THREADS bounds what the network takes), or "
            )
        text = (
            f"{100 * share:.0f} % of the time of the last {self.steps} iterations was spent on "
            f"waiting for data (more than {100 * self.threshold:.0f} %); {advice}re-encode the "
            "videos smaller with `sce-video repack`"
        )
        return NamedWarning(text, self.name, share, self.threshold)


@dataclass
class QueueFill(Detector):
    """The queue still holds its random start values when the training ends."""

    runner: Any
    name = "queue_fill"

    def iterations(self) -> int | None:
        """Iterations that fill the method's queue; None if it has none, or is not known yet."""
        steps = getattr(unwrap_model(self.runner.model), "queue_steps", lambda: None)()
        return None if steps is None else steps * self.runner.optim_wrapper._accumulative_counts

    def condition(self, row: Row) -> NamedWarning | None:
        needed, total = self.iterations(), self.runner.train_loop.max_iters
        if needed is None or needed <= total:
            return None
        text = (
            f"the queue is full of keys after {needed} iterations and the training has {total}:"
            " the loss never compares with keys alone. Give it a shorter queue or train longer"
        )
        return NamedWarning(text, self.name, needed, total)


@dataclass
class RepeatedFrames(Detector):
    """Frames repeat in many clips of RGB differences, so that less of them is as in the paper."""

    threshold: float  # largest share of these clips
    steps: int  # iterations of the mean; half of them at the start do not count
    name = "repeated_frames"

    def condition(self, row: Row) -> NamedWarning | None:
        share = self.mean("diff_repeats", row, self.steps)
        as_rgb = self.mean("diff_as_rgb", row, self.steps)
        if 2 * row["iter"] < self.steps or not share > self.threshold:
            return None
        text = (
            f"frames repeat in {100 * share:.0f} % of the clips of RGB differences (more than "
            f"{100 * self.threshold:.0f} %). With DecodeClips.skip_repeats=True, which sce-video "
            "pretrain sets, the next frame that differs is taken; else the difference is grey. "
            f"{100 * as_rgb:.0f} % stay RGB, since nothing changes for 0.5 s. Videos of the "
            "original frame rate are better; for scenes that stand still, "
            "RandomClips.diff_prob=0 leaves the differences out"
        )
        return NamedWarning(text, self.name, share, self.threshold)


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
        path = Path(runner.work_dir, METRICS)
        if not (runner.iter and is_main_process() and path.is_file()):
            return
        try:
            rows = [row for _, row in read_json_lines(path)]
        except (OSError, ValueError) as error:
            runner.logger.warning(f"alarms of this start do not know the earlier ones: {error}")
            return
        for row in rows:
            if row.get("kind") == "train" and type(row.get("iter")) is int:
                numbers = {k: v for k, v in row.items() if isinstance(v, int | float)}
                for detector in self._detectors:
                    detector.update(numbers)

    def after_row(self, runner, row: Row) -> None:
        """Report alarms that begin or end with a row."""
        for detector in self._detectors if row["kind"] == "train" else ():
            was_active, alarm = detector.active, detector.update(row)
            if alarm is not None:
                report_alarm(runner, alarm, row["iter"])
            elif was_active and not detector.active:
                runner.logger.info(
                    f"the alarm {detector.name} has ended at iteration {row['iter']}"
                )
                _write_row(runner, row["iter"], {"cleared": detector.name})


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
        """Begin the file, or continue that of a resumed run; check what is known before."""
        self._queue_told = runner.iter > 0
        continue_rows(runner, ALARMS)
        super().before_train(runner)
        if not is_main_process():
            return
        known: set[str] = set()  # messages of an earlier start
        with suppress(OSError, ValueError):
            rows = read_json_lines(Path(runner.work_dir, ALARMS))
            known = {str(row.get("message")) for _, row in rows}
        warnings = getattr(runner.train_loop, "warnings", ())  # in the log already
        logged = [warning for warning in warnings if isinstance(warning, NamedWarning)]
        found = evaluated_files(runner, self.max_compared_files)
        schedules = [hook for hook in runner.hooks if isinstance(hook, ScheduleHook)]
        is_pretraining = hasattr(unwrap_model(runner.model), "after_optimizer_step")
        if schedules and is_pretraining:
            optimizer = type(runner.optim_wrapper.optimizer).__name__
            peak, batch = schedules[0].peak_lr, schedules[0].global_batch
            found += unusual_rate(peak, batch, optimizer, self.lr_per_256)
        for alarm in (*logged, *found):
            if alarm not in known:
                report_alarm(runner, alarm, runner.iter, to_log=alarm not in logged)

    def after_row(self, runner, row: Row) -> None:
        """Report alarms; once tell when the queue will be full of keys."""
        super().after_row(runner, row)
        if row["kind"] == "train" and not self._queue_told:
            iterations = self._queue.iterations()
            self._queue_told = iterations is not None
            if row["iter"] < (iterations or 0) <= runner.train_loop.max_iters:
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
        min_steps: Iterations that it may spend there in a short training, too.

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
        self.share, self.window = share, window
        self.margin, self.min_steps = margin, min_steps

    def detectors(self, runner) -> Sequence[Detector]:
        chance = getattr(unwrap_model(runner.model), "chance_level", lambda: None)
        steps = max(self.min_steps, 1, math.ceil(self.share * runner.train_loop.max_iters))
        return (ChanceLevel(chance, steps, self.margin, self.window),)
