"""Training run that is planned but has not begun: its config, description and folders."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmengine.config import Config

from sce_video.datasets.labelled import LabelledVideos
from sce_video.engine.config.changes import available_settings
from sce_video.engine.config.check import known_keys, options_of_settings, top_level_keys
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import plain
from sce_video.engine.restarts import is_restart
from sce_video.engine.run_json import (
    PLANNED,
    Choice,
    Plan,
    RunDescription,
    describe_environment,
    write_run_json,
)
from sce_video.engine.work_dir import remove_training
from sce_video.runs.choices import Machine
from sce_video.runs.folder_facts import FolderFacts
from sce_video.runs.timing import Timing
from sce_video.utils.command import printable
from sce_video.utils.files import write_text
from sce_video.utils.run_files import CONFIG


@dataclass(frozen=True)
class RunFolder:
    """Folder of a run, and its seed; None for the plan's seed."""

    path: Path
    seed: int | None = None


@dataclass(frozen=True)
class PlannedTraining:
    """Pretraining or finetuning run that has not begun.

    Attributes:
        command: ``pretrain`` or ``finetune``.
        request: User's request by name of the argument, as JSON data.
        config: Config of the run.
        facts: Facts about the videos.
        machine: Machine on which the run trains.
        choices: All chosen or given settings, in display order.
        timing: Measured times.
        other_seconds: Seconds before and after training, if the command has a budget.
        remarks: Sentences about anything unusual.
        evaluation_seconds: Seconds for the evaluations that find the best checkpoint.
        lists: Labelled videos whose lists are written with the config, by name of the file.
    """

    command: str
    request: dict[str, Any]
    config: Config
    facts: FolderFacts
    machine: Machine
    choices: tuple[Choice, ...]
    timing: Timing
    other_seconds: float = 0.0
    remarks: tuple[str, ...] = ()
    evaluation_seconds: float = 0.0
    lists: Mapping[str, LabelledVideos] | None = None

    @property
    def epoch_seconds(self) -> float:
        """Estimated seconds per epoch."""
        workers = self.config.train_dataloader.num_workers
        return self.timing.epoch(self.machine.cores, workers)

    @property
    def hours(self) -> float:
        """Estimated hours of the whole training run or, with a budget, of the whole command."""
        seconds = self.config.train_cfg.max_epochs * self.epoch_seconds
        return (seconds + self.evaluation_seconds + self.other_seconds) / 3600

    @property
    def plan(self) -> Plan:
        """Findings and choices for the user."""
        minutes = max(1, round(60 * self.hours))
        in_minutes = f"{minutes} minute{'s' * (minutes > 1)}"
        duration = f"{self.hours:.1f} hours" if self.hours >= 1 else in_minutes
        each, evaluations = f"{self.epoch_seconds:.0f} s an epoch", self.evaluation_seconds
        each += f", {evaluations:.0f} s for all evaluations" if evaluations else ""
        return Plan(
            recipe=next(c.value for c in self.choices if c.setting == "recipe"),
            facts=(self.facts.describe(), self.machine.describe()),
            choices=self.choices,
            length=f"about {duration} of training ({each})",
            remarks=self.remarks,
        )

    def description(self) -> RunDescription:
        """Return the content of ``run.json`` before training."""
        return RunDescription(
            command=self.command,
            request=self.request,
            plan=self.plan,
            config=plain(self.config),
            environment=describe_environment(self.config),
        )


def filled_recipe(
    base: Config, chosen: Mapping[str, Choice], data: Mapping[str, Any], out: str
) -> Config:
    """Fill in a recipe.

    Args:
        base: Recipe to fill in.
        chosen: Chosen settings by name. Settings that the recipe does not declare are skipped.
        data: Other changes by key.
        out: Folder of the run.
    """
    names = available_settings(base, known_keys)
    values = {name: choice.value for name, choice in chosen.items() if name in names}
    options = options_of_settings(base, values) | dict(data)
    # torch does not allow persistent workers if there are no workers.
    if values.get("workers") == 0:
        options["train_dataloader.persistent_workers"] = False
    if chosen["precision"].value != "float32":
        options["optim_wrapper.type"] = "MixedPrecisionOptimWrapper"
        options["optim_wrapper.dtype"] = chosen["precision"].value
    config = load_config(base.filename, options)
    for variable in set(config) - top_level_keys():  # helper variables in the recipe's files
        config.pop(variable)
    config.work_dir, config.planned = str(Path(out).resolve()), True
    return config


def add_budget(config: Config, hours: float, before: float, after: float) -> None:
    """Limit a run to a number of hours, including the seconds before and after training."""
    config.default_hooks.budget = {
        "type": "BudgetHook",
        "hours": hours,
        "spent": round(before, 2),
        "reserved": round(after, 2),
    }


def count_seconds(config: Config, begun: float) -> Config:
    """Record in a config how much of the budget the command has spent since it began."""
    budget = config.default_hooks.get("budget")
    if budget is not None:
        budget.spent = round(time.monotonic() - begun, 2)
    return config


def is_restarted(folder: Path) -> bool:
    """Return whether a launcher has restarted a planned run.

    A restarted run is not planned again, because the config depends on measured speeds and could
    differ.
    """
    return Path(folder, CONFIG).is_file() and is_restart(folder)


def show_plan(planned: PlannedTraining) -> None:
    """Print the findings and choices."""
    print("\n".join(map(printable, planned.plan.lines())), flush=True)


def write_plan(
    planned: PlannedTraining, folders: Sequence[RunFolder], overwrite: bool = False
) -> None:
    """Write the config, ``run.json`` and lists of a planned run into the folders of its runs.

    The caller must have locked the folders (:func:`~sce_video.engine.work_dir.claimed_folder`).

    Args:
        planned: Planned run to write.
        folders: Folders of the runs, which differ only in their seeds.
        overwrite: Whether to remove all earlier runs before anything new is written.
    """
    for folder in folders if overwrite else ():
        if removed := remove_training(folder.path):
            print(removed, flush=True)
    for folder in folders:
        for name, videos in (planned.lists or {}).items():
            videos.dataset(folder.path, name)
        write_run(folder, planned.config, planned.description())
        print(f"written to {folder.path / CONFIG}", flush=True)


def write_run(folder: RunFolder, config: Config, run: RunDescription) -> None:
    """Write a config and its description into a run's folder before training."""
    config = copy.deepcopy(config)
    config.work_dir = str(folder.path.resolve())
    if folder.seed is not None:
        config.merge_from_dict({"randomness.seed": folder.seed})
    write_text(folder.path / CONFIG, config.pretty_text)
    write_run_json(folder.path, replace(run, config=plain(config), state=PLANNED))
