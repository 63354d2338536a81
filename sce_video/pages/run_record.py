"""Content of a run's folder as plain data: its record, and its logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sce_video.engine.config.changes import leaves, named_path
from sce_video.engine.config.snapshot import plain
from sce_video.engine.run_json import FAILED, FINISHED, INTERRUPTED, RUNNING, RunDescription
from sce_video.utils.files import read_json_lines
from sce_video.utils.records import at, lenient_record
from sce_video.utils.run_files import ALARMS, BAD_FILES, EVALUATIONS, HISTORY, METRICS

#: State of a run without a log. The others are those of ``run.json``.
UNKNOWN = "unknown"
#: A line of a log: its values by name
Row = dict[str, Any]


@dataclass(frozen=True)
class TrainingStart:
    """A start in the history of a training run. Unknown values are empty."""

    time: float | None = None  # seconds since 1970
    model: str = ""  # class of the model
    resumed_from: str = ""  # checkpoint
    device: str = ""
    ranks: int | None = None  # number of processes
    versions: dict[str, Any] = field(default_factory=dict)  # version by package
    own_parts: list[str] = field(default_factory=list)  # user-defined classes
    command: list[str] = field(default_factory=list)  # words of the command line


@dataclass(frozen=True)
class TrainingEnd:
    """The end of a start in the history of a training run. Unknown values are None."""

    time: float | None = None  # seconds since 1970
    iter: int | None = None  # last iteration
    status: str = ""  # status in ``run.json``: finished, interrupted, failed
    message: str = ""  # the error, or what interrupted it


@dataclass(frozen=True)
class AlarmLine:
    """An alarm that a training run has raised, or the end of its condition."""

    alarm: str = "alarm"  # name
    level: str = "warning"
    message: str = ""
    iter: int | None = None
    cleared: int | None = None  # iteration at which its condition ended
    value: float | None = None  # compared value
    threshold: float | None = None


@dataclass(frozen=True)
class BadFileLine:
    """A file of the training set that could not be decoded."""

    path: str = "?"
    count: int = 1  # number of failed attempts
    error: str = ""


@dataclass(frozen=True)
class RunResult:
    """Content of a file with results: metrics, and the 95 % intervals of some of them."""

    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """Return a metric; None if it was not measured."""
        return self.metrics.get(name)

    def interval(self, name: str) -> tuple[float, float] | None:
        """Return the interval of a metric; None if the file has none."""
        return self.intervals.get(name)


@dataclass(frozen=True)
class RunRecord:
    """Content of a run's page except pictures. Unknown values are empty."""

    name: str  # name of the run's folder
    folder: str  # absolute path of the run's folder
    config: dict[str, Any] = field(default_factory=dict)  # config as plain data
    config_text: str = ""  # a line for each setting
    recipe: str = ""  # recipe that the config comes from
    description: RunDescription | None = None  # content of run.json
    # (key, value of the recipe, value of the run) of the settings that differ.
    changes: list[tuple[str, str, str]] = field(default_factory=list)
    scalars: list[Row] = field(default_factory=list)  # logged rows, see read_scalars
    evaluations: list[Row] = field(default_factory=list)  # rows of the online evaluation
    validations: list[Row] = field(default_factory=list)  # validations of a classifier
    compared: Row = field(default_factory=dict)  # last comparison with random weights
    # Lines of alarms.jsonl, history.jsonl (starts and ends of the training), bad_files.jsonl.
    alarms: list[AlarmLine] = field(default_factory=list)
    history: list[Row] = field(default_factory=list)
    bad_files: list[BadFileLine] = field(default_factory=list)
    results: dict[str, RunResult] = field(default_factory=dict)  # by name of the file
    data: dict[str, Any] = field(default_factory=dict)  # facts about the training set
    checkpoints: list[str] = field(default_factory=list)  # newest first
    chance: float | None = None  # loss of a network that cannot distinguish samples
    locked: bool = False  # whether a training run holds the folder
    notes: list[str] = field(default_factory=list)  # sentences on missing or damaged parts

    @property
    def last(self) -> Row:
        """Return the newest logged row; empty if nothing was logged."""
        return self.scalars[-1] if self.scalars else {}

    @property
    def max_epochs(self) -> int | None:
        """Return the planned number of epochs, or the new plan within a time budget."""
        for row in reversed(self.history):
            if row.get("event") == "replanned":
                return at(row, "epochs", int)
        return at(self.config, "train_cfg.max_epochs", int)

    @property
    def method(self) -> str:
        """Return the class of the model."""
        start = self.starts[-1].model if self.starts else ""
        return str(at(self.config, "model.type") or start)

    def result(self, file: str) -> RunResult:
        """Return the results in a file; empty without the file."""
        return self.results.get(file, RunResult())

    @property
    def starts(self) -> list[TrainingStart]:
        """Return the starts of the training run in its history."""
        rows = (row for row in self.history if row.get("event") == "start")
        return [lenient_record(TrainingStart, row) for row in rows]

    @property
    def end(self) -> TrainingEnd | None:
        """Return the end that belongs to the last start; None without one."""
        return last_end(self.history)


