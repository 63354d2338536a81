"""A sweep: pretrainings that differ in a setting, and the evaluations of each.

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

``training`` is what an evaluation trains: ``none``, ``one`` (tools/train.py, then tools/test.py) or
``splits`` (sce-video finetune-splits, the three official splits). Columns of one evaluation share
it, and so do points and sweeps that need the same pretraining: a step is known by its settings.
A point with ``columns=["K200"]`` has these columns only, where each data set has its own recipes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from mmengine.config import Config

from sce_video.engine.config.changes import parse_value
from sce_video.engine.config.load import load_config
from sce_video.utils.run_files import LAST_CHECKPOINT

#: Tools that an evaluation runs, by its ``training``.
TRAININGS = ("none", "one", "splits")
_TOP = ("title", "source", "pretrain", "points", "columns", "seeds", "notes")
#: Types of the entries of points and columns, in words.
_TEXTS = ("name", "metric", "config", "training", "checkpoint", "note")
_TYPES: dict[str, tuple[type, str]] = {
    **dict.fromkeys(_TEXTS, (str, "a text")),
    **dict.fromkeys(("options", "published"), (dict, "a dict")),
    "columns": (list, "a list"),
}


@dataclass(frozen=True)
class Column:
    """A metric of an evaluation; the module's text shows the entries of a sweep file.

    ``metric`` is the key of the number among the metrics of the evaluation's result, and ``config``
    is None for the test of the pretraining's own config.
    """

    name: str
    metric: str
    config: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    training: str = "none"


@dataclass(frozen=True)
class Point:
    """A row of the table; the module's text shows the entries of a sweep file.

    ``options`` change its config (None: that of the sweep) after those of the sweep, ``checkpoint``
    is evaluated in place of a pretraining: a path, or ``random``. ``published`` are numbers of the
    sweep's ``source`` by the name of the column; ``columns`` names those that it has (all).
    """

    name: str
    config: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None
    published: dict[str, float] = field(default_factory=dict)
    note: str = ""
    columns: Sequence[str] = ()

    def has(self, column: Column) -> bool:
        """Whether this column is measured for the point."""
        return not self.columns or column.name in self.columns


@dataclass(frozen=True)
class Sweep:
    """A table to be made.

    ``config`` is the recipe of the pretraining, unless a point has its own, and ``options`` change
    it for all points; ``source`` says where the published numbers come from, ``notes`` what differs
    from their protocol. Every point is pretrained and evaluated with each of the ``seeds``.
    """

    name: str
    title: str
    source: str
    config: str | None
    options: dict[str, Any]
    points: tuple[Point, ...]
    columns: tuple[Column, ...]
    seeds: tuple[int, ...] = (0,)
    notes: tuple[str, ...] = ()


def read_sweep(path: str | Path) -> Sweep:
    """Read and check a sweep file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it cannot be read, or has an unknown, missing or wrong entry.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no sweep file at {path}")
    try:
        content = Config.fromfile(str(path)).to_dict()
    except Exception as error:  # the file is code: it may raise anything
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"cannot read the sweep {path}: {first}") from error
    content = {k: v for k, v in content.items() if not k.startswith("_")}  # helpers of the file
    _check_keys(content, _TOP, f"{path}")
    pretrain = content.get("pretrain", {})
    _check_keys(pretrain, ("config", "options"), f"{path}, pretrain")
    seeds, notes = content.get("seeds", [0]), content.get("notes", [])
    for key, values, kind, what in (
        ("seeds", seeds, int, "whole numbers"),
        ("notes", notes, str, "texts"),
    ):
        if not isinstance(values, list | tuple) or any(type(value) is not kind for value in values):
            raise ValueError(f"{path}: {key} must be a list of {what}, got {values!r:.80}")
    check_seeds(seeds, f"{path}")
    sweep = Sweep(
        name=Path(path).stem,
        title=str(content.get("title", Path(path).stem)),
        source=str(content.get("source", "")),
        config=pretrain.get("config"),
        options=pretrain.get("options", {}),
        points=_entries(content, "points", Point, path),
        columns=_entries(content, "columns", Column, path),
        seeds=tuple(seeds),
        notes=tuple(notes),
    )
    wrong = next((f"{path}: {why}" for unsuitable, why in _checks(sweep) if unsuitable), None)
    if wrong:
        raise ValueError(wrong)
    return sweep


