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
``splits`` (tools/finetune_splits.py, the three official splits). Columns of one evaluation share
it, and so do points and sweeps that need the same pretraining: a step is known by its settings.
A point with ``columns=["K200"]`` has these columns only, where each data set has its own recipes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mmengine.config import Config

from sce_video.engine.config.changes import parse_value
from sce_video.engine.config.load import load_config

#: Tools that an evaluation runs, by its ``training``.
TRAININGS = ("none", "one", "splits")
_TOP = ("title", "source", "pretrain", "points", "columns", "seeds", "notes")
#: Types of the entries of points and columns.
_TYPES: dict[str, type] = {
    **dict.fromkeys(("name", "metric", "config", "training", "checkpoint", "note"), str),
    **dict.fromkeys(("options", "published"), dict),
    "columns": list,
}
_KINDS: dict[type, str] = {dict: "a dict", list: "a list", str: "a text"}

Options = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A metric of an evaluation: see the module's text."""

    name: str
    metric: str
    config: str | None = None
    options: Options = field(default_factory=dict)
    training: str = "none"


@dataclass(frozen=True)
class Point:
    """A row of the table: see the module's text."""

    name: str
    config: str | None = None
    options: Options = field(default_factory=dict)
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

    Attributes:
        name: Of the file, without its ending.
        title: For the table.
        source: Where the published numbers come from.
        config: Recipe of the pretraining, unless a point has its own.
        options: Changes of it for all points.
        points: Rows.
        columns: Columns.
        seeds: Every point is pretrained and evaluated with each.
        notes: What differs from the protocol of the published numbers.
    """

    name: str
    title: str
    source: str
    config: str | None
    options: Options
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
    _check_types(pretrain, f"{path}, pretrain")
    sweep = Sweep(
        name=Path(path).stem,
        title=str(content.get("title", Path(path).stem)),
        source=str(content.get("source", "")),
        config=pretrain.get("config"),
        options=pretrain.get("options", {}),
        points=_entries(content, "points", Point, path),
        columns=_entries(content, "columns", Column, path),
        seeds=_list(content, "seeds", int, (0,), path),
        notes=_list(content, "notes", str, (), path),
    )
    _check(sweep, path)
    return sweep


def _check_keys(content: Any, known: Sequence[str], where: str) -> None:
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a dict, got {content!r:.80}")
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise ValueError(f"{where}: unknown {unknown[0]!r}; known: {', '.join(known)}")


def _check_types(entry: dict[str, Any], where: str) -> None:
    for name, value in entry.items():
        if value is None and name in ("config", "checkpoint"):
            continue
        if not isinstance(value, _TYPES[name]) or value == "":
            kind = _KINDS[_TYPES[name]]
            raise ValueError(f"{where}: {name} must be {kind}, got {value!r:.80}")


def _list(content: dict, key: str, kind: type, default: tuple, path: Any) -> tuple:
    values = content.get(key, default)
    if not isinstance(values, list | tuple) or any(type(value) is not kind for value in values):
        what = "whole numbers" if kind is int else "texts"
        raise ValueError(f"{path}: {key} must be a list of {what}, got {values!r:.80}")
    return tuple(values)


def _entries(content: dict, key: str, kind: type, path: Any) -> tuple:
    """Points or columns, made of dicts whose keys are the fields of the class."""
    entries = content.get(key)
    if not isinstance(entries, list | tuple) or not entries:
        raise ValueError(f"{path}: {key} must be a list of dicts, got {entries!r:.80}")
    needed = [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]
    found = []
    for number, entry in enumerate(entries):
        where = f"{path}, {key}[{number}]"
        _check_keys(entry, [f.name for f in fields(kind)], where)
        _check_types(entry, where)
        missing = [name for name in needed if name not in entry]
        if missing:
            raise ValueError(f"{where}: needs a {missing[0]}")
        found.append(kind(**entry))
    names = [entry.name for entry in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path}: two of {key} have the name {name!r}")
    return tuple(found)


def _check(sweep: Sweep, path: Any) -> None:
    check_seeds(sweep.seeds, f"{path}")
    names = {column.name for column in sweep.columns}
    for point in sweep.points:
        where = f"{path}: point {point.name!r}"
        if not (point.config or sweep.config):
            raise ValueError(f"{where} has no config, and pretrain has none")
        for name in point.columns:
            if name not in names:
                raise ValueError(f"{where} has columns={point.columns!r}, {name!r} is none")
        for name, value in point.published.items():
            if name not in (point.columns or names):
                raise ValueError(f"{where} has a published {name!r}, which is no column")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{where}: published {name} must be a number, got {value!r}")
    for column in sweep.columns:
        where = f"{path}: column {column.name!r}"
        if column.training not in TRAININGS:
            known = ", ".join(TRAININGS)
            raise ValueError(f"{where} has training={column.training!r}, not one of {known}")
        if column.training != "none" and column.config is None:
            raise ValueError(f"{where} trains, and needs a config")


def check_seeds(seeds: Sequence[int], where: str) -> None:
    """Raise ValueError for no seeds, or the same twice."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"{where}: seeds must be one or more different numbers, got {list(seeds)}")


