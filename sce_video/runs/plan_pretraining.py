"""The plan of a pretraining: facts, choices, measured times, and the config that follows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mmengine.config import Config

from sce_video.datasets.labelled import GroupColumns
from sce_video.datasets.sources import dataset_settings, listed_extensions
from sce_video.engine.config.changes import available_settings
from sce_video.engine.config.check import known_keys, options_of_settings
from sce_video.engine.config.load import load_config
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
    start_from,
)
from sce_video.runs.folder_facts import FolderFacts, examine_folder
from sce_video.runs.keep_best import EVALUATIONS, HeldOut, hold_out, keep_best
from sce_video.runs.planned_training import PlannedTraining, add_budget, filled_recipe
from sce_video.runs.roads import Road, choose_road
from sce_video.runs.start_weights import Source, find_source
from sce_video.runs.student import (
    MOST_EPOCHS,
    become_student,
    is_student,
    student_choices,
)
from sce_video.runs.teacher import PlannedTeacher, plan_teacher
from sce_video.runs.timing import Timing, measure
from sce_video.utils.run_files import PUBLIC_TEACHER, has_public_teacher

#: Size of a clip from which SCE is trained with the paper's views.
_LARGE_SIZE = 224
#: Videos that are compared with random weights at the end, at most.
_MAX_COMPARED = 256
#: And at least: with fewer the comparison decides nothing.
_MIN_COMPARED = 32
#: Share of a budget for this comparison.
_COMPARED_SHARE = 0.05
#: Videos that the page of the run embeds and draws.
_PAGE_VIDEOS = 64
#: Seconds of the page besides.
_PAGE_SECONDS = 10.0
#: Most by which other programs are taken to slow the page down.
_MAX_SLOWNESS = 20.0
#: Steps without a budget of a training that starts from a network.
_STEPS_TO_CONTINUE = 2000
#: Row of the plan that names this network.
_SOURCE = "starts from"
#: Rows of a plan that are no settings of a recipe.
_ROWS = ("recipe", _SOURCE, "precision", "keep", "predictor", *ROWS)


@dataclass(frozen=True)
class _Subject:
    """What a pretraining is planned for.

    Attributes:
        videos: Facts of all videos.
        machine: Machine that trains.
        road: Method of pretraining, and why.
        given: Settings that the user gave, by name.
        hours: Budget of the command; None for the usual length.
        start: Network to continue from; None for random weights and for a student.
        student: Network that a student of an image network starts from.
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
        """Facts of the videos that are trained on."""
        left = self.videos.num_videos - (0 if self.held is None else self.held.count)
        return replace(self.videos, num_videos=left)


def plan_pretraining(options: PretrainOptions, begun: float) -> PlannedTraining:
    """Examine videos and machine, choose the settings that are not given, and time a few steps.

    Args:
        options: Options of the command.
        begun: ``time.monotonic()`` when the command began, from which a budget counts.

    Raises:
        FileNotFoundError: If there is no such network or teacher.
        ValueError: If the videos, the network and the given settings do not fit each other.
    """
    began, worked = time.monotonic(), time.process_time()
    subject = _examine(options)
    recipe, chosen = _choices(subject, options.precision)
    base = load_config(recipe)
    options_of_settings(base, subject.given)  # unknown names end here
    # Measured with the chosen network and batch, and any length: epochs follow from the speed.
    first = _config(base, chosen, subject, options.out)
    timing = measure(first, subject.teacher)
    # Before the first step, so that a teacher that these videos do not suit ends it here.
    taught = 0.0 if subject.teacher is None else subject.teacher.seconds(first)
    now = time.monotonic()
    # Wall-clock over processor time: how much other programs slow this one down.
    slowness = (now - began) / max(time.process_time() - worked, 1e-3)
    compared = _compared_videos(timing, subject.trained.num_videos, options.hours)
    after = _seconds_after(timing, subject.trained.num_videos, compared, slowness)
    after += taught * compared / subject.trained.num_videos  # the teacher is compared, too
    other = 0.0 if options.hours is None else now - begun + taught + after
    held = subject.held
    evaluation = 0.0 if held is None else held.evaluated * timing.features(networks=1)
    spent = other + (1 + EVALUATIONS) * evaluation
    samples = samples_of_epoch(subject.trained.num_videos, chosen["epoch_samples"].value)
    steps = max(1, samples // chosen["batch"].value)
    if "epochs" not in chosen:
        seconds = timing.epoch(subject.machine.cores, first.train_dataloader.num_workers)
        least = _STEPS_TO_CONTINUE
        if subject.start is None:
            least = least_steps(subject.machine, chosen["width"].value)
        chosen["epochs"] = choose_epochs(steps, least, options.hours, seconds, spent)
        if subject.student is not None and chosen["epochs"].value > MOST_EPOCHS:
            reason = "more passes over the videos gain nothing; the rest of the hours is not used"
            chosen["epochs"] = Choice("epochs", MOST_EPOCHS, reason)
    epochs = chosen["epochs"].value
    chosen |= _choices_of_length(subject, chosen, base, epochs, epochs * steps)
    config = _config(base, chosen, subject, options.out)
    config.run_page.compared = compared
    if held is not None:
        chosen["keep"] = keep_best(config, subject.videos, int(subject.given.get("seed", 0)), held)
    if options.hours is not None:
        add_budget(config, options.hours, other - after, after)
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
        evaluation_seconds=(1 + min(EVALUATIONS, epochs * steps)) * evaluation,
    )


