"""What an alarm is, and detectors that raise one when a condition begins."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sce_video.engine.restarts import append_or_warn
from sce_video.utils.command import printable_utf8
from sce_video.utils.run_files import ALARMS

Row = Mapping[str, Any]
# Logged rows without the condition after which an alarm has ended, so that a value that hovers
# about its threshold is not reported at every row.
_ROWS_TO_CLEAR = 10


@dataclass(frozen=True)
class Alarm:
    """Something that a user should know of a training.

    Attributes:
        name: One word, the same for all alarms of a kind (docs/logging.md).
        message: A sentence with the numbers and what to do.
        value: The number that raised it, None if there is none.
        threshold: What it was compared with.
        level: ``error`` where going on is a waste, else ``warning``.
    """

    name: str
    message: str
    value: float | None = None
    threshold: float | None = None
    level: Literal["warning", "error"] = "warning"


def report_alarm(runner: Any, alarm: Alarm, iteration: int, to_log: bool = True) -> None:
    """Write an alarm to ``alarms.jsonl`` and, unless it is there already, to the log; on rank 0."""
    if to_log:
        # A warning in both cases: to errors mmengine's format adds a line of the source.
        runner.logger.warning(printable_utf8(f"alarm {alarm.name}: {alarm.message}"))
    row = {
        "alarm": alarm.name,
        "level": alarm.level,
        **_when(runner, iteration),
        "value": alarm.value,
        "threshold": alarm.threshold,
        "message": printable_utf8(alarm.message),
    }
    append_or_warn(runner, ALARMS, row)


def report_cleared(runner: Any, name: str, iteration: int) -> None:
    """Note that the condition of an alarm has ended: ``{"cleared": name, ...}``."""
    runner.logger.info(f"the alarm {name} has ended at iteration {iteration}")
    append_or_warn(runner, ALARMS, {"cleared": name, **_when(runner, iteration)})


def _when(runner: Any, iteration: int) -> dict[str, Any]:
    epoch = runner.epoch + 1 if iteration else 0
    return {"iter": iteration, "epoch": epoch, "time": time.time()}


@dataclass
class Detector:
    """Raises an alarm when a condition begins, and again only after it has ended.

    A detector is a function of the rows that it was given: a resumed training gives it those of
    ``metrics.jsonl`` again and has the state of the interrupted one.
    """

    name: ClassVar[str]
    active: bool = field(default=False, init=False)
    _rows_without: int = field(default=0, init=False)

    @abstractmethod
    def condition(self, row: Row) -> Alarm | None:
        """The alarm while its condition holds, else None; called once for every row of training."""

    def update(self, row: Row) -> Alarm | None:
        """The alarm if its condition begins with this row.

        Afterwards ``active`` tells whether it goes on; ten rows without the condition end it.
        """
        alarm = self.condition(row)
        begins = alarm is not None and not self.active
        self._rows_without = 0 if alarm is not None else self._rows_without + 1
        self.active = begins or (self.active and self._rows_without < _ROWS_TO_CLEAR)
        return alarm if begins else None


class _Recent:
    """The values of a metric in the rows of the last iterations."""

    def __init__(self, name: str, window: int) -> None:
        self._name, self._window = name, window
        self._rows: deque[tuple[int, float]] = deque()

    def mean(self, row: Row) -> float:
        """The mean up to this row; NaN without any value."""
        if row.get(self._name) is not None:
            self._rows.append((row["iter"], row[self._name]))
        while self._rows and self._rows[0][0] <= row["iter"] - self._window:
            self._rows.popleft()
        return sum(v for _, v in self._rows) / len(self._rows) if self._rows else math.nan

    @property
    def span(self) -> int:
        """Iterations between the first and the last row of the window."""
        return self._rows[-1][0] - self._rows[0][0] if self._rows else 0


@dataclass
class Collapse(Detector):
    """The representations or embeddings of a batch have become alike.

    A metric must be below its minimum, and below a share of its largest value so far: the features
    of some networks, such as transformers, are alike before they are trained.

    Attributes:
        minima: Smallest healthy value by name of the metric.
        share: That share.
        steps: Iterations that a metric must stay there.
        first: Iterations at the start that do not count.
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
        return Alarm(
            self.name,
            f"the network has collapsed: {values} for {row['iter'] - self._since[lasting[0]]} "
            "iterations: different samples are mapped to nearly the same point, and further "
            "training will not help. The documentation says what prevents it: logs and alarms, "
            "collapse",
            value=row[lasting[0]],
            threshold=self.minima[lasting[0]],
            level="error",
        )