@dataclass(frozen=True)
class Step:
    """One pretraining or evaluation, and the commands that run it.

    Attributes:
        folder: Below the output folder; its name ends with a hash of the settings.
        commands: Tool and arguments of each command, one after the other.
        result: File that the last command writes: a checkpoint, or JSON with metrics.
        before: The step whose checkpoint this one evaluates.
    """

    folder: str
    commands: tuple[tuple[str, ...], ...]
    result: str
    before: Step | None = None


@dataclass(frozen=True)
class SweepCell:
    """One number to measure: a point's column with a seed, and the evaluation that gives it."""

    sweep: str
    point: str
    column: str
    seed: int
    metric: str
    step: Step


@dataclass(frozen=True)
class Extra:
    """Changes of every pretraining and every evaluation, from the command line."""

    pretrain: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()


def plan(
    sweeps: Sequence[Sweep], out: str | Path, extra: Extra | None = None, root: str | Path = "."
) -> list[SweepCell]:
    """All numbers of the sweeps with the steps that measure them; equal steps are one object.

    Args:
        sweeps: Tables to be made.
        out: Output folder, which the commands name.
        extra: Options for all pretrainings or all evaluations.
        root: Folder of configs that are not found from the current one.

    Raises:
        FileNotFoundError: a config is missing.
        ValueError: unknown keys or values that a command line cannot express.
    """
    planner = _Planner(Path(out), extra or Extra())
    cells = []
    for sweep in (_found(sweep, Path(root)) for sweep in sweeps):
        for point in sweep.points:
            for seed in sweep.seeds:
                arguments = planner.arguments(sweep, point, seed)
                pretrained = None if point.checkpoint else planner.pretraining(*arguments)
                for column in filter(point.has, sweep.columns):
                    origin = pretrained or str(point.checkpoint)
                    step = planner.evaluation(column, seed, origin, arguments)
                    # Columns of one evaluation share the step and read other metrics from it.
                    names = sweep.name, point.name, column.name
                    cells.append(SweepCell(*names, seed, column.metric, step))
    return cells


def chains(cells: Sequence[SweepCell]) -> list[list[Step]]:
    """The steps by pretraining, each after what it needs: what can run side by side."""
    found: dict[str, list[Step]] = {}
    for cell in cells:
        # The pretraining leads its chain; an evaluation of given weights is a chain of its own.
        first = cell.step.before or cell.step
        chain = found.setdefault(first.folder, [first])
        if cell.step not in chain:
            chain.append(cell.step)
    return list(found.values())


def _found(sweep: Sweep, root: Path) -> Sweep:
    """The sweep with the paths of its configs."""

    def path(config: str | None) -> str | None:
        return config if config is None or Path(config).is_file() else str(root / config)

    return replace(
        sweep,
        config=path(sweep.config),
        points=tuple(replace(point, config=path(point.config)) for point in sweep.points),
        columns=tuple(replace(column, config=path(column.config)) for column in sweep.columns),
    )


