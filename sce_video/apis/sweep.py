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

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from mmengine.config import Config

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
