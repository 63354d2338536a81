"""Pretraining on a folder or a table of videos with settings that are chosen for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope

from sce_video.datasets.labelled import NO_COLUMNS, GroupColumns, LabelledVideos
from sce_video.datasets.sources import dataset_settings
from sce_video.datasets.video_dataset import SampleRequest, VideoDataset
from sce_video.engine.config.changes import available_settings
from sce_video.engine.config.check import known_keys, options_of_settings, top_level_keys
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import (
    plain,
)
from sce_video.engine.recipes import LARGE_RECIPE, methods
from sce_video.engine.restarts import is_restart
from sce_video.engine.run_json import (
    PLANNED,
    Choice,
    Plan,
    RunDescription,
    describe_environment,
    write_run_json,
)
from sce_video.engine.runner import VideoRunner
from sce_video.engine.work_dir import CONFIG, claimed_folder, remove_training
from sce_video.models.algorithms import SelfSupervisedModel
from sce_video.registry import DATASETS, MODELS
from sce_video.runs.choices import (
    FEW_STEPS,
    WARMUP_SHARE,
    Machine,
    choose,
    choose_epochs,
    default_method,
    least_steps,
    notes,
    samples_of_epoch,
    this_machine,
    warmup_and_momentum,
    without_lag,
)
from sce_video.runs.continued import (
    CONTINUED_WARMUP_SHARE,
    ROWS,
    Start,
    continue_from,
    own_choices,
    remarks,
    start_from,
)
from sce_video.runs.folder_facts import FolderFacts, examine_folder
from sce_video.runs.keep_best import (
    EVALUATIONS,
    KEEP,
    HeldOut,
    hold_out,
    keep_best,
)
from sce_video.runs.launch import cores_for_workers
from sce_video.runs.page import train_with_page
from sce_video.runs.planned_config import resumable_config
from sce_video.runs.teacher import PlannedTeacher, plan_teacher
from sce_video.utils.files import write_text

_STEPS = 3
_DECODED = 12
_MAX_SECONDS = 20.0


@dataclass(frozen=True)
class Timing:
    """Measured times of a pretraining."""

    step: float  # seconds of forward and backward of a batch
    sample: float  # seconds in which one core makes the views of a video
    batch: int  # samples of a step
    samples: int  # of an epoch
    on_gpu: bool  # the loader works beside the device; on a CPU they share the cores

    def epoch(self, cores: int, workers: int) -> float:
        """Seconds of an epoch, without evaluation and checkpoints.

        On a GPU the slower one of step and loading counts, since they overlap; on a CPU their sum,
        with the loading shared by all cores.
        """
        loading = self.batch * self.sample
        if self.on_gpu:
            return self.samples // self.batch * max(self.step, loading / max(1, workers))
        return self.samples // self.batch * (self.step + loading / cores)

    def loading(self, workers: int) -> float:
        """Time in which the workers make a batch, in that of a step."""
        return self.batch * self.sample / max(1, workers) / self.step

    def features(self, networks: float) -> float:
        """Seconds in which one core reads a video and several networks embed its two clips."""
        return self.sample + networks * self.step / self.batch


def measure(cfg: Config, teacher: PlannedTeacher | None = None) -> Timing:
    """Time a few steps, and a few videos, of the data set, model and loader of a training.

    Medians: of three steps (forward and backward) after a first one, on random views of the real
    shapes, and of up to 12 videos, or as many as are read in 20 s; the mean of 12 where a data set
    reads a batch ahead. A distillation is given its ``teacher``.
    """
    loader, on_gpu = cfg.train_dataloader, torch.cuda.is_available()
    dataset, batch = DATASETS.build(loader.dataset), loader.batch_size
    sample, seconds = _decode(dataset)
    device = torch.device("cuda" if on_gpu else "cpu")
    dtype = getattr(torch, cfg.optim_wrapper.get("dtype", "float32"))
    settings = {"data_preprocessor": cfg.get("data_preprocessor"), **cfg.model.to_dict()}
    views = [
        torch.randint(0, 256, (batch, *view.shape), dtype=torch.uint8) for view in sample["inputs"]
    ]
    taken = []
    first = torch.zeros(batch, dtype=torch.int64)  # labels, videos and clips, of which any will do
    seeds = torch.arange(batch)
    # Inside mmaction2's recogniser names are looked up in the default scope.
    scope = DefaultScope.overwrite_default_scope("sce_video")
    with cores_for_workers(loader.num_workers), scope:
        model = MODELS.build(settings).to(device).train()
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
    samples = samples_of_epoch(len(dataset), loader.sampler.get("min_samples") or 0)
    if not loader.get("drop_last"):
        samples = math.ceil(samples / batch) * batch
    # The first step allocates memory and tunes cuDNN.
    return Timing(median(taken[1:]), seconds, batch, samples, on_gpu)


def _decode(dataset: VideoDataset) -> tuple[dict, float]:
    """A sample, and the median seconds of one in this process.

    Where a batch is read ahead, its seconds are shared, since latency is paid once for all of it.
    """
    requests = [SampleRequest(index, index) for index in range(min(_DECODED, len(dataset)))]
    if getattr(dataset, "reads_ahead", False):
        dataset[requests[0]]  # opens the table
        begin = time.monotonic()
        samples = dataset.__getitems__(requests)
        return samples[-1], (time.monotonic() - begin) / len(samples)
    sample, taken = {}, []
    for request in requests:
        begin = time.monotonic()
        sample = dataset[request]
        taken.append(time.monotonic() - begin)
        if sum(taken) > _MAX_SECONDS:
            break
    return sample, median(taken)


#: Side of views from which on SCE trains with the paper's views.
_LARGE_SIZE = 224
#: Of the command and the function, beside the settings of the recipe.
PRECISIONS = ("float32", "bfloat16", "float16")
# Videos at the end: most and least that are compared, the share of a budget for them, those that
# the page embeds and draws, and the seconds of the page besides.
_MAX_COMPARED, _MIN_COMPARED, _COMPARED_SHARE = 256, 32, 0.05
_PAGE_VIDEOS, _PAGE_SECONDS = 64, 10.0
#: Steps without a budget of a training that continues, and rows of a plan that are no settings.
_STEPS_TO_CONTINUE = 2000
_SOURCE = "starts from"
_ROWS = ("recipe", _SOURCE, "precision", "keep", "predictor")


@dataclass(frozen=True)
class PlannedTraining:
    """A pretraining or finetuning that has not begun.

    Attributes:
        command: ``pretrain`` or ``finetune``.
        request: What the user asked for, by the name of the argument, as JSON data.
        config: Config of the training.
        facts: Facts of the videos.
        machine: That trains.
        choices: All chosen or given settings, in the order to show them.
        timing: Measured times.
        other_seconds: Time before and after the training, of a command with a budget.
        remarks: Sentences about what is unusual.
        evaluation_seconds: Time in which the best checkpoint is looked for.
        lists: Named videos whose lists are written with the config.
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
    lists: tuple[tuple[str, LabelledVideos], ...] = ()

    @property
    def epoch_seconds(self) -> float:
        """Estimated time of an epoch."""
        workers = self.config.train_dataloader.num_workers
        return self.timing.epoch(self.machine.cores, workers)

    @property
    def hours(self) -> float:
        """Estimated time of the whole training; with a budget, of the whole command."""
        seconds = self.config.train_cfg.max_epochs * self.epoch_seconds
        return (seconds + self.evaluation_seconds + self.other_seconds) / 3600

    @property
    def plan(self) -> Plan:
        """What was found and chosen, for the user."""
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

    def lines(self) -> list[str]:
        """Return the plan as text for a terminal."""
        return self.plan.lines()

    def description(self) -> RunDescription:
        """Return the content of ``run.json`` before the training."""
        return RunDescription(
            command=self.command,
            request=self.request,
            plan=self.plan,
            config=plain(self.config),
            environment=describe_environment(),
        )


