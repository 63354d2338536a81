"""Content of a run folder as plain data: the record of the run, and its logs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sce_video.engine.config.changes import leaves, named_path
from sce_video.engine.config.snapshot import plain
from sce_video.engine.run_json import FAILED, FINISHED, INTERRUPTED, RUNNING, RunDescription
from sce_video.utils.files import read_json_lines
from sce_video.utils.records import at, lenient_record
from sce_video.utils.run_files import ALARMS, BAD_FILES, EVALUATIONS, HISTORY, METRICS

#: State of a run that has no log. The other states come from ``run.json``.
UNKNOWN = "unknown"
#: Values in a log line by name
Row = dict[str, Any]


@dataclass(frozen=True)
class TrainingStart:
    """Start of a training run, from its history. Unknown values are empty."""

    time: float | None = None  # in seconds since 1970
    model: str = ""  # class of the model
    resumed_from: str = ""  # checkpoint from which the run was resumed
    device: str = ""
    ranks: int | None = None  # number of processes
    versions: dict[str, object] = field(default_factory=dict)  # version by package
    own_parts: list[str] = field(default_factory=list)  # user-defined classes
    command: list[str] = field(default_factory=list)  # words of the command line


@dataclass(frozen=True)
class TrainingEnd:
    """End of a training run, from its history. Unknown values are empty."""

    time: float | None = None  # in seconds since 1970
    iter: int | None = None  # last iteration
    status: str = ""  # status as in ``run.json``: finished, interrupted or failed
    message: str = ""  # error message, or the signal that interrupted the training


@dataclass(frozen=True)
class AlarmLine:
    """Alarm of a training run, from ``alarms.jsonl``."""

    alarm: str = "alarm"  # name of the alarm
    level: str = "warning"
    message: str = ""
    iter: int | None = None
    cleared: int | None = None  # iteration at which the alarm's condition ended
    value: float | None = None  # value that was compared with the threshold
    threshold: float | None = None


@dataclass(frozen=True)
class BadFileLine:
    """File of the training set that could not be decoded."""

    path: str = "?"
    count: int = 1  # number of failed attempts
    error: str = ""


@dataclass(frozen=True)
class RunResult:
    """Metrics in a result file, and the 95 % intervals of some of them."""

    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """Return a metric; None if the file does not contain it."""
        return self.metrics.get(name)

    def interval(self, name: str) -> tuple[float, float] | None:
        """Return the interval of a metric; None if the file does not contain it."""
        return self.intervals.get(name)


@dataclass(frozen=True)
class RunRecord:
    """Everything on the page of a run except pictures. Unknown values are empty."""

    name: str  # name of the run's folder
    folder: str  # absolute path of the run's folder
    config: dict[str, Any] = field(default_factory=dict)  # config as plain data
    config_text: str = ""  # config as text, with one line per setting
    recipe: str = ""  # name of the recipe
    description: RunDescription | None = None  # content of run.json
    # Name, recipe's value and run's value of each setting that differs.
    changes: list[tuple[str, str, str]] = field(default_factory=list)
    scalars: list[Row] = field(default_factory=list)  # logged steps (see read_scalars)
    evaluations: list[Row] = field(default_factory=list)  # rows of the online evaluation
    validations: list[Row] = field(default_factory=list)  # validations of a classifier
    compared: Row = field(default_factory=dict)  # latest comparison with random weights
    alarms: list[AlarmLine] = field(default_factory=list)  # lines of alarms.jsonl
    history: list[Row] = field(default_factory=list)  # lines of history.jsonl: starts and ends
    bad_files: list[BadFileLine] = field(default_factory=list)  # lines of bad_files.jsonl
    results: dict[str, RunResult] = field(default_factory=dict)  # results by file name
    data: dict[str, Any] = field(default_factory=dict)  # facts about the training set
    checkpoints: list[str] = field(default_factory=list)  # checkpoints, newest first
    chance: float | None = None  # loss of a network that cannot distinguish samples
    locked: bool = False  # whether a training run holds the folder's lock
    notes: list[str] = field(default_factory=list)  # sentences about missing and damaged files

    @property
    def last(self) -> Row:
        """Newest logged step; empty if nothing was logged."""
        return self.scalars[-1] if self.scalars else {}

    @property
    def max_epochs(self) -> int | None:
        """Planned number of epochs, after the last change to keep a time budget."""
        for row in reversed(self.history):
            if row["event"] == "replanned":
                return at(row, "epochs", int)
        return at(self.config, "train_cfg.max_epochs", int)

    @property
    def method(self) -> str:
        """Class of the model."""
        start = self.starts[-1].model if self.starts else ""
        return str(at(self.config, "model.type") or start)

    def result(self, file: str) -> RunResult:
        """Return the results in a file; empty if there is no such file."""
        return self.results.get(file, RunResult())

    @property
    def starts(self) -> list[TrainingStart]:
        """Starts of the training run."""
        rows = (row for row in self.history if row["event"] == "start")
        return [lenient_record(TrainingStart, row) for row in rows]

    @property
    def end(self) -> TrainingEnd | None:
        """End of the last start; None if it has not ended or was killed."""
        return last_end(self.history)


def last_end(history: Sequence[Row]) -> TrainingEnd | None:
    """Return the end of the last start in a history; None if it has not ended or was killed."""
    ended = bool(history) and history[-1]["event"] == "end"
    return lenient_record(TrainingEnd, history[-1]) if ended else None


#: Keys of a config that are not settings: names, folders, and entries that commands add
_NOT_SETTINGS = frozenset(
    "work_dir launcher experiment_name resume load_from planned settings run_page".split()
)
_ABSENT = "not set"


def flattened(config: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of a config as text by dotted name.

    The entries of a list are named by their types, for example
    ``train_dataloader.dataset.pipeline.RandomClips.num_frames``.
    """
    found: dict[str, str] = {}
    # A config file may contain tuples, which plain() turns into lists, as in run.json.
    for path, value in leaves(data := plain(config)):
        if path and path[0] not in _NOT_SETTINGS and not path[0].startswith("_"):
            found[named_path(data, path)] = str(value) or "''"
    return found


