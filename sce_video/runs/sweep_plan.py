"""Sweeps: the content of their files, and the pretraining runs and evaluations that they need.

A sweep file is Python, like a config::

    title = "weight of the positive"
    source = "tab:video-lambda-vary"  # where ``published`` comes from
    pretrain = dict(config="configs/sce/sce_r3d18_8xb64-8x224-200e_k200_baseline.py")
    points = [
        dict(name="0.125", options={"model.lambda_": 0.125}, published={"K200": 64.8}),
        dict(name="random weights", checkpoint="random"),
    ]
    columns = [
        dict(name="K200", config="configs/downstream/linear/r3d18_8xb64-8x224-60e_k200.py",
             training="one", metric="top1"),
        dict(name="kNN", metric="knn_top1"),  # the test of the pretraining's own config
    ]

``training`` states what an evaluation trains: ``none``, ``one`` (tools/train.py, then
tools/test.py) or ``splits`` (sce-video finetune-splits, the three official splits). A step is
identified by its settings, so columns that need the same evaluation share it, and points and sweeps
that need the same pretraining run share that. A point with ``columns=["K200"]`` has only this
column, because each dataset has its own recipes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from sce_video.utils.files import read_json
from sce_video.utils.records import at, read_record
from sce_video.utils.run_files import LAST_CHECKPOINT

if TYPE_CHECKING:
    from mmengine.config import Config

#: Values that ``training`` may have in a column
TRAININGS = ("none", "one", "splits")
# Names of the files in the folder of a step
DONE = "done.json"
FAILED = "failed.json"
LOG = "sweep.log"
LOCK = "step.lock"


@dataclass(frozen=True)
class Column:
    """Column of the table: a metric of an evaluation.

    Attributes:
        name: Title of the column.
        metric: Name of the metric in the results of the evaluation.
        config: Config of the evaluation; None for the test in the config of the pretraining run.
        options: Changes of this config.
        training: Training that the evaluation needs, one of :data:`TRAININGS`.
    """

    name: str
    metric: str
    config: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    training: str = "none"


@dataclass(frozen=True)
class Point:
    """Row of the table: a pretraining run, or given weights.

    Attributes:
        name: Title of the row.
        config: Config of the pretraining run; None for the config of the sweep.
        options: Changes of this config, which are applied after the options of the sweep.
        checkpoint: Path of a checkpoint, or ``random``, to evaluate instead of a pretraining run.
        published: Numbers from the sweep's ``source``, by column name.
        note: Remark that follows the title.
        columns: Names of the columns that the row has; empty for all.
    """

    name: str
    config: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None
    published: dict[str, float] = field(default_factory=dict)
    note: str = ""
    columns: tuple[str, ...] = ()

    def has(self, column: Column) -> bool:
        """Return whether this column is measured for the point."""
        return not self.columns or column.name in self.columns


@dataclass(frozen=True)
class Pretraining:
    """Recipe of all pretraining runs, and options that change it."""

    config: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """Table to be made, as described in a sweep file.

    Attributes:
        points: Rows of the table.
        columns: Columns of the table.
        name: Name of the sweep; by default, the name of the file.
        title: Title of the table.
        source: Source of the published numbers.
        pretrain: Recipe of all points that do not have their own.
        seeds: Seeds with each of which every point is pretrained and evaluated.
        notes: Sentences about differences from the protocol of the published numbers.
    """

    points: tuple[Point, ...]
    columns: tuple[Column, ...]
    name: str = ""
    title: str = ""
    source: str = ""
    pretrain: Pretraining = field(default_factory=Pretraining)
    seeds: tuple[int, ...] = (0,)
    notes: tuple[str, ...] = ()


def read_sweep(path: str | Path) -> Sweep:
    """Read and check a sweep file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file cannot be read, or has an unknown, missing or wrong entry.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no sweep file at {path}")
    from mmengine.config import Config  # slow, so a missing file is reported first

    try:
        content = Config.fromfile(str(path)).to_dict()
    except Exception as error:  # the file is code, so it may raise anything
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"cannot read the sweep {path}: {first}") from error
    content = {k: v for k, v in content.items() if not k.startswith("_")}  # drop private variables
    stem = Path(path).stem
    try:
        sweep = read_record(Sweep, {"name": stem, "title": stem, **content})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for unsuitable, why in _checks(sweep):
        if unsuitable:
            raise ValueError(f"{path}: {why}")
    return sweep