@dataclass
class ChanceLevel(Detector):
    """The loss stays at that of a network that tells no samples apart, such as log(K+1).

    Many trainings start above it, where wrong samples are near, and pass it on their way down.

    Attributes:
        chance: Gives the method's chance level, None while it does not know it.
        steps: Iterations that the loss may stay there.
        margin: It is there within this share of the chance level.
        window: Iterations over which the loss is averaged.
    """

    chance: Callable[[], float | None]
    steps: int
    margin: float
    window: int
    name = "chance_level"

    def __post_init__(self) -> None:
        self._losses, self._last_apart = _Recent("loss", self.window), 0

    def condition(self, row: Row) -> Alarm | None:
        chance, loss = self.chance(), self._losses.mean(row)
        if chance is None or not abs(loss - chance) <= self.margin * chance:
            self._last_apart = row["iter"]
            return None
        spent = row["iter"] - self._last_apart
        if spent < self.steps:
            return None
        return Alarm(
            self.name,
            f"the loss is {loss:.3f} and has been at chance level {chance:.3f} for {spent} "
            "iterations: the network does not tell samples apart. If it stays there: more "
            "iterations (train_cfg.max_epochs, a smaller batch) or another learning rate",
            value=loss,
            threshold=chance,
        )


@dataclass
class DataWait(Detector):
    """A larger share of the time than the threshold is spent on waiting for data."""

    threshold: float
    steps: int  # iterations of the mean, and those at the start that do not count
    on_gpu: bool
    name = "data_wait"

    def __post_init__(self) -> None:
        self._shares = _Recent("data_wait", self.steps)

    def condition(self, row: Row) -> Alarm | None:
        if row["iter"] <= self.steps:
            return None  # workers start, files are read for the first time
        share = self._shares.mean(row)
        full = self._shares.span >= 3 * self.steps // 4
        if math.isnan(share) or share <= self.threshold or not full:
            return None
        advice = "the GPU waits: raise train_dataloader.num_workers up to the number of cores, or "
        if not self.on_gpu:
            advice = (
                "decoding takes longer than the network: raise train_dataloader.num_workers if "
                "cores are idle (OMP_NUM_THREADS bounds what the network takes), or "
            )
        return Alarm(
            self.name,
            f"{100 * share:.0f} % of the time of the last {self.steps} iterations was spent on "
            f"waiting for data (more than {100 * self.threshold:.0f} %); {advice}re-encode the "
            "videos smaller with `sce-video repack`",
            value=share,
            threshold=self.threshold,
        )


@dataclass
class QueueFill(Detector):
    """The queue still holds its random start values when the training ends."""

    steps: Callable[[], int | None]  # iterations that fill the queue, None while not known
    total: Callable[[], int]  # iterations of the training
    name = "queue_fill"

    def condition(self, row: Row) -> Alarm | None:
        steps, total = self.steps(), self.total()
        if steps is None or steps <= total:
            return None
        return Alarm(
            self.name,
            f"the queue is full of keys after {steps} iterations and the training has {total}:"
            " the loss never compares with keys alone. Give it a shorter queue or train longer",
            value=steps,
            threshold=total,
        )


@dataclass
class RepeatedFrames(Detector):
    """Frames repeat in many clips of RGB differences, so that less of them is as in the paper."""

    threshold: float  # largest share of these clips
    steps: int  # iterations of the mean; half of them at the start do not count
    name = "repeated_frames"

    def __post_init__(self) -> None:
        self._repeats = _Recent("diff_repeats", self.steps)
        self._as_rgb = _Recent("diff_as_rgb", self.steps)

    def condition(self, row: Row) -> Alarm | None:
        share, as_rgb = self._repeats.mean(row), self._as_rgb.mean(row)
        if 2 * row["iter"] < self.steps or not share > self.threshold:
            return None
        return Alarm(
            self.name,
            f"frames repeat in {100 * share:.0f} % of the clips of RGB differences (more than "
            f"{100 * self.threshold:.0f} %): the next frame that differs takes their place, and "
            f"{100 * as_rgb:.0f} %, in which nothing changes for 0.5 s, stay RGB. Where the frame "
            "rate was raised, videos of the original rate are better; of a scene that stands "
            "still, RandomClips.diff_prob=0 leaves the differences out",
            value=share,
            threshold=self.threshold,
        )
