"""The steps of sweeps: every pretraining and evaluation once, with the commands that run it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config

from sce_video.engine.config.changes import parse_value
from sce_video.engine.config.load import load_config
from sce_video.runs.sweep_file import Sweep
from sce_video.utils.run_files import LAST_CHECKPOINT


@dataclass(frozen=True)
class Step:
    """One pretraining or evaluation, and the commands that run it."""

    folder: str  # below the output folder; its name ends with a hash of the settings
    commands: tuple[tuple[str, ...], ...]  # arguments of python for each command, in order
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
    """Return all numbers of the sweeps with the steps that measure them, each step once.

    The commands name the folder ``out``. The options, ``KEY=VALUE`` each, change all pretrainings
    or all evaluations; ``root`` has the configs that are not found from the current folder.

    Raises:
        FileNotFoundError: If a config is missing.
        ValueError: If a key is unknown, or a command line cannot express a value.
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
    """Return chains of steps that can run side by side, each step after what it needs.

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
        """Return the step that trains with a config."""
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
        """Return the step that evaluates a pretraining, or a given checkpoint with a seed."""
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
        """Return a config's file, what its training writes last, and a name with a hash.

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
    """Return the last checkpoint of a training; its folder if the last iteration is unknown."""
    return folder if result == LAST_CHECKPOINT else f"{folder}/{result}"


def option_texts(options: Mapping[str, Any]) -> list[str]:
    """Write ``{"model.lambda_": (1, 0, 0)}`` as ``["model.lambda_=(1,0,0)"]`` for a command line.

    Raises:
        ValueError: If a value would be read back as another one.
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
