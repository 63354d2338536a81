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

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from mmengine.config import Config

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
        """Return whether this column is measured for the point."""
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
    """Build points or columns from dicts whose keys are the fields of the class."""
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
    """Yield whether entries do not fit to each other, with the message."""
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
    """Raise ValueError if there are no seeds, or one is given twice."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"{where}: seeds must be one or more different numbers, got {list(seeds)}")
