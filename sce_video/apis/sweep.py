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
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmengine.config import Config

from sce_video.engine.config import load_config, parse_options

#: Tools that an evaluation runs, by its ``training``.
TRAININGS = ("none", "one", "splits")
_TOP = ("title", "source", "pretrain", "points", "columns", "seeds", "notes")
_POINT = ("name", "config", "options", "checkpoint", "published", "note")
_COLUMN = ("name", "config", "options", "training", "metric")

Options = dict[str, Any]


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


# -- reading -------------------------------------------------------------------------------


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
    points = _entries(content, "points", Point, _POINT, path)
    columns = _entries(content, "columns", Column, _COLUMN, path)
    sweep = Sweep(
        name=Path(path).stem,
        title=str(content.get("title", Path(path).stem)),
        source=str(content.get("source", "")),
        config=pretrain.get("config"),
        options=pretrain.get("options", {}),
        points=points,
        columns=columns,
        seeds=tuple(content.get("seeds", (0,))),
        notes=tuple(content.get("notes", ())),
    )
    _check(sweep, path)
    return sweep


def _check_keys(content: Any, known: Sequence[str], where: str) -> None:
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a dict, got {content!r:.80}")
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise ValueError(f"{where}: unknown {unknown[0]!r}; known: {', '.join(known)}")


def _entries(content: dict, key: str, kind: type, known: Sequence[str], path: Any) -> tuple:
    entries = content.get(key)
    if not isinstance(entries, list | tuple) or not entries:
        raise ValueError(f"{path}: {key} must be a list of dicts, got {entries!r:.80}")
    found = []
    for number, entry in enumerate(entries):
        where = f"{path}, {key}[{number}]"
        _check_keys(entry, known, where)
        try:
            found.append(kind(**entry))
        except TypeError as error:
            raise ValueError(f"{where}: {error}") from None
    names = [entry.name for entry in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path}: two of {key} have the name {name!r}")
    return tuple(found)


def _check(sweep: Sweep, path: Any) -> None:
    if not sweep.seeds or any(type(seed) is not int for seed in sweep.seeds):
        raise ValueError(f"{path}: seeds must be whole numbers, got {list(sweep.seeds)}")
    for point in sweep.points:
        if not (point.config or sweep.config):
            raise ValueError(f"{path}: point {point.name!r} has no config, and pretrain has none")
        unknown = set(point.published) - {column.name for column in sweep.columns}
        if unknown:
            raise ValueError(
                f"{path}: point {point.name!r} has a published {sorted(unknown)[0]!r}, which is "
                "no column"
            )
    for column in sweep.columns:
        if column.training not in TRAININGS:
            raise ValueError(
                f"{path}: column {column.name!r} has training={column.training!r}, not one of "
                f"{', '.join(TRAININGS)}"
            )
        if column.training != "none" and column.config is None:
            raise ValueError(f"{path}: column {column.name!r} trains, and needs a config")


# -- planning ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
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
) -> list[Cell]:
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
    extra = extra or Extra()
    steps: dict[str, Step] = {}
    cells = []
    for sweep in (_found(sweep, Path(root)) for sweep in sweeps):
        for point in sweep.points:
            for seed in sweep.seeds:
                pretrained, arguments = _pretraining(sweep, point, seed, Path(out), extra)
                if pretrained is not None:
                    pretrained = steps.setdefault(pretrained.folder, pretrained)
                for column in sweep.columns:
                    step = _evaluation(column, pretrained, arguments, point, seed, Path(out), extra)
                    step = steps.setdefault(step.folder, step)
                    cells.append(
                        Cell(sweep.name, point.name, column.name, seed, column.metric, step)
                    )
    return cells


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


def chains(cells: Sequence[Cell]) -> list[list[Step]]:
    """The steps by pretraining, each after what it needs: what can run side by side."""
    found: dict[str, list[Step]] = {}
    for cell in cells:
        first = cell.step.before or cell.step
        chain = found.setdefault(first.folder, [first])
        if cell.step not in chain:
            chain.append(cell.step)
    return list(found.values())


def _pretraining(
    sweep: Sweep, point: Point, seed: int, out: Path, extra: Extra
) -> tuple[Step | None, list[str]]:
    """The step, None where the point names a checkpoint; and config and options of the point."""
    config = str(point.config or sweep.config)
    options = [*option_texts({**sweep.options, **point.options}), *extra.pretrain]
    options.append(f"randomness.seed={seed}")
    arguments = [config, *options]
    if point.checkpoint is not None:
        return None, arguments
    cfg = load_config(config, options)
    if cfg.get("train_cfg") is None:
        raise ValueError(f"{config} has no train_cfg: it cannot be pretrained")
    folder = f"pretrain/{Path(config).stem}-{_digest(cfg, options)}"
    command = ("tools/train.py", config, "--work-dir", str(out / folder), "--resume")
    result = f"epoch_{cfg.train_cfg.max_epochs}.pth"
    return Step(folder, ((*command, "--cfg-options", *options),), result), arguments


def _evaluation(
    column: Column,
    pretrained: Step | None,
    arguments: list[str],
    point: Point,
    seed: int,
    out: Path,
    extra: Extra,
) -> Step:
    own = [*option_texts(column.options), *extra.evaluate, f"randomness.seed={seed}"]
    config, *options = arguments if column.config is None else [column.config]
    options = [*options, *own]
    if pretrained is not None:
        checkpoint = str(out / pretrained.folder / pretrained.result)
    else:
        checkpoint = str(point.checkpoint)
    cfg = load_config(config, options)
    origin = pretrained.folder if pretrained else f"{checkpoint} {seed}"
    folder = f"evaluate/{Path(config).stem}-{_digest(cfg, options, origin, column.training)}"
    work_dir = str(out / folder)
    changes = ("--cfg-options", *options)
    if column.training == "none":
        test = ("tools/test.py", config, checkpoint, "--work-dir", work_dir)
        commands = ((*test, "--out", f"{work_dir}/results.json", *changes),)
        return Step(folder, commands, "results.json", pretrained)
    start = ("--pretrained", checkpoint, "--work-dir", work_dir)
    if column.training == "splits":
        run = ("tools/finetune_splits.py", config, *start, *changes)
        return Step(folder, (run,), "splits.json", pretrained)
    last = f"{work_dir}/epoch_{cfg.train_cfg.max_epochs}.pth"
    train = ("tools/train.py", config, *start, "--resume", *changes)
    test = ("tools/test.py", config, last, "--work-dir", work_dir)
    test = (*test, "--out", f"{work_dir}/results.json", *changes)
    return Step(folder, (train, test), "results.json", pretrained)


def _digest(cfg: Config, *others: Any) -> str:
    """Ten hexadecimal digits of the resolved settings; options count, since they win."""
    keys = [sorted(o.partition("=")[0] for o in x) if isinstance(x, list) else x for x in others]
    text = json.dumps([cfg._cfg_dict.to_dict(), keys], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def option_texts(options: Mapping[str, Any]) -> list[str]:
    """``{"model.lambda_": (1, 0, 0)}`` to ``["model.lambda_=(1,0,0)"]``, for a command line.

    Raises:
        ValueError: a value that would be read back as another one.
    """
    texts = []
    for key, value in _flat(options):
        text = f"{key}={_text(value)}"
        if list(parse_options([text]).values()) != [value]:
            raise ValueError(f"{key}: {value!r} cannot be written as an option")
        texts.append(text)
    return texts


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