class _Planner:
    """Makes the steps of points and columns, each once."""

    def __init__(self, out: Path, extra: Extra) -> None:
        self.out = out
        self.extra = extra
        self._steps: dict[str, Step] = {}
        self._configs: dict[tuple[str, ...], Config] = {}

    def arguments(self, sweep: Sweep, point: Point, seed: int) -> tuple[str, list[str]]:
        """Config and options of a point's pretraining."""
        options = option_texts({**sweep.options, **point.options})
        seeded = f"randomness.seed={seed}"
        return str(point.config or sweep.config), [*options, *self.extra.pretrain, seeded]

    def pretraining(self, config: str, options: list[str]) -> Step:
        """The step that trains with a config."""
        cfg = self._load(config, options)
        if cfg.get("train_cfg") is None:
            raise ValueError(f"{config} has no train_cfg: it cannot be pretrained")
        folder = f"pretrain/{Path(config).stem}-{_digest(cfg, options)}"
        command = ("tools/train.py", config, "--work-dir", str(self.out / folder), "--resume")
        result = f"epoch_{cfg.train_cfg.max_epochs}.pth"
        return self._once(Step(folder, ((*command, "--cfg-options", *options),), result))

    def evaluation(
        self, column: Column, seed: int, origin: Step | str, arguments: tuple[str, list[str]]
    ) -> Step:
        """The step that evaluates a pretraining, or a checkpoint or ``random`` weights."""
        own = [*option_texts(column.options), *self.extra.evaluate, f"randomness.seed={seed}"]
        config, options = arguments if column.config is None else (column.config, [])
        options = [*options, *own]
        before = origin if isinstance(origin, Step) else None
        checkpoint = str(self.out / before.folder / before.result) if before else str(origin)
        cfg = self._load(config, options)
        known = before.folder if before else f"{checkpoint} {seed}"
        digest = _digest(cfg, options, known, column.training)
        folder = f"evaluate/{Path(config).stem}-{digest}"
        changes = ("--cfg-options", *options)
        work_dir = str(self.out / folder)
        start = ("--pretrained", checkpoint, "--work-dir", work_dir)
        if column.training == "splits":
            run = ("tools/finetune_splits.py", config, *start, *changes)
            return self._once(Step(folder, (run,), "splits.json", before))
        commands: tuple[tuple[str, ...], ...] = ()
        if column.training == "one":
            commands = (("tools/train.py", config, *start, "--resume", *changes),)
            checkpoint = f"{work_dir}/epoch_{cfg.train_cfg.max_epochs}.pth"
        results = ("--out", f"{work_dir}/results.json")
        test = ("tools/test.py", config, checkpoint, "--work-dir", work_dir, *results, *changes)
        return self._once(Step(folder, (*commands, test), "results.json", before))

    def _once(self, step: Step) -> Step:
        return self._steps.setdefault(step.folder, step)

    def _load(self, config: str, options: list[str]) -> Config:
        """A config, read once for all points that evaluate with it."""
        key = (config, *options)
        if key not in self._configs:
            self._configs[key] = load_config(config, options)
        return self._configs[key]


def _digest(cfg: Config, options: Sequence[str], *others: str) -> str:
    """Ten hexadecimal digits of the resolved settings, and of what they are applied to.

    The names of the options count, too: an option wins over what a checkpoint or a rule would set.
    """
    keys = sorted(option.partition("=")[0] for option in options)

    def named(value: Any) -> str:
        # A class or function of the config, without its address in this process.
        return re.sub(r" at 0x[0-9a-f]+", "", str(value))

    text = json.dumps([cfg._cfg_dict.to_dict(), [keys, *others]], sort_keys=True, default=named)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def option_texts(options: Mapping[str, Any]) -> list[str]:
    """``{"model.lambda_": (1, 0, 0)}`` to ``["model.lambda_=(1,0,0)"]``, for a command line.

    Raises:
        ValueError: a value that would be read back as another one.
    """
    texts = []
    for key, value in _flat(options):
        # Text that would be read as a number, a sequence or None stands in quotes.
        written = (text for text in (_text(value), repr(value)) if _reads_as(text, value))
        text = next(written, None)
        if text is None:
            raise ValueError(f"{key}: {value!r} cannot be written as an option")
        texts.append(f"{key}={text}")
    return texts


def _reads_as(text: str, value: Any) -> bool:
    try:
        read = parse_value(text)
    except ValueError:
        return False
    return read == value and type(read) is type(value)


def _flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in options.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({','.join(map(_text, value))})"
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return str(value)
