"""Plan of a pretraining run: facts, choices, measured times, and the resulting config."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection
from dataclasses import dataclass, replace

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
)
from sce_video.runs.folder_facts import FolderFacts, examine_folder
from sce_video.runs.keep_best import EVALUATIONS, hold_out, keep_best
from sce_video.runs.plan_distillation import (
    MOST_EPOCHS,
    become_student,
    could_teach,
    is_student,
    plan_teacher,
    student_choices,
)
from sce_video.runs.planned_training import (
    PlannedTraining,
    Timing,
    add_budget,
    filled_recipe,
    measure,
)
from sce_video.runs.start_weights import Source, find_source
from sce_video.runs.teacher import with_frame_pool
from sce_video.utils.run_files import PUBLIC_TEACHER, has_public_teacher

#: Method whose network learns from a teacher
DISTILL = "distill"
#: Smallest short side in pixels for the public teacher. Its input size is 224 pixels, so smaller
#: videos would be enlarged by more than a factor of two.
_LEAST_SIDE = 112
#: Smallest number of videos for training from scratch without a warning. J-HMDB's 928 videos are
#: too few, and the smallest dataset in the paper has 240,000. The value in between is a guess.
_FEW_VIDEOS = 10_000
#: Smallest clip size for which SCE is trained with the paper's views
_LARGE_SIZE = 224
#: Largest number of videos on which the final network is compared with random weights
_MAX_COMPARED = 256
#: Smallest number of videos for this comparison. With fewer, it would be inconclusive.
_MIN_COMPARED = 32
#: Share of the time budget that this comparison may use
_COMPARED_SHARE = 0.05
#: Number of videos that are embedded and shown on the run's page
_PAGE_VIDEOS = 64
#: Estimated seconds for the page in addition to embedding its videos
_PAGE_SECONDS = 10.0
#: Upper limit on the factor by which other programs are assumed to slow down writing the page
_MAX_SLOWNESS = 20.0
#: Number of steps for a run that starts from an existing network if there is no time budget
_STEPS_TO_CONTINUE = 2000
#: Row of the plan that states the initial network
_SOURCE = "starts from"
#: Settings of a network from random weights, which the student of an image network does not have
_OWN_NETWORK = frozenset({"width", "hidden", "embedding", "queue", "momentum"})
#: Command that installs the network from which the student of an image network starts
_INSTALL = "pip install 'sce-video[teacher]'"
#: Rows of a plan that are not settings of a recipe
_ROWS = ("recipe", _SOURCE, "precision", "keep", "predictor", *ROWS)


@dataclass(frozen=True)
class Road:
    """Road of a pretraining run: distil a teacher, continue from a network, or start from scratch.

    Attributes:
        method: Method of pretraining.
        why: Clause that follows the method's name in the plan; empty if the user gave the method.
        teacher: Teacher of a distillation; None for other roads.
        remarks: Sentences for the user.
    """

    method: str
    why: str = ""
    teacher: str | None = None
    remarks: tuple[str, ...] = ()


def choose_road(
    options: PretrainOptions, facts: FolderFacts, machine: Machine, given: Collection[str]
) -> Road:
    """Choose between distillation, continuing from a network, and training from scratch.

    The user's options come first: ``--teacher`` distils, ``--from`` continues, and ``--method``
    names the method. Without them, an image network is distilled if its weights are installed,
    because a student gains forty points over training from scratch on real footage
    (docs/results.md). Nothing is downloaded.

    Args:
        options: Options of the command.
        facts: Facts about the videos.
        machine: Machine on which the run trains.
        given: Names of the settings that the user gave.
    """
    if options.named_method == DISTILL:
        return Road(DISTILL, teacher=options.teacher or PUBLIC_TEACHER)
    if options.method is not None:
        return Road(options.method, remarks=() if options.start else _warn(options, facts))
    method, why = default_method(machine, given)
    if options.start is not None:
        return Road(method, why)
    if _OWN_NETWORK & {*given} or not has_public_teacher():
        return Road(method, why, remarks=_warn(options, facts))
    if facts.short_side < _LEAST_SIDE:
        remark = (
            f"{PUBLIC_TEACHER} is installed, but is not used as a teacher, because the videos have "
            f"a short side of {facts.short_side} pixels and it needs {_LEAST_SIDE} or more. To use "
            f"it anyway, add --teacher {PUBLIC_TEACHER}"
        )
        return Road(method, why, remarks=(remark, *_warn(options, facts, advises=False)))
    remarks = (
        "a teacher from a hub (--teacher hf:NAME) needs pip install 'sce-video[hf]' and a "
        "download, and computing its features takes several times as long. DINOv3 "
        "(hf:facebook/dinov3-vits16-pretrain-lvd1689m) also needs an accepted licence and a "
        "Hugging Face login, and a video network such as V-JEPA 2 "
        "(hf:facebook/vjepa2-vitl-fpc64-256) trains a student from random weights "
        "(docs/encoders.md)",
        "classes that differ only in their motion may be learned better from scratch, with "
        "--method simclr. With some labels, sce-video choose finds the network that suits your "
        "videos",
    )
    return Road(DISTILL, f": {PUBLIC_TEACHER} is installed", PUBLIC_TEACHER, remarks)


def _warn(options: PretrainOptions, facts: FolderFacts, advises: bool = True) -> tuple[str, ...]:
    """Return a warning about training from scratch on few videos.

    With ``advises``, the warning contains a better command.
    """
    if facts.num_videos >= _FEW_VIDEOS:
        return ()
    warning = (
        f"a network trained from scratch on {facts.num_videos:,} videos needs many steps. On "
        "J-HMDB (928 clips of films), an hour on two cores (31,000 steps) reached 38 % in a linear "
        "probe, and random weights reach 13 %"
    )
    if not advises:
        return (warning,)
    install = "" if has_public_teacher() else f"{_INSTALL}, then "
    videos = shlex.quote(str(options.videos))
    return (
        f"{warning}. A student of an image network reached 60 % in 7 minutes: "
        f"{install}sce-video pretrain {videos} --out {shlex.quote(options.out)} --teacher "
        f"{PUBLIC_TEACHER}",
    )


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
    run = _Pretraining(options)
    # Measure the speed with the chosen network and batch, because it determines the number of
    # epochs.
    first = run.config()
    timing = measure(first, run.teacher, run.trained.num_videos)
    # Compute the teacher's features before training, so that unsuitable videos are reported early.
    taught = 0.0 if run.teacher is None else run.teacher.seconds(first)
    now = time.monotonic()
    # The ratio of wall-clock to processor time shows how much other programs slow down this one.
    slowness = (now - planning) / max(time.process_time() - worked, 1e-3)
    costs = run.costs(timing, now - begun, taught, slowness)
    epoch_seconds = timing.epoch(run.machine.cores, first.train_dataloader.num_workers)
    steps = run.choose_length(epoch_seconds, costs)
    config = run.config()
    config.run_page.compared = costs.compared
    if run.held is not None:
        run.chosen["keep"] = keep_best(config, run.held)
    other = 0.0
    if options.hours is not None:
        other = costs.before + costs.after
        # The time for the teacher's features is added when they are computed, or not needed.
        add_budget(config, options.hours, costs.before - taught, costs.after)
    # Show only settings that the recipe has. A recipe without a queue has no queue length.
    shown = {*available_settings(run.base, known_keys), *_ROWS}
    return PlannedTraining(
        command="pretrain",
        request=request_of(options),
        config=config,
        facts=run.videos,
        machine=run.machine,
        choices=tuple(choice for choice in run.chosen.values() if choice.setting in shown),
        timing=timing,
        other_seconds=other,
        remarks=run.remarks(config, timing),
        evaluation_seconds=(1 + min(EVALUATIONS, steps)) * costs.evaluation,
    )


@dataclass(frozen=True)
class _Costs:
    """Costs of a pretraining command besides the training steps.

    Attributes:
        compared: Number of videos in the final comparison with random weights.
        before: Seconds until training begins.
        after: Seconds for the comparison and the page.
        evaluation: Seconds per evaluation on the held-out videos; 0 without held-out videos.
    """

    compared: int
    before: float
    after: float
    evaluation: float


class _Pretraining:
    """Pretraining run that is being planned: videos, machine, networks and chosen settings.

    Attributes:
        options: Options of the command.
        given: Settings that the user gave, by name.
        machine: Machine on which the run trains.
        videos: Facts about all videos.
        road: Method of pretraining, and the reason for it.
        start: Network to continue from; None for random weights, or if a student is trained.
        student: Network from which the student of an image network starts; None without a student.
        teacher: Teacher of a distillation; None for another method.
        held: Videos held out to find the best checkpoint; None if the last one is kept.
        chosen: Settings by name, in display order. The length is chosen last.
        base: Recipe that is filled in.
    """

    def __init__(self, options: PretrainOptions) -> None:
        self.options, self.given, self.machine = options, given_settings(options), this_machine()
        extensions = listed_extensions(options.all_files)
        self.videos = examine_folder(str(options.videos), extensions=extensions).check_readable()
        self.start = self.student = self.teacher = self.held = None
        if options.start is not None:
            self.start = Start(find_source(options.start), options.freeze, options.lora)
        self.road = choose_road(options, self.videos, self.machine, self.given)
        if options.kept == BEST:
            columns = GroupColumns(options.group_column, options.fold_column)
            self.held = hold_out(self.videos, options.labels, columns, options.seed or 0)
        if self.road.teacher is not None:
            student = self._possible_student()
            has_student = student is not None
            self.teacher = plan_teacher(self.road.teacher, self.trained, self.given, has_student)
            if has_student and self.teacher.suits_student:
                self.student, self.start = student, None
            elif self.start is not None:
                pool = self.start.source.settings.backbone.get("frame_pool")
                pooled = with_frame_pool(self.teacher.model, pool)  # as the run itself does
                self.teacher = replace(self.teacher, model=pooled)
        self.chosen = self._choices()
        self.base = load_config(self.chosen["recipe"].value)
        options_of_settings(self.base, self.given)  # reports unknown names early

    @property
    def trained(self) -> FolderFacts:
        """Facts about the videos in the training set."""
        left = self.videos.num_videos - (0 if self.held is None else self.held.count)
        return replace(self.videos, num_videos=left)

    def _possible_student(self) -> Source | None:
        """Return the initial network for the student of an image network; None if there is none.

        It is the network that ``--from`` names, if temporal layers can be added to it. Without
        ``--from``, it is the public network if its weights are installed.
        """
        if self.start is not None:
            whole = self.start.freeze is None and self.start.lora is None
            return self.start.source if whole and is_student(self.start.source) else None
        if "width" in self.given or not has_public_teacher():
            return None
        return find_source(PUBLIC_TEACHER)

    def _choices(self) -> dict[str, Choice]:
        """Choose the recipe and every setting except the length, in display order."""
        method, start, student = self.road.method, self.start, self.student
        recipe, facts, own = methods()[method], self.trained, {}
        given = {**self.given, "precision": self.options.precision}
        given |= {} if self.teacher is None else self.teacher.given
        if start is not None:
            rate = load_config(recipe).optim_wrapper.optimizer.lr
            own = own_choices(start, facts, self.machine, given, rate)
        if student is not None:
            recipe = STUDENT_RECIPE
            own = student_choices(student, facts, self.options.hours, given)
        chosen = choose_settings(facts, self.machine, given, own)
        if method == "sce" and chosen["size"].value >= _LARGE_SIZE:
            recipe = LARGE_RECIPE  # this recipe has the paper's clip size and views
        rows = {"recipe": Choice("recipe", recipe, f"for --method {method}{self.road.why}")}
        if start is not None:
            del chosen["width"]  # the network has its own width
            rows[_SOURCE] = Choice(_SOURCE, start.source.name, start.describe())
        if student is not None:
            layers = "temporal layers that start as the identity"
            reason = f"{student.parameters:,} parameters, and {layers}"
            rows[_SOURCE] = Choice(_SOURCE, student.name, reason)
        if self.teacher is not None:
            chosen |= self.teacher.choices(chosen["frames"].value)
        return rows | chosen

    def costs(self, timing: Timing, planned: float, taught: float, slowness: float) -> _Costs:
        """Estimate the costs of the command, which began ``planned`` seconds ago.

        A teacher needs ``taught`` seconds to embed all training videos. ``slowness`` is the ratio
        of wall-clock to processor time while planning. Other programs are assumed to slow the page
        down by the same factor.
        """
        videos, each = self.trained.num_videos, timing.features(networks=2)
        most = _MAX_COMPARED
        if self.options.hours is not None:
            affordable = int(_COMPARED_SHARE * 3600 * self.options.hours / each)
            most = max(_MIN_COMPARED, min(most, affordable))
        compared = min(most, videos)
        page = _PAGE_SECONDS * min(_MAX_SLOWNESS, max(1.0, slowness))
        page += min(_PAGE_VIDEOS, videos) * timing.features(networks=1)
        # The comparison includes the teacher, which has to embed the compared videos again.
        comparison = compared * each + taught * compared / videos
        evaluated = 0 if self.held is None else self.held.evaluated
        evaluation = evaluated * timing.features(networks=1)
        return _Costs(compared, planned + taught, comparison + page, evaluation)

    def choose_length(self, epoch_seconds: float, costs: _Costs) -> int:
        """Choose the epochs and the settings that depend on them, and return the number of steps.

        These settings are warm-up, momentum, and SCE's queue and predictor, unless they are given
        or chosen already.
        """
        batch, scratch = self.chosen["batch"].value, self.start is None and self.student is None
        samples = samples_of_epoch(self.trained.num_videos, self.chosen["epoch_samples"].value)
        per_epoch = max(1, samples // batch)
        if "epochs" not in self.chosen:
            self.chosen["epochs"] = self._epochs(per_epoch, epoch_seconds, costs)
        epochs = self.chosen["epochs"].value
        steps, share = epochs * per_epoch, WARMUP_SHARE if scratch else CONTINUED_WARMUP_SHARE
        found = [*warmup_and_momentum(epochs, steps, share)]
        if self.chosen["recipe"].value == methods()["sce"] and scratch and steps <= FEW_STEPS:
            found += without_lag(steps, batch, self.chosen["queue"])
        names = {*available_settings(self.base, known_keys), "predictor"}
        free = names - (self.chosen.keys() - {"queue"}) - self.given.keys()
        self.chosen |= {choice.setting: choice for choice in found if choice.setting in free}
        return steps

    def _epochs(self, steps: int, seconds: float, costs: _Costs) -> Choice:
        """Choose the number of epochs, given the optimiser steps and seconds per epoch."""
        least = _STEPS_TO_CONTINUE
        if self.start is None:
            least = least_steps(self.chosen["width"].value)
        # The budget covers one evaluation at the start and the usual number during training.
        other = costs.before + costs.after + (1 + EVALUATIONS) * costs.evaluation
        choice = choose_epochs(steps, least, self.options.hours, seconds, other)
        if self.student is not None and choice.value > MOST_EPOCHS:
            reason = "more passes over the videos gain nothing; the rest of the hours is not used"
            return Choice("epochs", MOST_EPOCHS, reason)
        return choice

    def config(self) -> Config:
        """Return the recipe with the settings chosen so far, the videos and the initial network."""
        folder = dataset_settings(self.videos.folder, self.videos.extensions)
        data = {f"train_dataloader.dataset.{name}": value for name, value in folder.items()}
        if self.teacher is not None:
            data["model.teacher_channels"] = self.teacher.channels
        config = filled_recipe(self.base, self.chosen, data, self.options.out)
        config.fit_queue = False  # the queue already matches the videos
        for step in config.train_dataloader.dataset.pipeline:
            if step.type == "DecodeClips":  # the paper's recipes would keep repeated frames
                step.skip_repeats = True
        if "predictor" in self.chosen:
            config.model.predictor = self.chosen["predictor"].value
        if self.start is not None:
            continue_from(config, self.start)
        if self.student is not None and self.teacher is not None:
            become_student(config, self.student, self.teacher, self.trained)
            # Only --objective relations uses the queue.
            config.model.queue_size = self.chosen["queue"].value
        return config

    def remarks(self, config: Config, timing: Timing) -> tuple[str, ...]:
        """Return sentences about anything unusual in the network, the videos and their loading."""
        loader, size = config.train_dataloader, self.chosen["size"].value
        found = [] if self.teacher is None else self.teacher.remarks(size)
        if self.start is not None:
            found += remarks(self.start, self.trained, self.chosen["frames"].value, size)
            found += self._other_road(self.start)
        differences = max(step.get("diff_prob", 0.0) for step in loader.dataset.pipeline)
        loading = timing.loading(loader.num_workers)
        has_teacher = self.teacher is not None
        unusual = notes(self.videos, size, loading, differences, has_teacher)
        return (*self.road.remarks, *found, *unusual)

    def _other_road(self, start: Start) -> list[str]:
        """Return a sentence if the initial network could teach a small video network instead."""
        # These settings exist only for the network that the run continues.
        own = self.options.method, start.freeze, start.lora
        if self.teacher is not None or own != (None, None, None) or _OWN_NETWORK & {*self.given}:
            return []
        if not could_teach(start.source, self.trained):
            return []
        install = "" if has_public_teacher() else f"run {_INSTALL}, and "
        name = shlex.quote(str(self.options.start))
        return [
            f"to train a small video network in minutes, {install}give --teacher {name} instead of "
            f"--from {name}. The network learns to predict the features of {name} "
            "(docs/pretrain.md)"
        ]