def last_end(history: Sequence[Row]) -> TrainingEnd | None:
    """Return the end of the last start in a history; None if it has not ended or was killed."""
    row = history[-1] if history else {}
    return lenient_record(TrainingEnd, row) if row.get("event") == "end" else None


#: Config keys that describe a run but are not settings: names, folders and additions by tools
_NOT_SETTINGS = frozenset(
    "work_dir launcher experiment_name resume load_from planned settings run_page".split()
)
_ABSENT = "not set"


def flattened(config: dict[str, Any]) -> dict[str, str]:
    """Return the settings of a config by dotted name, with list entries named by their types.

    An example is ``train_dataloader.dataset.pipeline.RandomClips.num_frames``.
    """
    found: dict[str, str] = {}
    # plain() converts tuples to lists, because a config file has tuples and run.json has lists.
    for path, value in leaves(data := plain(config)):
        if path and path[0] not in _NOT_SETTINGS and not path[0].startswith("_"):
            found[named_path(data, path)] = str(value) or "''"
    return found


def different_settings(configs: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Return each config's values of every setting in which the configs differ, by name."""
    flat = [flattened(config) for config in configs]
    names = sorted(set().union(*flat))
    rows = {name: [settings.get(name, _ABSENT) for settings in flat] for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}


#: Levels of an alarm, the most urgent one first.
_LEVELS = {"error": 0, "warning": 1}


class State(NamedTuple):
    """State of a run and a sentence about it."""

    name: str
    text: str


def run_state(record: RunRecord) -> State:
    """Return a run's state: from its lock or its history, or without one, from its last epoch.

    A held lock means running, whatever the history contains. A start without an end is interrupted,
    because its process is gone. Folders without a history are finished if all planned epochs are
    logged.
    """
    epoch, planned = record.last.get("epoch"), record.max_epochs
    reached = "before its first logged step"
    if epoch is not None:
        reached = f"in epoch {epoch}" + (f" of {planned}" if planned else "")
    # The lock counts more than the history, which notes an end only when it comes.
    if record.locked:
        return State(RUNNING, f"A training is running, {reached}; this page shows its log so far.")
    end = record.end
    if end is not None:
        text = {
            FINISHED: f"The training has ended after {epoch} epochs.",
            INTERRUPTED: f"The training was interrupted {reached}; --resume continues it.",
            FAILED: f"The training failed {reached}.",
        }
        if end.status in text:
            more = "" if end.status == FINISHED else f" {end.message}".rstrip()
            return State(end.status, text[end.status] + more)
    if record.starts:
        return State(
            INTERRUPTED,
            f"The training stopped {reached} without noting an end (killed, or the machine went "
            "down); --resume continues it.",
        )
    if epoch is None:
        return State(UNKNOWN, "Nothing was logged in this folder.")
    if planned and epoch >= planned:
        return State(FINISHED, f"All {planned} epochs are logged.")
    if planned:
        return State(INTERRUPTED, f"The log ends {reached}; --resume continues the training.")
    return State(UNKNOWN, f"The log ends {reached}.")


class AlarmGroup(NamedTuple):
    """All alarms of one kind."""

    name: str
    level: str
    message: str  # message of the last alarm
    times: int
    first_iter: int | None
    last_iter: int | None
    cleared: int | None = None  # iteration at which the condition of the last one ended, if it has


def lasting_errors(alarms: Sequence[AlarmGroup]) -> list[str]:
    """Return a run's problems, in a word or two each: its lasting alarms of level error."""
    names = [a.name for a in alarms if a.level == "error" and a.cleared is None]
    return ["collapsed" if name == "collapse" else name.replace("_", " ") for name in names]


def grouped_alarms(alarms: Sequence[AlarmLine]) -> list[AlarmGroup]:
    """Group alarms by kind: first the lasting alarms, errors before warnings, then by start."""
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


#: Names in mmengine's scalars.json of what metrics.jsonl calls otherwise.
_OF_MMENGINE = {"time": "step_seconds", "data_time": "data_seconds"}


def read_scalars(work_dir: str | Path, damaged: list[str] | None = None) -> list[Row]:
    """Return rows that a training run logged, ordered by iteration, over all its resumptions.

    These are the rows with ``"kind": "train"`` in ``metrics.jsonl`` (docs/logging.md). If only
    mmengine's ``LocalVisBackend`` has logged, they are read from ``*/vis_data/scalars.json``.
    Values that were not finite are NaN. An incomplete last line is left out.

    A start replaces everything that earlier starts logged from its first row on. It replaces the
    steps that a crash has lost, or all of them if no checkpoint could be resumed.

    If ``damaged`` is given, it gets the message of every damaged line, which is left out without a
    ValueError. A folder without a training log raises FileNotFoundError.
    """
    metrics = Path(work_dir, METRICS)
    files = [metrics] if metrics.is_file() else sorted(Path(work_dir).glob(f"*/{_SCALARS}"))
    if not files:
        raise FileNotFoundError(f"no training has logged to {work_dir} ({METRICS})")
    rows: list[Row] = []
    for file in files:  # folders are named by start time
        for where, row in read_json_lines(file, damaged):
            if "loss" in row and "iter" in row and row.get("kind", "train") == "train":
                if file != metrics:
                    row = {_OF_MMENGINE.get(name, name): value for name, value in row.items()}
                if type(row["iter"]) is not int or abs(row["iter"]) >= 2**63:
                    problem = f"{where}: iter {row['iter']!r:.40} is not a whole number"
                    if damaged is None:
                        raise ValueError(problem)
                    damaged.append(problem)
                    continue
                step = _numbers(row)
                # Rows of this iteration or a later one were lost in a crash.
                while rows and rows[-1]["iter"] >= step["iter"]:
                    rows.pop()
                rows.append(step)
    return rows


def read_online_evaluations(work_dir: str | Path, damaged: list[str] | None = None) -> list[Row]:
    """Return rows of the online evaluation (``online_evaluation.jsonl``); empty if there are none.

    ``damaged`` works as in :func:`read_scalars`.
    """
    rows = map(_numbers, _rows_of(Path(work_dir, EVALUATIONS), damaged))
    return [row for row in rows if "iter" in row]


def read_validations(
    work_dir: str | Path, damaged: list[str] | None = None, kind: str = "val"
) -> list[Row]:
    """Return rows of the validation of a classifier in ``metrics.jsonl``; empty if there are none.

    ``kind="random"`` reads comparisons with random weights. ``damaged`` works as in
    :func:`read_scalars`.
    """
    rows = _rows_of(Path(work_dir, METRICS), damaged)
    return [
        _numbers(row) for row in rows if row.get("kind") == kind and type(row.get("iter")) is int
    ]


def read_alarms(work_dir: str | Path, damaged: list[str] | None = None) -> list[Row]:
    """Read the alarms of a training run (``alarms.jsonl``) in their order; empty without any.

    An alarm whose condition has ended contains the iteration of the end as ``cleared``. ``damaged``
    works as in :func:`read_scalars`.
    """
    alarms: list[Row] = []
    for row in _rows_of(Path(work_dir, ALARMS), damaged):
        if "alarm" in row:
            alarms.append(dict(row))
        for alarm in alarms[::-1]:
            if "alarm" not in row and alarm["alarm"] == row.get("cleared"):
                alarm["cleared"] = row.get("iter")
                break
    return alarms


def read_bad_files(work_dir: str | Path, damaged: list[str] | None = None) -> list[Row]:
    """Read the files that could not be decoded (``bad_files.jsonl``); empty without any."""
    return _rows_of(Path(work_dir, BAD_FILES), damaged)


def read_history(work_dir: str | Path, damaged: list[str] | None = None) -> list[Row]:
    """Read starts and ends of a training run (``history.jsonl``) in order; empty without any.

    A start without an end belongs to a run that is running or was killed. ``damaged`` works as in
    :func:`read_scalars`.
    """
    return [row for row in _rows_of(Path(work_dir, HISTORY), damaged) if "event" in row]


def _rows_of(file: Path, damaged: list[str] | None) -> list[Row]:
    return [row for _, row in read_json_lines(file, damaged)] if file.is_file() else []


def _numbers(row: Row) -> dict[str, float]:
    """Return the values that can be drawn. Null means that a value is not finite."""
    row = {k: math.nan if v is None else v for k, v in row.items()}
    numbers = {k: v for k, v in row.items() if isinstance(v, int | float)}
    return {k: v for k, v in numbers.items() if abs(v) < 2**63 or v != v}