def _checks(sweep: Sweep) -> Iterator[tuple[bool, str]]:
    """Yield, for each check, whether it has failed, and the message."""
    seeds = sweep.seeds
    wrong_seeds = f"seeds must be one or more different numbers, got {list(seeds)}"
    yield not seeds or len(set(seeds)) < len(seeds), wrong_seeds
    for what, entries in (("points", sweep.points), ("columns", sweep.columns)):
        listed = [entry.name for entry in entries]
        double = next((name for name in listed if listed.count(name) > 1), None)
        yield not listed, f"{what} must have at least one entry"
        yield "" in listed, f"an entry of {what} has no name"
        yield double is not None, f"two entries of {what} have the name {double!r}"
    names = {column.name for column in sweep.columns}
    for point in sweep.points:
        this = f"point {point.name!r}"
        no_config = not (point.config or sweep.pretrain.config)
        yield no_config, f"neither {this} nor pretrain has a config"
        for name in point.columns:
            unknown_column = f"{this} has columns={list(point.columns)}, but {name!r} is not one"
            yield name not in names, unknown_column
        for name, value in point.published.items():
            no_column = name not in (point.columns or names)
            yield no_column, f"{this} has a published {name!r}, which is not a column"
            number = isinstance(value, int | float) and not isinstance(value, bool)
            yield not number, f"{this}: published {name} must be a number, got {value!r}"
    for column in sweep.columns:
        this, training, known = f"column {column.name!r}", column.training, ", ".join(TRAININGS)
        unknown = training not in TRAININGS
        yield unknown, f"{this} has training={training!r}, not one of {known}"
        yield training != "none" and column.config is None, f"{this} trains, so it needs a config"


@dataclass(frozen=True)
class Step:
    """Pretraining run or evaluation, and the commands that run it.

    Attributes:
        folder: Folder below the output folder, whose name ends with a hash of the settings.
        commands: Arguments of Python for each command, in order.
        result: File that the last command writes: a checkpoint, or JSON with metrics.
        before: Step whose checkpoint this step evaluates.
    """

    folder: str
    commands: tuple[tuple[str, ...], ...]
    result: str
    before: Step | None = None


def is_done(out: str | Path, step: Step) -> bool:
    """Return whether a step is finished and its result exists."""
    folder = Path(out) / step.folder
    return (folder / DONE).is_file() and (folder / step.result).is_file()


def progress_of(out: str | Path, steps: Sequence[Step]) -> frozenset[str]:
    """Return the files that show whether steps advance.

    These are the marks of finished steps, and checkpoints, whose names contain the epoch or
    iteration.
    """
    folders = [Path(out) / step.folder for step in steps]
    return frozenset(
        str(file) for name in (DONE, "*.pth") for folder in folders for file in folder.rglob(name)
    )


def step_state(out: str | Path, step: Step) -> str:
    """Return ``done``, ``running``, ``failed: why``, ``interrupted`` or ``not run`` for a step."""
    folder = Path(out) / step.folder
    if is_done(out, step):
        return "done"
    if (folder / LOCK).is_file():
        try:
            with FileLock(folder / LOCK, timeout=0):
                pass
        except Timeout:
            return "running"
        except OSError:  # the folder may belong to another user
            pass
    if (folder / FAILED).is_file():
        return f"failed: {read_json(folder / FAILED).get('why', '')}"
    return "interrupted" if (folder / LOG).is_file() else "not run"


@dataclass(frozen=True)
class SweepCell:
    """Number to measure for a point, a column and a seed, and the evaluation that measures it."""

    sweep: str
    point: str
    column: str
    metric: str
    step: Step


def plan(
    sweeps: Sequence[Sweep],
    out: str | Path,
    pretrain_options: Sequence[str] = (),
    evaluate_options: Sequence[str] = (),
    root: str | Path = ".",
) -> list[SweepCell]:
    """Return all numbers of the sweeps with the steps that measure them, each step once.

    Args:
        sweeps: Sweeps to plan.
        out: Folder to which the commands write.
        pretrain_options: ``KEY=VALUE`` changes of all pretraining runs.
        evaluate_options: ``KEY=VALUE`` changes of all evaluations.
        root: Folder with the configs that the current folder lacks.

    Raises:
        FileNotFoundError: If a config is missing.
        ValueError: If a key is unknown, or a command line cannot express a value.
    """
    planner = _Planner(Path(out), Path(root))
    cells = []
    for sweep, point, seed in ((s, p, n) for s in sweeps for p in s.points for n in s.seeds):
        # The seed comes last. Otherwise an option could give all runs of a point the same seed.
        config, of_seed = str(point.config or sweep.pretrain.config), f"randomness.seed={seed}"
        options = [
            *option_texts({**sweep.pretrain.options, **point.options}),
            *pretrain_options,
            of_seed,
        ]
        before = None if point.checkpoint else planner.pretraining(config, options)
        for column in filter(point.has, sweep.columns):
            own = [*option_texts(column.options), *evaluate_options, of_seed]
            # Columns that need the same evaluation share a step and read different metrics from it.
            step = planner.evaluation(
                column.config or config,
                own if column.config else [*options, *own],
                column.training,
                before or (str(point.checkpoint), seed),
            )
            names = sweep.name, point.name, column.name
            cells.append(SweepCell(*names, column.metric, step))
    return cells


