"""The steps of sweeps: one for each different pretraining, one for each evaluation of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmengine.config import Config

from sce_video.apis.sweep import Column, Point, Sweep
from sce_video.engine.config import load_config
from sce_video.engine.config_settings import parse_value


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
                    names = sweep.name, point.name, column.name
                    cells.append(Cell(*names, seed, column.metric, step))
    return cells


def chains(cells: Sequence[Cell]) -> list[list[Step]]:
    """The steps by pretraining, each after what it needs: what can run side by side."""
    found: dict[str, list[Step]] = {}
    for cell in cells:
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
    text = json.dumps([cfg._cfg_dict.to_dict(), [keys, *others]], sort_keys=True, default=_text_of)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _text_of(value: Any) -> str:
    """A class or function in a config as text, without its address in this process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


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
