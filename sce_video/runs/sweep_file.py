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
A point with ``columns=["K200"]`` has only these columns, where each dataset has its own recipes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config

from sce_video.utils.records import read_record

#: Tools that an evaluation runs, by its ``training``.
TRAININGS = ("none", "one", "splits")


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

    ``options`` change its config (None: the sweep's) after the sweep's options. ``checkpoint``, a
    path or ``random``, is evaluated instead of a pretraining. ``published`` are numbers from the
    sweep's ``source`` by the name of the column. ``columns`` names the point's columns (all).
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


@dataclass(frozen=True)
class _Pretraining:
    """The recipe of all pretrainings, and options that change it."""

    config: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _SweepFile:
    """The entries of a sweep file."""

    points: tuple[Point, ...]
    columns: tuple[Column, ...]
    title: str | None = None
    source: str = ""
    pretrain: _Pretraining = field(default_factory=_Pretraining)
    seeds: tuple[int, ...] = (0,)
    notes: tuple[str, ...] = ()


def read_sweep(path: str | Path) -> Sweep:
    """Read and check a sweep file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file cannot be read, or has an unknown, missing or wrong entry.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no sweep file at {path}")
    try:
        content = Config.fromfile(str(path)).to_dict()
    except Exception as error:  # the file is code: it may raise anything
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"cannot read the sweep {path}: {first}") from error
    content = {k: v for k, v in content.items() if not k.startswith("_")}  # helpers of the file
    try:
        file = read_record(_SweepFile, content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    check_seeds(file.seeds, f"{path}")
    sweep = Sweep(
        name=Path(path).stem,
        title=file.title or Path(path).stem,
        source=file.source,
        config=file.pretrain.config,
        options=file.pretrain.options,
        points=file.points,
        columns=file.columns,
        seeds=file.seeds,
        notes=file.notes,
    )
    wrong = next((f"{path}: {why}" for unsuitable, why in _checks(sweep) if unsuitable), None)
    if wrong:
        raise ValueError(wrong)
    return sweep


def _checks(sweep: Sweep) -> Iterator[tuple[bool, str]]:
    """Yield whether entries do not fit to each other, with the message."""
    for what, entries in (("points", sweep.points), ("columns", sweep.columns)):
        listed = [entry.name for entry in entries]
        double = next((name for name in listed if listed.count(name) > 1), None)
        yield not listed, f"{what} must have at least one entry"
        yield "" in listed, f"an entry of {what} has no name"
        yield double is not None, f"two entries of {what} have the name {double!r}"
    names = {column.name for column in sweep.columns}
    for point in sweep.points:
        this = f"point {point.name!r}"
        no_config = not (point.config or sweep.config)
        yield no_config, f"{this} has no config, and neither has pretrain"
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


def check_seeds(seeds: Sequence[int], where: str) -> None:
    """Raise ValueError if there are no seeds, or one is given twice."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"{where}: seeds must be one or more different numbers, got {list(seeds)}")
