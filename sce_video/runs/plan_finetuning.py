"""Plan of a finetuning run: its route, choices, measured times, and the config.

A classifier is either fitted to frozen features (:mod:`sce_video.runs.plan_frozen`) or trained by
gradient descent. If the options and the facts leave both routes open, a short trial decides.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from torch import Tensor

from sce_video.engine.config.changes import available_settings
from sce_video.engine.config.check import known_keys
from sce_video.engine.config.load import load_config, options_of_settings
from sce_video.engine.recipes import FINETUNING
from sce_video.engine.run_json import Choice
from sce_video.engine.runner import RANDOM
from sce_video.evaluation.scores import load_scores
from sce_video.options.training import (
    AUTO,
    FINETUNE,
    FROZEN,
    OF_GRADIENTS,
    FinetuneOptions,
    given_settings,
    request_of,
)
from sce_video.runs.choices import choose_epochs, warmup_and_momentum
from sce_video.runs.configs import complete_classifier, testing_config, training_config
from sce_video.runs.continued import NO_DECAY, take_network
from sce_video.runs.finetune_choices import (
    FROM_SCRATCH,
    LEAST_STEPS,
    choose_finetuning,
    is_transformer,
    layer_decay,
    learned_images,
)
from sce_video.runs.finetune_subject import (
    PAGE_SECONDS,
    PAGE_VIDEOS,
    Subject,
    data_settings,
    describe_source,
    examine_labelled,
    step_of_source,
)
from sce_video.runs.fold_probe import CrossValidation, percent
from sce_video.runs.launch import run_test, run_training
from sce_video.runs.plan_frozen import FrozenFit
from sce_video.runs.planned_training import (
    PlannedTraining,
    Timing,
    add_budget,
    filled_recipe,
    measure,
)
from sce_video.utils.run_files import RESULTS, SCORES, newest_checkpoint

#: Class of the classifier in the shipped recipe
_HEAD = "I3DHead"
#: Number of validations and checkpoints during a run
_VALIDATIONS = 5
#: Number of clips per video whose features the linear probe uses
_PROBED_CLIPS = 4
#: Share of a time budget that a trial may take
_SHARE_OF_BUDGET = 0.25
#: Share of the planned training time that a trial may take without a budget
_SHARE_OF_TRAINING = 0.5
#: Smallest time limit of a trial without a budget, in seconds. A small network finishes its
#: training within this time.
_LEAST_SECONDS = 60.0
#: Largest time limit of a trial without a budget, in seconds
_MOST_SECONDS = 600.0


def plan_finetuning(options: FinetuneOptions, begun: float) -> PlannedTraining:
    """Examine source, videos and machine, and plan the better route to a classifier.

    Nothing is written to the run's folder. :func:`~sce_video.runs.planned_training.write_plan`
    writes the video lists that are needed.

    Args:
        options: Options of the command.
        begun: ``time.monotonic()`` at the start of the command, from which a budget counts.

    Raises:
        FileNotFoundError: If the source does not exist.
        ValueError: If the sets cannot be used, or do not match each other or the source.
    """
    base = load_config(options.recipe or FINETUNING)
    options_of_settings(base, given_settings(options))  # reports unknown settings early
    head = _own_head(base, options)
    if options.recipe is not None and options.route == FROZEN:
        raise ValueError(
            f"--route {FROZEN} fits a linear classifier and fills in no recipe. Remove --route or "
            "--recipe"
        )
    subject = examine_labelled(options)
    if options.route == FROZEN:
        return FrozenFit(options, subject, begun).plan(Choice("route", FROZEN, "given"))
    training = _Training(base, subject, options, head)
    route = known_route(options, subject, training.chosen)
    if route is None or route.value == FROZEN:
        frozen = FrozenFit(options, subject, begun)
        route = route or _compare(begun, training, frozen)
        if route.value == FROZEN:
            return frozen.plan(route)
    return training.plan(begun, route)


def _own_head(base: Config, options: FinetuneOptions) -> Choice | None:
    """Return a recipe's classifier if it differs from the shipped recipe's classifier.

    Raises:
        ValueError: If the user requests a classifier of the shipped recipe.
    """
    kind = base.model.cls_head.type
    if kind == _HEAD:
        return None
    if options.head is not None:
        raise ValueError(
            f"--head {options.head} replaces the classifier of the recipe {options.recipe}, which "
            f"is a {kind}. Remove --head or --recipe"
        )
    return Choice("head", kind, "of the recipe")


# -- the route -----------------------------------------------------------------------------------


def known_route(
    options: FinetuneOptions, subject: Subject, chosen: Mapping[str, Choice]
) -> Choice | None:
    """Return the route if no trial is needed; None if both routes are possible.

    ``chosen`` contains the settings of a run with gradient training, by name.
    """
    if options.route != AUTO:
        return Choice("route", options.route, "given")
    if options.recipe is not None:
        return Choice("route", FINETUNE, "your own recipe is trained")
    if subject.source is None:
        return Choice("route", FINETUNE, "random weights have to be trained")
    for name in OF_GRADIENTS:
        if name in subject.given:
            return Choice("route", FINETUNE, f"{name} is given, which belongs to this route")
    if chosen["head"].value == "attentive":
        return Choice("route", FINETUNE, "an attentive head has to be trained")
    if chosen["frozen"].value == 4:
        return Choice("route", FROZEN, chosen["frozen"].reason)
    return None


def _compare(begun: float, training: _Training, frozen: FrozenFit) -> Choice:
    """Compare frozen features with a short finetuning, and return the better route."""
    if frozen.found is None:
        reason = "the labelled videos are too few to compare the routes"
        return Choice("route", FROZEN, reason)
    hours, features = training.options.hours, frozen.features
    seconds = trial_seconds(hours, training.planned_seconds)
    if not training.fits(time.monotonic() - begun + seconds):
        reason = f"{hours:g} hours do not suffice to try a finetuning and then train"
        return Choice("route", FROZEN, reason)
    count, minutes = len(features.labels), max(1, round(seconds / 60))
    print(
        f"frozen features reach {percent(frozen.found.hits(), features.units)} on held-out "
        f"videos. Finetuning is tried on {count} labelled videos for up to {minutes} minute"
        f"{'s' * (minutes > 1)} (--route {FROZEN} skips this)",
        flush=True,
    )
    tested = frozen.found.folds == frozen.found.folds.min()
    held = training.subject.videos.subset(features.indices[tested].numpy())
    subject = replace(training.subject.part(features.indices[~tested].numpy()), tested=held)
    trial = _try_finetuning(training, subject, torch.nonzero(tested).flatten(), seconds)
    return better_route(frozen.found, features.units, trial, training.epochs)


def trial_seconds(hours: float | None, planned: float) -> float:
    """Return the time limit of a trial in seconds, for a whole training of ``planned`` seconds.

    ``hours`` is the budget of the command, or None.
    """
    if hours is not None:
        return _SHARE_OF_BUDGET * 3600 * hours
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, _SHARE_OF_TRAINING * planned))


@dataclass(frozen=True)
class Trial:
    """Result of a short finetuning run on some of the labelled videos.

    Attributes:
        held: (n,) positions of the tested videos among the compared ones.
        hits: (n,) float64, 1 for a correctly classified video, else 0.
        epochs: Number of epochs.
    """

    held: Tensor
    hits: Tensor
    epochs: int


def _try_finetuning(training: _Training, subject: Subject, held: Tensor, seconds: float) -> Trial:
    """Finetune on some of the labelled videos for a few seconds, and test on others.

    ``held`` (n,) are the positions of the test videos among the compared ones.

    Raises:
        KeyboardInterrupt: If a signal has stopped the training.
    """
    share = seconds / max(training.planned_seconds, 1e-6)
    epochs = max(1, min(training.epochs, int(share * training.epochs)))
    with tempfile.TemporaryDirectory(prefix="sce_video_") as name:
        folder = Path(name)
        config = training.config(data_settings(subject, name), name, epochs)
        # Silence the trial. Warnings that also concern the full training are repeated there.
        config.run_page, config.log_level = None, "ERROR"
        config.default_hooks.screen = None
        # To save time, skip validation and write a checkpoint only at the end.
        config.train_cfg.val_interval = epochs + 1
        config.default_hooks.checkpoint.interval = epochs
        if epochs < training.epochs:  # a budget would prolong a complete run
            add_budget(config, seconds / 3600, 0.0, 0.0)
        runner = run_training(training_config(config, work_dir=name))
        if getattr(runner.train_loop, "stopped_by", None) is not None:
            raise KeyboardInterrupt
        checkpoint, dump = newest_checkpoint(folder), folder / SCORES
        out = folder / RESULTS
        run_test(testing_config(config, checkpoint, work_dir=name, out=out, dump=dump))
        scores = load_scores(dump)[0]
    hits = (scores.values.argmax(1) == scores.labels).double()
    return Trial(held[scores.indices], hits, runner.epoch)


def better_route(found: CrossValidation, units: Tensor, trial: Trial, planned: int) -> Choice:
    """Return the route that classifies more videos of the trial correctly, or frozen if equal.

    Args:
        found: Cross-validation of the frozen features.
        units: (N,) units of the compared videos.
        trial: Result of the trial.
        planned: Number of epochs of the whole training.
    """
    hits = found.hits()
    frozen, own = hits[trial.held], units[trial.held]
    route = FINETUNE if trial.hits.mean() > frozen.mean() else FROZEN
    length = f"{trial.epochs} of {planned} epochs" if trial.epochs < planned else "all epochs"
    reason = (
        f"on {len(own)} held-out videos frozen features reach {percent(frozen, own)}, finetuning "
        f"for {length} {percent(trial.hits, own)}; frozen on all {len(hits)} labelled "
        f"videos, by cross-validation: {percent(hits, units)}"
    )
    return Choice("route", route, reason)


# -- gradient training ---------------------------------------------------------------------------


class _Training:
    """Finetuning run with gradient training, and its measured times.

    ``head`` is the classifier of the recipe ``base``. None chooses one.
    """

    def __init__(
        self, base: Config, subject: Subject, options: FinetuneOptions, head: Choice | None
    ) -> None:
        self.base, self.subject, self.options = base, subject, options
        per_class = int(np.median(subject.counts))
        classes = subject.videos.videos.classes
        known = (subject.facts, subject.machine, subject.source)
        self.chosen = choose_finetuning(*known, per_class, subject.given, classes, head)

    @cached_property
    def timing(self) -> Timing:
        """Times with the chosen network and batch, for any length. They determine the epochs."""
        with tempfile.TemporaryDirectory(prefix="sce_video_") as lists:
            data = data_settings(self.subject, lists)
            return measure(self._filled(self.chosen, data, self.options.out))

    @property
    def steps(self) -> int:
        """Optimiser steps per epoch."""
        return math.ceil(len(self.subject.videos) / self.chosen["batch"].value)

    @property
    def epoch_seconds(self) -> float:
        """Estimated seconds per epoch."""
        return self.timing.epoch(self.subject.machine.cores, self.chosen["workers"].value)

    @cached_property
    def seconds_after(self) -> float:
        """Estimated seconds for the test, the linear probe and the page."""
        timing, trained, tested = self.timing, len(self.subject.videos), len(self.subject.tested)
        views = self.chosen["clips"].value * self.chosen["crops"].value
        # ``timing.features(1)`` covers two clips per video, so pass half the number of clips.
        probe = (trained + tested) * timing.features(_PROBED_CLIPS / 2)
        page = self.subject.drawn * timing.features(1) + PAGE_SECONDS
        return tested * timing.features(views / 2) + probe + page

    @property
    def starts_linearly(self) -> bool:
        """Whether the classifier starts from a linear probe of the features."""
        chosen = self.chosen
        trained = chosen["head"].value == "linear" and chosen["frozen"].value != 4
        return trained and learned_images(self.subject.source)

    @property
    def seconds_before(self) -> float:
        """Estimated seconds for this probe, which sees one clip of each training video."""
        return len(self.subject.videos) * self.timing.features(0.5) * self.starts_linearly

    def fits(self, spent: float) -> bool:
        """Return whether the budget suffices for an epoch after ``spent`` seconds."""
        needed = spent + self.seconds_before + self.epoch_seconds + self.seconds_after
        return self.options.hours is None or needed <= 3600 * self.options.hours

    def _length(self, hours: float | None, other: float) -> Choice:
        """Choose the epochs of a command that takes ``other`` seconds besides training."""
        if "epochs" in self.chosen:
            return self.chosen["epochs"]
        least = FROM_SCRATCH if self.subject.source is None else LEAST_STEPS
        return choose_epochs(self.steps, least, hours, self.epoch_seconds, other)

    @property
    def epochs(self) -> int:
        """Number of epochs without a budget."""
        return self._length(None, 0.0).value

    @property
    def planned_seconds(self) -> float:
        """Estimated training time in seconds without a budget."""
        return self.epochs * self.epoch_seconds

    def config(self, data: Mapping[str, Any], out: str, epochs: int) -> Config:
        """Return a config that trains for this many epochs on the videos in ``data``."""
        warmup, _ = warmup_and_momentum(epochs, epochs * self.steps)
        length = Choice("epochs", epochs, "a trial")
        return self._filled({"warmup": warmup, **self.chosen, "epochs": length}, data, out)

    def plan(self, begun: float, route: Choice) -> PlannedTraining:
        """Return the plan of the whole training, whose budget counts from ``begun``."""
        subject, options, timing, chosen = self.subject, self.options, self.timing, self.chosen
        spent, after = time.monotonic() - begun, self.seconds_after
        other = 0.0 if options.hours is None else spent + self.seconds_before + after
        chosen["epochs"] = self._length(options.hours, other)
        epochs = chosen["epochs"].value
        warmup, _ = warmup_and_momentum(epochs, epochs * self.steps)
        chosen.setdefault("warmup", warmup)
        data = data_settings(subject, options.out, write=False)
        config = self._filled(chosen, data, options.out)
        if options.hours is not None:
            add_budget(config, options.hours, spent, after)
        decay = layer_decay(subject.source, chosen["frozen"].value)
        recipe = Choice("recipe", options.recipe or FINETUNING, "of finetune")
        shown = {*available_settings(self.base, known_keys), "precision", "head"}
        settings = [choice for name, choice in chosen.items() if name in shown]
        about = (recipe, describe_source(subject.source), *subject.rows, route)
        loading = timing.loading(chosen["workers"].value)
        return PlannedTraining(
            command="finetune",
            request=request_of(options),
            config=config,
            facts=subject.facts,
            machine=subject.machine,
            choices=(*about, *settings, *((decay,) if decay else ())),
            timing=timing,
            other_seconds=other,
            remarks=tuple(subject.remarks(chosen["size"].value, loading)),
            lists={"train": subject.videos, "test": subject.tested},
        )

    def _filled(self, chosen: Mapping[str, Choice], data: Mapping[str, Any], out: str) -> Config:
        """Return the recipe with the chosen settings, the videos and the source's network."""
        config = filled_recipe(self.base, chosen, data, out)
        between = max(1, config.train_cfg.max_epochs // _VALIDATIONS)
        config.train_cfg.val_interval = config.default_hooks.checkpoint.interval = between
        config.run_page = {"videos": PAGE_VIDEOS, "tested": True}
        config.pretrained = RANDOM
        if self.subject.source is not None:
            frozen, size = chosen["frozen"].value, chosen["size"].value
            take_network(config, self.subject.source, frozen)
            if is_transformer(self.subject.source):
                decay = layer_decay(self.subject.source, frozen)
                config.optim_wrapper.paramwise_cfg = {"no_decay": list(NO_DECAY)}
                if decay is not None:
                    config.optim_wrapper.paramwise_cfg.layer_decay = decay.value
            own_size = size == self.subject.source.train_size
            for loader in (config.val_dataloader, config.test_dataloader):
                pipeline = loader.dataset.pipeline
                loader.dataset.pipeline = [
                    step_of_source(step, self.subject.source, own_size) for step in pipeline
                ]
        if chosen["head"].value == "attentive":
            _add_attentive_head(config)
        if self.starts_linearly:
            _start_linearly(config)
        complete_classifier(config)
        return config


def _start_linearly(config: Config) -> None:
    """Change a planned config, in place: start the classifier from a probe of the features."""
    training, tested = config.train_dataloader, config.val_dataloader
    pipeline = tested.dataset.pipeline  # the test pipeline does not augment
    dataset = {**training.dataset, "pipeline": pipeline, "on_error": "skip"}
    loader = {**tested, "num_workers": training.num_workers, "dataset": dataset}
    config.custom_hooks = [
        *config.custom_hooks,
        {"type": "LinearStartHook", "dataloader": loader},
    ]


def _add_attentive_head(config: Config) -> None:
    """Change a planned config, in place: use one attentive probe with the optimiser's settings."""
    wrapper, linear = config.optim_wrapper, config.model.cls_head
    config.model.cls_head = {
        "type": "AttentiveProbeHead",
        "num_classes": linear.num_classes,
        "in_channels": None,
        "lrs": [wrapper.optimizer.lr],
        "weight_decays": [wrapper.optimizer.weight_decay],
    }
    wrapper.constructor, wrapper.paramwise_cfg = "ProbeGridConstructor", None