def _check_keys(content: Any, known: Sequence[str], where: str) -> None:
    """Raise ValueError for an unknown key, or a value of another type than its key has."""
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a dict, got {content!r:.80}")
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise ValueError(f"{where}: unknown {unknown[0]!r}; known: {', '.join(known)}")
    for name, value in content.items() if known is not _TOP else ():
        kind, words = _TYPES[name]
        none = value is None and name in ("config", "checkpoint")
        if not none and (not isinstance(value, kind) or value == ""):
            raise ValueError(f"{where}: {name} must be {words}, got {value!r:.80}")


def _entries(content: dict, key: str, kind: type, path: str | Path) -> tuple:
    """Points or columns, made of dicts whose keys are the fields of the class."""
    entries = content.get(key)
    if not isinstance(entries, list | tuple) or not entries:
        raise ValueError(f"{path}: {key} must be a list of dicts, got {entries!r:.80}")
    needed = [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]
    for number, entry in enumerate(entries):
        where = f"{path}, {key}[{number}]"
        _check_keys(entry, [f.name for f in fields(kind)], where)
        if missing := [name for name in needed if name not in entry]:
            raise ValueError(f"{where}: needs a {missing[0]}")
    names = [entry["name"] for entry in entries]
    if double := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{path}: two of {key} have the name {double[0]!r}")
    return tuple(kind(**entry) for entry in entries)


def _checks(sweep: Sweep) -> Iterator[tuple[bool, str]]:
    """Whether entries do not suit each other, with the message."""
    names = {column.name for column in sweep.columns}
    for point in sweep.points:
        this = f"point {point.name!r}"
        no_config = not (point.config or sweep.config)
        yield no_config, f"{this} has no config, and pretrain has none"
        for name in point.columns:
            yield name not in names, f"{this} has columns={point.columns!r}, {name!r} is none"
        for name, value in point.published.items():
            no_column = name not in (point.columns or names)
            yield no_column, f"{this} has a published {name!r}, which is no column"
            number = isinstance(value, int | float) and not isinstance(value, bool)
            yield not number, f"{this}: published {name} must be a number, got {value!r}"
    for column in sweep.columns:
        this, training, known = f"column {column.name!r}", column.training, ", ".join(TRAININGS)
        unknown = training not in TRAININGS
        yield unknown, f"{this} has training={training!r}, not one of {known}"
        yield training != "none" and column.config is None, f"{this} trains, and needs a config"


def check_seeds(seeds: Sequence[int], where: str) -> None:
    """Raise ValueError for no seeds, or the same twice."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"{where}: seeds must be one or more different numbers, got {list(seeds)}")


@dataclass(frozen=True)
class Step:
    """One pretraining or evaluation, and the commands that run it."""

    folder: str  # below the output folder; its name ends with a hash of the settings
    commands: tuple[tuple[str, ...], ...]  # arguments of python for each, one after the other
    result: str  # file that the last command writes: a checkpoint, or JSON with metrics
    before: Step | None = None  # whose checkpoint this one evaluates


@dataclass(frozen=True)
class SweepCell:
    """A number to measure: a point's column with one of the seeds, and the evaluation for it."""

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
    """All numbers of the sweeps with the steps that measure them; equal steps are one object.

    The commands name the folder ``out``. The options, ``KEY=VALUE`` each, change all pretrainings
    or all evaluations; ``root`` has the configs that are not found from the current folder.

    Raises:
        FileNotFoundError: a config is missing.
        ValueError: unknown keys or values that a command line cannot express.
    """
    planner = _Planner(Path(out), Path(root))
    cells = []
    for sweep, point, seed in ((s, p, n) for s in sweeps for p in s.points for n in s.seeds):
        config, of_seed = str(point.config or sweep.config), f"randomness.seed={seed}"
        options = [*option_texts({**sweep.options, **point.options}), *pretrain_options, of_seed]
        before = None if point.checkpoint else planner.pretraining(config, options)
        for column in filter(point.has, sweep.columns):
            own = [*option_texts(column.options), *evaluate_options, of_seed]
            # Columns of one evaluation share the step and read other metrics from it.
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
    """The steps by pretraining, each after what it needs: what can run side by side.

    A chain is a pretraining and its evaluations, or one evaluation of a given checkpoint; options
    ``--shard`` and ``--jobs`` of ``sce-video sweep`` divide the work by chains.
    """
    found: dict[str, list[Step]] = {}
    for cell in cells:
        # The pretraining leads its chain; an evaluation of given weights is a chain of its own.
        first = cell.step.before or cell.step
        chain = found.setdefault(first.folder, [first])
        if cell.step not in chain:
            chain.append(cell.step)
    return list(found.values())