def different_settings(configs: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """Return, for each setting in which the configs differ, the value in each config."""
    flat = [flattened(config) for config in configs]
    names = sorted(set().union(*flat))
    rows = {name: [settings.get(name, _ABSENT) for settings in flat] for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}


#: Levels of alarms, most urgent first.
_LEVELS = {"error": 0, "warning": 1}


class State(NamedTuple):
    """State of a run, and a sentence about the state."""

    name: str
    text: str


def run_state(record: RunRecord) -> State:
    """Determine the state of a run from its lock, its history or, without these, its log.

    A run whose lock is held is running, whatever the history contains. A start without an end was
    interrupted, because its process is gone. A run without a history is finished if all planned
    epochs were logged.
    """
    epoch, planned = record.last.get("epoch"), record.max_epochs
    reached = "before its first logged step"
    if epoch is not None:
        reached = f"in epoch {epoch}" + (f" of {planned}" if planned else "")
    if record.locked:
        return State(RUNNING, f"The training is running, {reached}. The page shows the log so far.")
    end = record.end
    if end is not None:
        text = {
            FINISHED: f"The training finished after {epoch} epochs.",
            INTERRUPTED: f"The training was interrupted {reached}. --resume continues it.",
            FAILED: f"The training failed {reached}.",
        }
        if end.status in text:
            more = "" if end.status == FINISHED else f" {end.message}".rstrip()
            return State(end.status, text[end.status] + more)
    if record.starts:
        return State(
            INTERRUPTED,
            f"The training stopped {reached} without recording an end, for example because it was "
            "killed or the machine went down. --resume continues it.",
        )
    if epoch is None:
        return State(UNKNOWN, "Nothing was logged in this folder.")
    if planned and epoch >= planned:
        return State(FINISHED, f"All {planned} epochs were logged.")
    if planned:
        return State(INTERRUPTED, f"The log ends {reached}. --resume continues the training.")
    return State(UNKNOWN, f"The log ends {reached}.")


class AlarmGroup(NamedTuple):
    """All alarms of one kind."""

    name: str
    level: str
    message: str  # message of the latest alarm
    times: int
    first_iter: int | None
    last_iter: int | None
    cleared: int | None = None  # iteration at which the latest alarm's condition ended


def lasting_errors(alarms: Sequence[AlarmGroup]) -> list[str]:
    """Return a few words for each alarm of level ``error`` whose condition has not ended."""
    names = [a.name for a in alarms if a.level == "error" and a.cleared is None]
    return ["collapsed" if name == "collapse" else name.replace("_", " ") for name in names]


def grouped_alarms(alarms: Sequence[AlarmLine]) -> list[AlarmGroup]:
    """Group alarms by kind. Alarms that last come first, and errors precede warnings."""
    groups: dict[str, list[AlarmLine]] = {}
    for line in alarms:
        groups.setdefault(line.alarm, []).append(line)
    found = []
    for name, lines in groups.items():
        levels = (line.level for line in lines if line.level in _LEVELS)
        first, last = lines[0], lines[-1]
        message = last.message or name
        found.append(
            AlarmGroup(
                name=name,
                level=min(levels, key=_LEVELS.__getitem__, default="warning"),
                message=message[:1].upper() + message[1:],
                times=len(lines),
                first_iter=first.iter,
                last_iter=last.iter,
                cleared=last.cleared,
            )
        )
    return sorted(found, key=lambda group: (group.cleared is not None, _LEVELS[group.level]))


_SCALARS = "vis_data/scalars.json"


#: Our name in metrics.jsonl for each value that mmengine's scalars.json names differently.
_OF_MMENGINE = {"time": "step_seconds", "data_time": "data_seconds"}


def read_scalars(work_dir: str | Path, damaged: list[str] | None = None) -> list[Row]:
    """Read the logged steps of a training run in the order of their iterations.

    The steps are the rows with ``"kind": "train"`` in ``metrics.jsonl`` (docs/logging.md). If only
    mmengine's ``LocalVisBackend`` has logged, they are in ``*/vis_data/scalars.json``. Values that
    were not finite are NaN. An incomplete last line is ignored.

    A resumed run logs some steps again if a crash has lost them, or all steps if there was no
    checkpoint. The newer rows replace the older ones from the first repeated iteration on.

    Args:
        work_dir: Folder of the run.
        damaged: List to which the message about each damaged line is added. Such lines are then
            ignored. None raises ValueError for a damaged line.

    Raises:
        FileNotFoundError: If the folder contains no training log.
    """
    metrics = Path(work_dir, METRICS)
    files = [metrics] if metrics.is_file() else sorted(Path(work_dir).glob(f"*/{_SCALARS}"))
    if not files:
        raise FileNotFoundError(f"{work_dir} contains no log of a training run ({METRICS})")
    rows: list[Row] = []
    for file in files:  # in the order of their starts, because folders are named by start time
        for where, row in read_json_lines(file, damaged):
            if "loss" in row and "iter" in row and row.get("kind", "train") == "train":
                if file != metrics:
                    row = {_OF_MMENGINE.get(name, name): value for name, value in row.items()}
                if type(row["iter"]) is not int or abs(row["iter"]) >= 2**63:
                    problem = f"{where}: the iteration {row['iter']!r:.40} is not a whole number"
                    if damaged is None:
                        raise ValueError(problem)
                    damaged.append(problem)
                    continue
                step = _numbers(row)
                # After a crash, this and later iterations were logged again, so drop the earlier
                # rows.
                while rows and rows[-1]["iter"] >= step["iter"]:
                    rows.pop()
                rows.append(step)
    return rows


def read_online_evaluations(work_dir: str | Path, damaged: list[str] | None = None) -> list[Row]:
    """Read the rows of the online evaluation (``online_evaluation.jsonl``), if there are any.

    ``damaged`` works as in :func:`read_scalars`.
    """
    rows = map(_numbers, _rows_of(Path(work_dir, EVALUATIONS), damaged))
    return [row for row in rows if "iter" in row]


def read_validations(
    work_dir: str | Path, damaged: list[str] | None = None, kind: str = "val"
) -> list[Row]:
    """Read a classifier's validations from ``metrics.jsonl``, if there are any.

    With ``kind="random"``, read the comparisons with random weights. ``damaged`` works as in
    :func:`read_scalars`.
    """
    rows = _rows_of(Path(work_dir, METRICS), damaged)
    return [
        _numbers(row) for row in rows if row.get("kind") == kind and type(row.get("iter")) is int
    ]


def read_alarms(work_dir: str | Path, damaged: list[str] | None = None) -> list[Row]:
    """Read the alarms of a training run (``alarms.jsonl``) in their order, if there are any.

    If the condition of an alarm has ended, ``cleared`` is the iteration at which it ended.
    ``damaged`` works as in :func:`read_scalars`.
    """
    alarms: list[Row] = []
    for row in _rows_of(Path(work_dir, ALARMS), damaged):
        if "alarm" in row:
            alarms.append(dict(row))
            continue
        for alarm in alarms[::-1]:
            if alarm["alarm"] == row.get("cleared"):
                alarm["cleared"] = row.get("iter")
                break
    return alarms


def read_bad_files(work_dir: str | Path, damaged: list[str] | None = None) -> list[Row]:
    """Read the files that could not be decoded (``bad_files.jsonl``), if there are any."""
    return _rows_of(Path(work_dir, BAD_FILES), damaged)


def read_history(work_dir: str | Path, damaged: list[str] | None = None) -> list[Row]:
    """Read the starts and ends of a training run (``history.jsonl``) in their order.

    A start without an end is still running or was killed. ``damaged`` works as in
    :func:`read_scalars`.
    """
    return [row for row in _rows_of(Path(work_dir, HISTORY), damaged) if "event" in row]


def _rows_of(file: Path, damaged: list[str] | None) -> list[Row]:
    return [row for _, row in read_json_lines(file, damaged)] if file.is_file() else []


def _numbers(row: Row) -> dict[str, float]:
    """Return the values of a row that can be drawn. A null was not finite, and becomes NaN."""
    row = {k: math.nan if v is None else v for k, v in row.items()}
    numbers = {k: v for k, v in row.items() if isinstance(v, int | float)}
    return {k: v for k, v in numbers.items() if abs(v) < 2**63 or v != v}