def _examine(options: PretrainOptions) -> _Subject:
    """Find out what there is: videos, machine, network or teacher, and what is held out."""
    machine = this_machine()
    extensions = listed_extensions(options.all_files)
    facts = examine_folder(str(options.videos), extensions=extensions).check_readable()
    given = given_settings(options)
    start = start_from(options.start, options.freeze, options.lora)
    road = choose_road(options, facts, machine, given)
    held = None
    if options.kept == BEST:
        columns = GroupColumns(options.group_column, options.fold_column)
        held = hold_out(facts, options.labels, columns, int(given.get("seed", 0)))
    subject = _Subject(facts, machine, road, given, options.hours, start, held)
    if road.teacher is None:
        return subject
    student = _student(start, given)
    teacher = plan_teacher(road.teacher, subject.trained, given, student is not None)
    if student is not None and teacher.given["objective"] == "frames":
        subject = replace(subject, student=student, start=None)
    return replace(subject, teacher=teacher)


def _student(start: Start | None, given: Mapping[str, Any]) -> Source | None:
    """Return the network that the student of an image network starts from; None if there is none.

    It is the network of ``--from`` if temporal layers can be added to it, and the public one if
    none is given and its weights are installed.
    """
    if start is not None:
        fits = is_student(start.source) and start.freeze is None and start.lora is None
        return start.source if fits else None
    if "width" in given or not has_public_teacher():
        return None
    return find_source(PUBLIC_TEACHER)


def _choices(subject: _Subject, precision: str | None) -> tuple[str, dict[str, Choice]]:
    """Choose the recipe, and every setting except the length, in the order to show them."""
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
        recipe = LARGE_RECIPE  # of the paper's size, with the paper's views
    rows = {"recipe": Choice("recipe", recipe, f"of --method {method}{subject.road.why}")}
    if start is not None:
        del chosen["width"]  # the network has its own
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
    """Choose what suits so many epochs and steps: warm-up, momentum, and queue and predictor of
    SCE, except what is given or chosen already.
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


def _compared_videos(timing: Timing, num_videos: int, hours: float | None) -> int:
    """Return on how many videos the network is compared with random weights at the end.

    Of a budget the comparison takes a twentieth, but at least 32 videos are needed.
    """
    most = _MAX_COMPARED
    if hours is not None:
        each = timing.features(networks=2)
        most = max(_MIN_COMPARED, min(most, int(_COMPARED_SHARE * 3600 * hours / each)))
    return min(most, num_videos)


def _seconds_after(timing: Timing, num_videos: int, compared: int, slowness: float) -> float:
    """Return the seconds of the comparison and the page.

    Args:
        timing: Measured times.
        num_videos: Number of videos that are trained on.
        compared: Number of videos of the comparison.
        slowness: Time of the planning over its processor time: other programs slow the page down
            as much.
    """
    drawn = min(_PAGE_VIDEOS, num_videos)
    page = _PAGE_SECONDS * min(_MAX_SLOWNESS, max(1.0, slowness))
    return page + compared * timing.features(networks=2) + drawn * timing.features(networks=1)


def _config(base: Config, chosen: Mapping[str, Choice], subject: _Subject, out: str) -> Config:
    """Return the recipe with the chosen settings, on the videos, and the network to start from."""
    of_videos = dataset_settings(subject.videos.folder, subject.videos.extensions)
    data: dict[str, Any] = {
        f"train_dataloader.dataset.{name}": value for name, value in of_videos.items()
    }
    if subject.teacher is not None:
        data["model.teacher_channels"] = subject.teacher.channels
    config = filled_recipe(base, chosen, data, out)
    config.fit_queue = False  # the queue has been fitted
    for step in config.train_dataloader.dataset.pipeline:
        if step.type == "DecodeClips":  # the paper's recipes take every difference as it is
            step.skip_repeats = True
    if "predictor" in chosen:
        config.model.predictor = chosen["predictor"].value
    if subject.start is not None:
        continue_from(config, subject.start)
    if subject.student is not None and subject.teacher is not None:
        become_student(config, subject.student, subject.teacher.channels, subject.trained)
    return config


def _remarks(subject: _Subject, size: int, config: Config, timing: Timing) -> tuple[str, ...]:
    """Return sentences about what is unusual in the network, the videos and their loading."""
    loader = config.train_dataloader
    found = [] if subject.start is None else remarks(subject.start, size, subject.trained)
    differences = max(step.get("diff_prob", 0.0) for step in loader.dataset.pipeline)
    loading = timing.loading(loader.num_workers)
    return (*subject.road.remarks, *found, *notes(subject.videos, size, loading, differences))