class _Planner:
    """Makes steps, each once, and reads every config with its options once."""

    def __init__(self, out: Path, root: Path) -> None:
        self.out, self.root = out, root
        self._steps: dict[str, Step] = {}
        self._configs: dict[tuple[str, ...], Config] = {}

    def pretraining(self, config: str, options: list[str]) -> Step:
        """The step that trains with a config."""
        file, result, name = self._read(config, options)
        if result is None:
            raise ValueError(f"{file} has no train_cfg: it cannot be pretrained")
        folder = f"pretrain/{name}"
        command = ("tools/train.py", file, "--work-dir", str(self.out / folder), "--resume")
        run = (*command, "--cfg-options", *options)
        return self._steps.setdefault(folder, Step(folder, (run,), result))

    def evaluation(
        self, config: str, options: list[str], training: str, of: Step | tuple[str, int]
    ) -> Step:
        """The step that evaluates a pretraining, or a given checkpoint with a seed."""
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
        """File of a config, what its training writes last, and a name: ten digits for the settings.

        A config without a training writes nothing, None.
        """
        file = config if Path(config).is_file() else str(self.root / config)
        key = (file, *options)
        cfg = self._configs[key] = self._configs.get(key) or load_config(file, options)
        # The names count, too: an option wins over what a checkpoint or a rule would set.
        keys = sorted(option.partition("=")[0] for option in options)
        text = json.dumps(
            [cfg._cfg_dict.to_dict(), [keys, *others]],
            sort_keys=True,
            # A class or function of the config, without its address in this process.
            default=lambda value: re.sub(r" at 0x[0-9a-f]+", "", str(value)),
        )
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        result = None
        if cfg.get("train_cfg"):
            hook = (cfg.get("default_hooks") or {}).get("checkpoint") or {}
            by_epoch = hook.get("by_epoch", True)
            result = f"epoch_{cfg.train_cfg.max_epochs}.pth" if by_epoch else LAST_CHECKPOINT
        return file, result, f"{Path(file).stem}-{digest}"


def _checkpoint_of(folder: str, result: str) -> str:
    """The last checkpoint of a training; its folder if the number of its iterations is unknown."""
    return folder if result == LAST_CHECKPOINT else f"{folder}/{result}"


def option_texts(options: Mapping[str, Any]) -> list[str]:
    """``{"model.lambda_": (1, 0, 0)}`` to ``["model.lambda_=(1,0,0)"]``, for a command line.

    Raises:
        ValueError: a value that would be read back as another one.
    """
    texts = []
    for key, value in options.items():
        plain = str(value).replace(" ", "") if isinstance(value, list | tuple) else str(value)
        # Text that would be read as a number, a sequence or None stands in quotes.
        for text in (plain, repr(value)):
            with suppress(ValueError):
                read = parse_value(text)
                if read == value and type(read) is type(value):
                    texts.append(f"{key}={text}")
                    break
        else:
            raise ValueError(f"{key}: {value!r} cannot be written as an option")
    return texts
