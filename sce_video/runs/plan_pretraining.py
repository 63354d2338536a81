"""Plan of a pretraining run: facts, choices, measured times, and the resulting config."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mmengine.config import Config

from sce_video.datasets.labelled import GroupColumns
from sce_video.datasets.sources import dataset_settings, listed_extensions
from sce_video.engine.config.changes import available_settings
from sce_video.engine.config.check import known_keys
from sce_video.engine.config.load import load_config, options_of_settings
from sce_video.engine.recipes import LARGE_RECIPE, STUDENT_RECIPE, methods
from sce_video.engine.run_json import Choice
from sce_video.options.training import BEST, PretrainOptions, given_settings, request_of
from sce_video.runs.choices import (
    FEW_STEPS,
    WARMUP_SHARE,
    Machine,
    choose_epochs,
    choose_settings,
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
)
from sce_video.runs.folder_facts import FolderFacts, examine_folder
from sce_video.runs.keep_best import EVALUATIONS, HeldOut, hold_out, keep_best
from sce_video.runs.planned_training import (
    PlannedTraining,
    Timing,
    add_budget,
    filled_recipe,
    measure,
)
from sce_video.runs.roads import Road, choose_road
from sce_video.runs.start_weights import Source, find_source
from sce_video.runs.student import (
    MOST_EPOCHS,
    become_student,
    is_student,
    student_choices,
)
from sce_video.runs.teacher import PlannedTeacher, plan_teacher
from sce_video.utils.run_files import PUBLIC_TEACHER, has_public_teacher

#: Size of a clip from which SCE is trained with the paper's views
_LARGE_SIZE = 224
#: Largest number of videos compared with random weights at the end
_MAX_COMPARED = 256
#: Smallest number of these videos, because with fewer the comparison is inconclusive
_MIN_COMPARED = 32
#: Share of a budget for this comparison
_COMPARED_SHARE = 0.05
#: Number of videos that the run's page embeds and draws
_PAGE_VIDEOS = 64
#: Seconds that the page needs in addition
_PAGE_SECONDS = 10.0
#: Largest factor by which other programs are assumed to slow the page down
_MAX_SLOWNESS = 20.0
#: Number of steps without a budget, for a run that starts from a network
_STEPS_TO_CONTINUE = 2000
#: Row of the plan that states this network
_SOURCE = "starts from"
#: Rows of a plan that are not settings of a recipe
_ROWS = ("recipe", _SOURCE, "precision", "keep", "predictor", *ROWS)


@dataclass(frozen=True)
class _Subject:
    """Videos, machine, networks and settings for which a pretraining run is planned.

    Attributes:
        videos: Facts about all videos.
        machine: Machine on which the run trains.
        road: Method of pretraining, and the reason for it.
        given: Settings that the user gave, by name.
        hours: Time budget of the command in hours; None for the usual length.
        start: Network to continue from; None for random weights, or if a student is trained.
        student: Network from which the student of an image network starts.
        teacher: Teacher of a distillation.
        held: Videos held out to find the best checkpoint; None if the last one is kept.
    """

    videos: FolderFacts
    machine: Machine
    road: Road
    given: Mapping[str, Any]
    hours: float | None
    start: Start | None
    held: HeldOut | None
    student: Source | None = None
    teacher: PlannedTeacher | None = None

    @property
    def trained(self) -> FolderFacts:
        """Facts about the videos in the training set."""
        left = self.videos.num_videos - (0 if self.held is None else self.held.count)
        return replace(self.videos, num_videos=left)


def plan_pretraining(options: PretrainOptions, begun: float) -> PlannedTraining:
    """Examine videos and machine, choose the remaining settings, and time a few steps.

    Args:
        options: Options of the command.
        begun: ``time.monotonic()`` at the start of the command, from which a budget counts.

    Raises:
        FileNotFoundError: If the network or teacher does not exist.
        ValueError: If the videos, the network and the given settings do not match each other.
    """
    planning, worked = time.monotonic(), time.process_time()
    subject = _examine(options)
    recipe, chosen = _choices(subject, options.precision)
    base = load_config(recipe)
    options_of_settings(base, subject.given)  # reports unknown names early
    # Measure with the chosen network and batch, for any length. The speed determines the epochs.
    first = _config(base, chosen, subject, options.out)
    timing = measure(first, subject.teacher)
    # Compute the teacher before training, so that unsuitable videos are reported early.
    taught = 0.0 if subject.teacher is None else subject.teacher.seconds(first)
    now = time.monotonic()
    # The ratio of wall-clock to processor time shows how much other programs slow this one down.
    slowness = (now - planning) / max(time.process_time() - worked, 1e-3)
    costs = _costs(subject, timing, now - begun, taught, slowness)
    samples = samples_of_epoch(subject.trained.num_videos, chosen["epoch_samples"].value)
    steps = max(1, samples // chosen["batch"].value)
    if "epochs" not in chosen:
        workers = first.train_dataloader.num_workers
        seconds = timing.epoch(subject.machine.cores, workers)
        chosen["epochs"] = _choose_epochs(subject, chosen, steps, seconds, costs)
    epochs = chosen["epochs"].value
    chosen |= _choices_of_length(subject, chosen, base, epochs, epochs * steps)
    config = _config(base, chosen, subject, options.out)
    config.run_page.compared = costs.compared
    if subject.held is not None:
        chosen["keep"] = keep_best(config, subject.videos, subject.held, options.seed or 0)
    other = 0.0
    if options.hours is not None:
        other = costs.before + costs.after
        add_budget(config, options.hours, costs.before, costs.after)
    # A recipe without a queue, for example, ignores the choice of its length.
    shown = {*available_settings(base, known_keys), *_ROWS}
    return PlannedTraining(
        command="pretrain",
        request=request_of(options),
        config=config,
        facts=subject.videos,
        machine=subject.machine,
        choices=tuple(choice for choice in chosen.values() if choice.setting in shown),
        timing=timing,
        other_seconds=other,
        remarks=_remarks(subject, chosen["size"].value, config, timing),
        evaluation_seconds=(1 + min(EVALUATIONS, epochs * steps)) * costs.evaluation,
    )


def _examine(options: PretrainOptions) -> _Subject:
    """Examine the videos, the machine, the network or teacher, and what is held out."""
    machine = this_machine()
    extensions = listed_extensions(options.all_files)
    facts = examine_folder(str(options.videos), extensions=extensions).check_readable()
    given = given_settings(options)
    start = None
    if options.start is not None:
        start = Start(find_source(options.start), options.freeze, options.lora)
    road = choose_road(options, facts, machine, given)
    held = None
    if options.kept == BEST:
        columns = GroupColumns(options.group_column, options.fold_column)
        held = hold_out(facts, options.labels, columns, options.seed or 0)
    subject = _Subject(facts, machine, road, given, options.hours, start, held)
    if road.teacher is None:
        return subject
    student = _student(start, given)
    teacher = plan_teacher(road.teacher, subject.trained, given, student is not None)
    if student is not None and teacher.suits_student:
        subject = replace(subject, student=student, start=None)
    return replace(subject, teacher=teacher)


def _student(start: Start | None, given: Mapping[str, Any]) -> Source | None:
    """Return the initial network for the student of an image network; None if there is none.

    It is the network of ``--from`` if temporal layers can be added to it. Without ``--from``, it is
    the public network, if its weights are installed.
    """
    if start is not None:
        fits = is_student(start.source) and start.freeze is None and start.lora is None
        return start.source if fits else None
    if "width" in given or not has_public_teacher():
        return None
    return find_source(PUBLIC_TEACHER)


def _choices(subject: _Subject, precision: str | None) -> tuple[str, dict[str, Choice]]:
    """Choose the recipe, and every setting except the length, in display order."""
    method = subject.road.method
    recipe, start, teacher = methods()[method], subject.start, subject.teacher
    student = subject.student
    given = {**subject.given, "precision": precision}
    given |= {} if teacher is None else teacher.given
    facts, own = subject.trained, {}
    if start is not None:
        rate = load_config(recipe).optim_wrapper.optimizer.lr
        own = own_choices(start, facts, subject.machine, given, rate)
    if student is not None:
        recipe = STUDENT_RECIPE
        own = student_choices(student, facts, subject.hours, given)
    chosen = choose_settings(facts, subject.machine, given, own)
    if method == "sce" and chosen["size"].value >= _LARGE_SIZE:
        recipe = LARGE_RECIPE  # has the paper's clip size and views
    rows = {"recipe": Choice("recipe", recipe, f"of --method {method}{subject.road.why}")}
    if start is not None:
        del chosen["width"]  # the network has its own width
        rows[_SOURCE] = Choice(_SOURCE, start.source.name, start.describe())
    if student is not None:
        reason = (
            f"{student.parameters:,} parameters, and temporal layers that start as the identity"
        )
        rows[_SOURCE] = Choice(_SOURCE, student.name, reason)
    if teacher is not None:
        chosen |= teacher.choices(chosen["frames"].value)
    return recipe, rows | chosen


def _choices_of_length(
    subject: _Subject, chosen: Mapping[str, Choice], base: Config, epochs: int, steps: int
) -> dict[str, Choice]:
    """Choose settings that depend on the numbers of epochs and steps.

    These are warm-up, momentum, and queue and predictor of SCE, unless given or chosen already.
    """
    scratch = subject.start is None and subject.student is None
    found = [
        *warmup_and_momentum(epochs, steps, WARMUP_SHARE if scratch else CONTINUED_WARMUP_SHARE)
    ]
    if chosen["recipe"].value == methods()["sce"] and scratch and steps <= FEW_STEPS:
        found += without_lag(steps, chosen["batch"].value, chosen["queue"])
    names = {*available_settings(base, known_keys), "predictor"}
    free = names - (chosen.keys() - {"queue"}) - subject.given.keys()
    return {choice.setting: choice for choice in found if choice.setting in free}


@dataclass(frozen=True)
class _Costs:
    """Work of the command besides the training steps.

    Attributes:
        compared: Number of videos in the final comparison with random weights.
        before: Seconds until the training begins.
        after: Seconds of the comparison and the page.
        evaluation: Seconds of an evaluation of the held-out videos; 0 without them.
    """

    compared: int
    before: float
    after: float
    evaluation: float


def _costs(
    subject: _Subject, timing: Timing, planned: float, taught: float, slowness: float
) -> _Costs:
    """Estimate the command's work besides the training steps.

    Args:
        subject: Videos, machine and networks.
        timing: Measured times.
        planned: Seconds since the start of the command.
        taught: Seconds for a teacher to embed all training videos.
        slowness: Ratio of wall-clock to processor time while planning. Other programs are assumed
            to slow the page down by the same factor.
    """
    videos, each = subject.trained.num_videos, timing.features(networks=2)
    most = _MAX_COMPARED
    if subject.hours is not None:
        affordable = int(_COMPARED_SHARE * 3600 * subject.hours / each)
        most = max(_MIN_COMPARED, min(most, affordable))
    compared = min(most, videos)
    page = _PAGE_SECONDS * min(_MAX_SLOWNESS, max(1.0, slowness))
    page += min(_PAGE_VIDEOS, videos) * timing.features(networks=1)
    # The comparison includes the teacher, which embeds the compared videos again.
    comparison = compared * each + taught * compared / videos
    held = subject.held
    evaluation = 0.0 if held is None else held.evaluated * timing.features(networks=1)
    return _Costs(compared, planned + taught, comparison + page, evaluation)


def _choose_epochs(
    subject: _Subject, chosen: Mapping[str, Choice], steps: int, seconds: float, costs: _Costs
) -> Choice:
    """Choose the number of epochs, given the optimiser steps and measured seconds per epoch."""
    least = _STEPS_TO_CONTINUE
    if subject.start is None:
        least = least_steps(subject.machine, chosen["width"].value)
    # The budget includes an evaluation at the start and the usual number of later ones.
    other = costs.before + costs.after + (1 + EVALUATIONS) * costs.evaluation
    choice = choose_epochs(steps, least, subject.hours, seconds, other)
    if subject.student is not None and choice.value > MOST_EPOCHS:
        reason = "more passes over the videos gain nothing; the rest of the hours is not used"
        return Choice("epochs", MOST_EPOCHS, reason)
    return choice


def _config(base: Config, chosen: Mapping[str, Choice], subject: _Subject, out: str) -> Config:
    """Return the recipe with the chosen settings, the videos, and the initial network."""
    of_videos = dataset_settings(subject.videos.folder, subject.videos.extensions)
    data: dict[str, Any] = {
        f"train_dataloader.dataset.{name}": value for name, value in of_videos.items()
    }
    if subject.teacher is not None:
        data["model.teacher_channels"] = subject.teacher.channels
    config = filled_recipe(base, chosen, data, out)
    config.fit_queue = False  # the queue matches the videos already
    for step in config.train_dataloader.dataset.pipeline:
        if step.type == "DecodeClips":  # the paper's recipes keep repeated frames
            step.skip_repeats = True
    if "predictor" in chosen:
        config.model.predictor = chosen["predictor"].value
    if subject.start is not None:
        continue_from(config, subject.start)
    if subject.student is not None and subject.teacher is not None:
        become_student(config, subject.student, subject.teacher.target, subject.trained)
        config.model.queue_size = chosen["queue"].value  # which only --objective relations uses
    return config


def _remarks(subject: _Subject, size: int, config: Config, timing: Timing) -> tuple[str, ...]:
    """Return sentences about anything unusual in the network, the videos and their loading."""
    loader = config.train_dataloader
    found = [] if subject.start is None else remarks(subject.start, size, subject.trained)
    differences = max(step.get("diff_prob", 0.0) for step in loader.dataset.pipeline)
    loading = timing.loading(loader.num_workers)
    return (*subject.road.remarks, *found, *notes(subject.videos, size, loading, differences))