def planned_pretraining(
    videos: str | Path,
    out: str | Path,
    *,
    method: str | None = None,
    hours: float | None = None,
    precision: str | None = None,
    settings: Mapping[str, Any] | None = None,
    start: Start | None = None,
    begun: float | None = None,
    keep: str | None = None,
    labels: str | None = None,
    columns: GroupColumns = NO_COLUMNS,
) -> PlannedTraining:
    """Examine videos and machine, choose what is not given, and measure a few steps.

    Arguments and errors as of :func:`pretrain`, but ``settings`` by the names that the recipe
    declares, the network to ``start`` from, and ``begun``: the value of ``time.monotonic()`` when
    the command began, which counts for ``hours``; None for now.
    """
    began, worked, given = time.monotonic(), time.process_time(), dict(settings or {})
    words = {"method": method, "precision": precision, "keep": keep, "labels": labels}
    request = _request(videos, start, {**words, "hours": hours, **asdict(columns), **given})
    keep = keep or ("last" if start is None else "best")
    _check_words(method or "sce", precision, keep)
    check_length(hours, given)
    machine, all_facts = this_machine(), examine_folder(str(videos)).check_readable()
    method, why = (method, "") if method else default_method(machine, given)
    seed = int(given.get("seed", 0))
    held, facts = _held_out(all_facts, keep, labels, columns, seed)
    teacher = plan_teacher(facts, given) if method == "distill" else None
    wanted = {**given, **({} if teacher is None else teacher.given), "precision": precision}
    recipe, chosen = _choices(facts, machine, (method, why), wanted, start)
    chosen |= {} if teacher is None else teacher.choices()
    base = load_config(recipe)
    names = available_settings(base, known_keys)
    options_of_settings(base, given)  # unknown names end here
    # Measured with the chosen network and batch, and any length: epochs follow from the speed.
    data = _data(facts, teacher)
    first = _config(base, chosen, data, out, start)
    timing = measure(first, teacher)
    # Before the first step, so that a teacher that these videos do not suit ends it here.
    taught = 0.0 if teacher is None else teacher.seconds(first)
    now = time.monotonic()
    # Wall-clock over processor time: how much other programs slow this one down.
    slowness = (now - began) / max(time.process_time() - worked, 1e-3)
    compared, after = _comparison(timing, facts.num_videos, hours, slowness)
    other = 0.0 if hours is None else now - (began if begun is None else begun) + taught + after
    samples = samples_of_epoch(facts.num_videos, chosen["epoch_samples"].value)
    steps = max(1, samples // chosen["batch"].value)
    least = _STEPS_TO_CONTINUE if start else least_steps(machine, chosen["width"].value)
    seconds = timing.epoch(machine.cores, first.train_dataloader.num_workers)
    evaluation = 0.0 if held is None else held.evaluated * timing.features(networks=1)
    spent = other + (1 + EVALUATIONS) * evaluation
    epochs = chosen.get("epochs") or choose_epochs(steps, least, hours, seconds, spent)
    own = {*names, "predictor"} - (chosen.keys() - {"queue"}) - given.keys()
    length = _of_length(recipe, chosen, epochs, steps, start)
    chosen |= {c.setting: c for c in length if c.setting in own}
    config = _config(base, chosen, data, out, start)
    config.run_page.compared = compared
    if held is not None:
        chosen["keep"] = keep_best(config, all_facts, seed, held)
    if hours is not None:
        add_budget(config, hours, other - after, after)
    found = [] if start is None else remarks(start, chosen["size"].value, facts)
    found += _notes(all_facts, chosen["size"].value, config, timing)
    shown = {*names, *ROWS, *_ROWS}
    return PlannedTraining(
        command="pretrain",
        request=request,
        config=config,
        facts=all_facts,
        machine=machine,
        choices=tuple(choice for choice in chosen.values() if choice.setting in shown),
        timing=timing,
        other_seconds=other,
        remarks=tuple(found),
        evaluation_seconds=(1 + min(EVALUATIONS, epochs.value * steps)) * evaluation,
    )


def _request(videos: str | Path, start: Start | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a user asked of a pretraining, by the name of the option."""
    of_start = {}
    if start is not None:
        of_start = {"from": start.source.name, "freeze": start.freeze, "lora": start.lora}
    return given_values({"videos": videos, **of_start, **values})


def given_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a user gave, as JSON data."""
    return {name: plain(value) for name, value in values.items() if value is not None}


def _held_out(
    facts: FolderFacts, keep: str, labels: str | None, columns: GroupColumns, seed: int
) -> tuple[HeldOut | None, FolderFacts]:
    """What is held out to find the best checkpoint, if it is kept, and what is trained on."""
    if keep == "best":
        held = hold_out(facts, labels, columns, seed)
        return held, replace(facts, num_videos=facts.num_videos - held.count)
    if labels is not None or columns != NO_COLUMNS:
        raise ValueError("labels choose the best checkpoint. Add --keep best, or leave them out")
    return None, facts


def _choices(
    facts: FolderFacts,
    machine: Machine,
    chosen_method: tuple[str, str],
    given: Mapping[str, Any],
    start: Start | None,
) -> tuple[str, dict[str, Choice]]:
    """The recipe of a method and why it is this one; every setting but the length, as shown."""
    method, why = chosen_method
    recipe, own = methods()[method], {}
    if start is not None:
        rate = load_config(recipe).optim_wrapper.optimizer.lr
        own = own_choices(start, facts, machine, given, rate)
    chosen = choose(facts, machine, given, own)
    if method == "sce" and chosen["size"].value >= _LARGE_SIZE:
        recipe = LARGE_RECIPE  # of the paper's size, with the paper's views
    rows = {"recipe": Choice("recipe", recipe, f"of --method {method}{why}")}
    if start is not None:
        del chosen["width"]  # that of the network
        rows[_SOURCE] = Choice(_SOURCE, start.source.name, start.describe())
    return recipe, rows | chosen


def _of_length(
    recipe: str, chosen: Mapping[str, Choice], epochs: Choice, steps: int, start: Start | None
) -> list[Choice]:
    """Epochs, and what suits so many: warm-up, momentum, for few steps of SCE queue, predictor."""
    total = epochs.value * steps
    rise = WARMUP_SHARE if start is None else CONTINUED_WARMUP_SHARE
    length = [epochs, *warmup_and_momentum(epochs.value, total, rise)]
    if recipe == methods()["sce"] and start is None and total <= FEW_STEPS:
        length += without_lag(total, chosen["batch"].value, chosen["queue"])
    return length


def _check_words(method: str, precision: str | None, keep: str) -> None:
    """Raise ValueError for a word that is none of those there are."""
    for what, value, known in (
        ("precision", precision or PRECISIONS[0], PRECISIONS),
        ("method", method, tuple(methods())),
        ("keep", keep, KEEP),
    ):
        if value not in known:
            raise ValueError(f"{what} must be one of {', '.join(known)}, got {value!r}")


def check_length(hours: float | None, given: Container[str]) -> None:
    """Raise ValueError if a training is given its duration twice."""
    if hours is not None and "epochs" in given:
        raise ValueError("give hours or epochs, not both")


def _data(facts: FolderFacts, teacher: PlannedTeacher | None) -> dict[str, Any]:
    """Return changes of the recipe by key: the videos, and the size of a teacher's features."""
    of_videos = dataset_settings(facts.folder).items()
    data: dict[str, Any] = {f"train_dataloader.dataset.{name}": v for name, v in of_videos}
    if teacher is not None:
        data["model.teacher_channels"] = teacher.channels
    return data


def _notes(facts: FolderFacts, size: int, config: Config, timing: Timing) -> Iterator[str]:
    """Return sentences about what is unusual in the videos and their loading."""
    loader = config.train_dataloader
    differences = max(step.get("diff_prob", 0.0) for step in loader.dataset.pipeline)
    return notes(facts, size, timing.loading(loader.num_workers), differences)


def _comparison(
    timing: Timing, num_videos: int, hours: float | None, slowness: float
) -> tuple[int, float]:
    """Videos by which the network is compared with random weights, and seconds for all that ends.

    Of a budget the comparison takes a twentieth, but at least 32 videos are needed. ``slowness`` is
    the planning's time, in processor time: other programs slow the page down as much.
    """
    each, most = timing.features(networks=2), _MAX_COMPARED
    if hours is not None:
        most = max(_MIN_COMPARED, min(most, int(_COMPARED_SHARE * 3600 * hours / each)))
    compared, drawn = min(most, num_videos), min(_PAGE_VIDEOS, num_videos)
    page = _PAGE_SECONDS * min(20.0, max(1.0, slowness))
    return compared, page + compared * each + drawn * timing.features(networks=1)


def add_budget(config: Config, hours: float, before: float, after: float) -> None:
    """Let a training end within the hours, with the seconds of its command around it."""
    besides = {"spent": round(before, 2), "reserved": round(after, 2)}
    config.default_hooks.budget = {"type": "BudgetHook", "hours": hours, **besides}


def _config(
    base: Config,
    chosen: Mapping[str, Choice],
    data: Mapping[str, Any],
    out: str | Path,
    start: Start | None,
) -> Config:
    """The recipe with the chosen settings, on the videos, and the network to start from."""
    config = filled_recipe(base, chosen, data, out)
    config.fit_queue = False  # the queue has been fitted
    for step in config.train_dataloader.dataset.pipeline:
        if step.type == "DecodeClips":  # the paper's recipes take every difference as it is
            step.skip_repeats = True
    if "predictor" in chosen:
        config.model.predictor = chosen["predictor"].value
    if start is not None:
        continue_from(config, start)
    return config


def filled_recipe(
    base: Config, chosen: Mapping[str, Choice], data: Mapping[str, Any], out: str | Path
) -> Config:
    """The recipe with the chosen settings that it declares, and changes ``data`` by key."""
    names = available_settings(base, known_keys)
    values = {name: choice.value for name, choice in chosen.items() if name in names}
    options = options_of_settings(base, values) | dict(data)
    # torch refuses persistent workers without workers.
    if values.get("workers") == 0:
        options["train_dataloader.persistent_workers"] = False
    if chosen["precision"].value != "float32":
        options["optim_wrapper.type"] = "MixedPrecisionOptimWrapper"
        options["optim_wrapper.dtype"] = chosen["precision"].value
    config = load_config(base.filename, options)
    for variable in set(config) - top_level_keys():  # of the recipe's files, without effect here
        config.pop(variable)
    config.work_dir, config.planned = str(Path(out).resolve()), True
    return config


def write_config(planned: PlannedTraining) -> Path:
    """Write the planned config and ``run.json`` into the folder of the run.

    ``python tools/train.py RUN/config.py`` is the same training.
    """
    folder = Path(planned.config.work_dir)
    for name, videos in planned.lists:
        videos.dataset(folder, name)
    write_run(folder, planned.config, planned.description())
    return folder / CONFIG


def write_run(folder: Path, config: Config, run: RunDescription) -> None:
    """Write a config that has not been trained, and its description, into the folder of a run."""
    write_text(folder / CONFIG, config.pretty_text)
    write_run_json(folder, replace(run, config=plain(config), state=PLANNED))


@contextmanager
def claimed_plan(
    out: str | Path, plan: Callable[[], PlannedTraining], overwrite: bool = False
) -> Iterator[Path]:
    """Plan a training in a folder that nobody else uses; yields the path of its config.

    The folder is locked first and stays so until the training, which the block starts, has ended.
    An earlier training is removed before anything new is written. A restart by a launcher is not
    planned again: since speeds are measured, its config could differ.

    Args:
        out: Folder of the run.
        plan: Makes the plan.
        overwrite: Remove an earlier training.

    Raises:
        ValueError: If ``out`` holds an earlier training, or one that is running.
        OSError: If it cannot be written.
    """
    config = Path(out, CONFIG)
    if config.is_file() and is_restart(out):
        yield config
        return
    with claimed_folder(out, overwrite):
        planned = plan()
        if overwrite and (removed := remove_training(out)):
            print(removed, flush=True)
        print(f"written to {write_config(planned)}", flush=True)
        yield config


def count_seconds(cfg: Config, begun: float) -> Config:
    """The config with what the command, which began at ``time.monotonic()``, took of a budget."""
    budget = cfg.default_hooks.get("budget")
    if budget is not None:
        budget.spent = round(time.monotonic() - begun, 2)
    return cfg


def pretrain(
    videos: str | Path,
    out: str | Path,
    *,
    method: str | None = None,
    start: str | Path | None = None,
    freeze: int | None = None,
    lora: int | None = None,
    hours: float | None = None,
    precision: str | None = None,
    overwrite: bool = False,
    keep: str | None = None,
    labels: str | None = None,
    columns: GroupColumns = NO_COLUMNS,
    **settings: Any,
) -> VideoRunner:
    """Pretrain a network on a folder or a table of videos, labels not needed.

    Every setting that is not given is chosen for the videos and the machine (:mod:`.choices`), and
    written with its reason to ``out/config.py``.

    Args:
        videos: Folder, sub-folders are searched too; or a table, ``videos.lance``.
        out: Folder of the run, for config, logs, checkpoints and the page ``run.html``.
        method: One of :func:`methods`; None for :func:`~.choices.default_method`.
        start: Network to start from, see :func:`~sce_video.runs.start_weights.find_source`: its
            clip and normalisation are kept, and the other settings suit it; None for random
            weights.
        freeze: With ``start``: quarters of its blocks that stay as they are, 0 for the embeddings.
        lora: With ``start``, a transformer: rank of adapters that are trained in place of its
            weights.
        hours: Budget of the call, kept by measuring again while training; without it (and
            ``epochs``) as long as a first result takes.
        precision: One of ``PRECISIONS``.
        overwrite: Remove an earlier training from ``out``.
        keep: "best" for the checkpoint that is best on videos held out of the training, which is
            never below the start; the training ends when it has been below it for a fifth. None is
            "best" with ``start``, else "last".
        labels: With "best": "folders" if the sub-folders are classes, or a CSV file of path and
            label; the best checkpoint is then the one that recognises held-out videos best. None
            for a measure without labels.
        columns: Columns of groups, or of folds, in this CSV file.
        settings: Those that the recipe declares: ``frames=16, size=112, width=32, lr=1e-3,
            epochs=50, ...``; others are refused.

    Raises:
        ValueError: as :func:`planned_pretraining`, or ``out`` holds an earlier training.
    """
    begun = time.monotonic()

    def plan() -> PlannedTraining:
        return planned_pretraining(
            videos,
            out,
            method=method,
            hours=hours,
            precision=precision,
            settings=settings,
            start=start_from(start, freeze, lora),
            keep=keep,
            labels=labels,
            columns=columns,
        )

    with claimed_plan(out, plan, overwrite) as config:
        cfg = resumable_config(config, videos=videos)
        return train_with_page(count_seconds(cfg, begun), overwrite)