def chains(cells: Sequence[SweepCell]) -> list[list[Step]]:
    """Return chains of steps that can run in parallel. Within a chain, each step follows its needs.

    A chain is a pretraining run with its evaluations, or one evaluation of a given checkpoint. The
    options ``--shard`` and ``--jobs`` of ``sce-video sweep`` divide the work by chains.
    """
    found: dict[str, list[Step]] = {}
    for cell in cells:
        # A pretraining run comes first in its chain. An evaluation of given weights forms its own
        # chain.
        first = cell.step.before or cell.step
        chain = found.setdefault(first.folder, [first])
        if cell.step not in chain:
            chain.append(cell.step)
    return list(found.values())


class _Planner:
    """Planner that makes each step once, and reads every config with its options once."""

    def __init__(self, out: Path, root: Path) -> None:
        self.out, self.root = out, root
        self._steps: dict[str, Step] = {}
        self._configs: dict[tuple[str, ...], Config] = {}

    def pretraining(self, config: str, options: list[str]) -> Step:
        """Return the step that trains with a config."""
        file, result, name = self._read(config, options)
        if result is None:
            raise ValueError(f"{file} has no train_cfg, so it cannot be trained")
        folder = f"pretrain/{name}"
        command = ("tools/train.py", file, "--work-dir", str(self.out / folder), "--resume")
        run = (*command, "--cfg-options", *options)
        return self._steps.setdefault(folder, Step(folder, (run,), result))

    def evaluation(
        self, config: str, options: list[str], training: str, of: Step | tuple[str, int]
    ) -> Step:
        """Return the step that evaluates a pretraining run, or a given checkpoint with a seed."""
        if isinstance(of, Step):
            before, known = of, of.folder
            checkpoint = _checkpoint_of(str(self.out / of.folder), of.result)
        else:
            before, checkpoint, known = None, of[0], f"{of[0]} {of[1]}"
        file, result, name = self._read(config, options, known, training)
        folder = f"evaluate/{name}"
        work_dir = str(self.out / folder)
        start = (file, "--pretrained", checkpoint, "--work-dir", work_dir)
        changes = ("--cfg-options", *options)
        if training == "splits":
            run = ("-m", "sce_video", "finetune-splits", *start, *changes)
            return self._steps.setdefault(folder, Step(folder, (run,), "splits.json", before))
        commands: tuple[tuple[str, ...], ...] = ()
        if training == "one":
            commands = (("tools/train.py", *start, "--resume", *changes),)
            checkpoint = _checkpoint_of(work_dir, result or "")
        paths = ("--work-dir", work_dir, "--out", f"{work_dir}/results.json")
        commands = (*commands, ("tools/test.py", file, checkpoint, *paths, *changes))
        return self._steps.setdefault(folder, Step(folder, commands, "results.json", before))

    def _read(self, config: str, options: list[str], *others: str) -> tuple[str, str | None, str]:
        """Return a config's file, the last file of its training, and a name with a hash.

        The last file is None for a config without training.
        """
        from sce_video.engine.config.load import load_config

        file = config if Path(config).is_file() else str(self.root / config)
        key = (file, *options)
        cfg = self._configs[key] = self._configs.get(key) or load_config(file, options)
        # Include the names of the options, because an option overrides what a checkpoint or a rule
        # would set.
        keys = sorted(option.partition("=")[0] for option in options)
        text = json.dumps(
            [cfg._cfg_dict.to_dict(), [keys, *others]],
            sort_keys=True,
            # Write a class or function without its address, which differs between processes.
            default=lambda value: re.sub(r" at 0x[0-9a-f]+", "", str(value)),
        )
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        result = None
        if at(cfg, "train_cfg"):
            by_iteration = at(cfg, "default_hooks.checkpoint.by_epoch") is False
            result = LAST_CHECKPOINT if by_iteration else f"epoch_{cfg.train_cfg.max_epochs}.pth"
        return file, result, f"{Path(file).stem}-{digest}"


def _checkpoint_of(folder: str, result: str) -> str:
    """Return a training run's last checkpoint, or its folder if the last iteration is unknown."""
    return folder if result == LAST_CHECKPOINT else f"{folder}/{result}"


def option_texts(options: Mapping[str, Any]) -> list[str]:
    """Write ``{"model.lambda_": (1, 0, 0)}`` as ``["model.lambda_=(1,0,0)"]`` for a command line.

    Raises:
        ValueError: If a value would be read back as a different value.
    """
    from sce_video.engine.config.changes import parse_value

    texts = []
    for key, value in options.items():
        plain = str(value).replace(" ", "") if isinstance(value, list | tuple) else str(value)
        # Quote text that would otherwise be read as a number, a sequence or None.
        for text in (plain, repr(value)):
            with suppress(ValueError):
                read = parse_value(text)
                if read == value and type(read) is type(value):
                    texts.append(f"{key}={text}")
                    break
        else:
            raise ValueError(f"{key}: {value!r} cannot be written as an option")
    return texts
