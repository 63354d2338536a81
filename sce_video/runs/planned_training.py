"""Planned training runs, which have not begun: their config, measured times and folders."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope

from sce_video.datasets.labelled import LabelledVideos
from sce_video.datasets.pipeline import PackedSample
from sce_video.datasets.video_dataset import SampleRequest, VideoDataset
from sce_video.engine.config.changes import available_settings
from sce_video.engine.config.check import known_keys, top_level_keys
from sce_video.engine.config.load import load_config, options_of_settings
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
from sce_video.models.algorithms import SelfSupervisedModel
from sce_video.models.memory_format import move_to_device
from sce_video.registry import DATASETS, MODELS
from sce_video.runs.choices import Machine, samples_of_epoch
from sce_video.runs.folder_facts import FolderFacts
from sce_video.runs.plan_distillation import PlannedTeacher
from sce_video.utils.command import printable
from sce_video.utils.cores import cores_for_workers
from sce_video.utils.files import write_text
from sce_video.utils.run_files import CONFIG
from sce_video.utils.tensors import cudnn_benchmark

#: Number of steps that are timed, after one untimed step
_STEPS = 3
#: Largest number of videos that are decoded to time the loading
_DECODED = 12
#: Seconds after which no further video is decoded
_MAX_SECONDS = 20.0


@dataclass(frozen=True)
class Timing:
    """Measured times of a training run.

    Attributes:
        step: Seconds for the forward and backward pass of a batch.
        sample: Seconds for one core to make a video's views.
        batch: Number of samples per step.
        samples: Number of samples per epoch.
        on_gpu: Whether steps are computed on a GPU while the loader works. On a CPU, both share the
            cores.
    """

    step: float
    sample: float
    batch: int
    samples: int
    on_gpu: bool

    def epoch(self, cores: int, workers: int) -> float:
        """Return the seconds per epoch, without evaluations and checkpoints.

        On a GPU, step and loading overlap, so the slower one determines the time. On a CPU, their
        times add up, and all cores share the loading.
        """
        loading = self.batch * self.sample
        if self.on_gpu:
            return self.samples // self.batch * max(self.step, loading / max(1, workers))
        return self.samples // self.batch * (self.step + loading / cores)

    def loading(self, workers: int) -> float:
        """Return the workers' time for a batch, as a multiple of a step's time."""
        return self.batch * self.sample / max(1, workers) / self.step

    def features(self, networks: float) -> float:
        """Return the seconds to read a video and embed two of its clips with several networks."""
        return self.sample + networks * self.step / self.batch


def measure(
    cfg: Config, teacher: PlannedTeacher | None = None, num_videos: int | None = None
) -> Timing:
    """Time a few steps of a training run, and the loading of a few of its videos.

    Args:
        cfg: Config of the run.
        teacher: Teacher of a distillation; None for another method.
        num_videos: Number of training videos, if it differs from the dataset's. The plan divides
            the dataset only after its length is known.
    """
    loader = cfg.train_dataloader
    dataset, batch = DATASETS.build(loader.dataset), loader.batch_size
    sample, seconds = _decode(dataset)
    step = _time_step(cfg, sample, teacher)
    count = len(dataset) if num_videos is None else num_videos
    samples = samples_of_epoch(count, loader.sampler.get("min_samples") or 0)
    if not loader.get("drop_last"):  # the smaller last batch is also a step
        samples = math.ceil(samples / batch) * batch
    return Timing(step, seconds, batch, samples, on_gpu=torch.cuda.is_available())


def _time_step(cfg: Config, sample: PackedSample, teacher: PlannedTeacher | None) -> float:
    """Return the median seconds of a forward and backward pass on random views.

    The views have the shapes of the views in ``sample``.
    """
    batch, on_gpu = cfg.train_dataloader.batch_size, torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    dtype = getattr(torch, cfg.optim_wrapper.get("dtype", "float32"))
    settings = {"data_preprocessor": cfg.get("data_preprocessor"), **cfg.model.to_dict()}
    views = [
        torch.randint(0, 256, (batch, *view.shape), dtype=torch.uint8)
        for view in sample["inputs"] or []
    ]
    first = torch.zeros(batch, dtype=torch.int64)  # any labels, videos and clips will do
    seeds, taken = torch.arange(batch), []
    # Set the default scope, because mmaction2's recogniser looks up registered names in it.
    scope = DefaultScope.overwrite_default_scope("sce_video")
    tuned = cudnn_benchmark(bool(cfg.get("env_cfg", {}).get("cudnn_benchmark")))
    with cores_for_workers(cfg.train_dataloader.num_workers), scope, tuned:
        model = move_to_device(MODELS.build(settings), device).train()
        if teacher is not None:
            teacher.stand_in(model, cfg)
        for _ in range(1 + _STEPS):
            begin = time.monotonic()
            mixed = torch.autocast(device.type, dtype) if dtype != torch.float32 else nullcontext()
            with mixed:
                data = {"inputs": views, "label": first, "index": first, "clip": first}
                data = model.data_preprocessor({**data, "seed": seeds}, training=True)
                loss, _ = model.parse_losses(model(**data, mode="loss"))
            loss.backward()
            if on_gpu:
                torch.cuda.synchronize()
            taken.append(time.monotonic() - begin)
            if isinstance(model, SelfSupervisedModel):
                model.discard_step()
            else:
                model.zero_grad()
    return median(taken[1:])  # the first step allocates memory, compiles, and tunes cuDNN


def _decode(dataset: VideoDataset) -> tuple[PackedSample, float]:
    """Return a sample, and the median seconds that this process needs to make one.

    If the dataset reads a batch ahead, the seconds of the batch are divided by its size, because
    the latency occurs only once.
    """
    requests = [SampleRequest(index, index) for index in range(min(_DECODED, len(dataset)))]
    if getattr(dataset, "reads_ahead", False):
        dataset[requests[0]]  # open the table first, so that this is not timed
        begin = time.monotonic()
        samples = dataset.__getitems__(requests)
        return samples[-1], (time.monotonic() - begin) / len(samples)
    sample: PackedSample = {}
    taken = []
    for request in requests:
        begin = time.monotonic()
        sample = dataset[request]
        taken.append(time.monotonic() - begin)
        if sum(taken) > _MAX_SECONDS:
            break
    return sample, median(taken)


@dataclass(frozen=True)
class RunFolder:
    """Folder of a run, with the settings in which the runs of a plan differ.

    Attributes:
        path: Path of the folder.
        seed: Seed of the run; None for the plan's seed.
        mirror: Folder in an object store to which checkpoints and logs are copied; None for no
            copy.
    """

    path: Path
    seed: int | None = None
    mirror: str | None = None


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
        other_seconds: Seconds before and after training if the command has a budget, otherwise 0.
        remarks: Sentences about anything unusual.
        evaluation_seconds: Seconds for the evaluations that find the best checkpoint.
        lists: Labelled videos whose lists are written next to the config, by file name.
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
    """Return a recipe with the chosen settings and other changes.

    Args:
        base: Recipe to fill in.
        chosen: Chosen settings by name. Settings that the recipe does not declare are skipped.
        data: Other changes by key.
        out: Folder of the run.
    """
    names = available_settings(base, known_keys)
    values = {name: choice.value for name, choice in chosen.items() if name in names}
    options = options_of_settings(base, values) | dict(data)
    # torch refuses persistent workers if there are no workers.
    if "workers" in values and not values["workers"]:
        options["train_dataloader.persistent_workers"] = False
    if chosen["precision"].value != "float32":
        options["optim_wrapper.type"] = "MixedPrecisionOptimWrapper"
        options["optim_wrapper.dtype"] = chosen["precision"].value
    config = load_config(base.filename, options)
    for variable in set(config) - top_level_keys():  # remove helper variables of the recipe's files
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

    Such a run is not planned again, because its config depends on measured speeds and could differ.
    """
    return Path(folder, CONFIG).is_file() and is_restart(folder)


def write_plan(
    planned: PlannedTraining, folders: Sequence[RunFolder], overwrite: bool = False
) -> None:
    """Print a plan, and write its config, ``run.json`` and lists into the folders of its runs.

    The caller must have locked the folders (:func:`~sce_video.engine.work_dir.claimed_folder`).

    Args:
        planned: Planned run to write.
        folders: Folders of the runs, which differ only in their seeds.
        overwrite: Whether to remove all earlier runs before anything new is written.
    """
    print("\n".join(map(printable, planned.plan.lines())), flush=True)
    if len(folders) > 1:
        hours = len(folders) * planned.hours
        print(f"{len(folders)} runs, about {hours:.1f} hours in all", flush=True)
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
