"""Plan of a finetuning run: its route, choices, measured times, and the config."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from mmengine.config import Config

from sce_video.engine.config.changes import available_settings
from sce_video.engine.config.check import known_keys
from sce_video.engine.config.load import load_config, options_of_settings
from sce_video.engine.recipes import FINETUNING
from sce_video.engine.run_json import Choice
from sce_video.engine.runner import RANDOM
from sce_video.options.training import FROZEN, FinetuneOptions, given_settings, request_of
from sce_video.runs.choices import choose_epochs, warmup_and_momentum
from sce_video.runs.configs import complete_classifier
from sce_video.runs.continued import NO_DECAY, take_network
from sce_video.runs.finetune_choices import (
    FROM_SCRATCH,
    LEAST_STEPS,
    choose_finetuning,
    finetuning_notes,
    is_transformer,
    layer_decay,
)
from sce_video.runs.finetune_routes import (
    better_route,
    known_route,
    trial_seconds,
    try_finetuning,
)
from sce_video.runs.finetune_subject import (
    Subject,
    data_settings,
    describe_source,
    examine_labelled,
    step_of_source,
)
from sce_video.runs.fold_probe import percent
from sce_video.runs.labelled_parts import recordings_of
from sce_video.runs.plan_frozen import FrozenPlan, choose_frozen, plan_frozen
from sce_video.runs.planned_training import (
    PlannedTraining,
    Timing,
    add_budget,
    filled_recipe,
    measure,
)
from sce_video.runs.start_weights import Source

#: Classifier of the shipped recipe
_HEAD = "I3DHead"
#: Number of validations, and of checkpoints, during a run
_VALIDATIONS = 5
#: Number of videos that the run's page embeds and draws
_PAGE_VIDEOS = 64
#: Seconds that the page needs in addition
_PAGE_SECONDS = 20.0
#: Number of clips per video whose features the linear probe uses
_PROBED_CLIPS = 4


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
    recipe = options.recipe or FINETUNING
    base = load_config(recipe)
    options_of_settings(base, given_settings(options))  # reports unknown settings early
    head = _own_head(base, recipe, options.head)
    if options.recipe is not None and options.route == FROZEN:
        raise ValueError(
            f"--route {FROZEN} fits a linear classifier and fills in no recipe. Remove --route or "
            "--recipe"
        )
    subject = examine_labelled(options)
    if options.route == FROZEN:
        frozen = choose_frozen(subject, options.hours, begun, _PAGE_VIDEOS)
        given = Choice("route", FROZEN, "given")
        return plan_frozen(options, subject, frozen, given, begun, _PAGE_VIDEOS)
    training = _Training(base, subject, options.out, recipe, head)
    route = known_route(options, subject, training.chosen)
    if route is None or route.value == FROZEN:
        frozen = choose_frozen(subject, options.hours, begun, _PAGE_VIDEOS)
        route = route or _compare(options, begun, training, frozen)
        if route.value == FROZEN:
            return plan_frozen(options, subject, frozen, route, begun, _PAGE_VIDEOS)
    return training.plan(options, begun, route)


def _compare(
    options: FinetuneOptions, begun: float, training: _Training, frozen: FrozenPlan
) -> Choice:
    """Compare frozen features with a short finetuning, and return the better route."""
    if frozen.found is None:
        reason = "the labelled videos are too few to compare the routes"
        return Choice("route", FROZEN, reason)
    seconds = trial_seconds(options.hours, training.planned_seconds)
    if not training.fits(options.hours, time.monotonic() - begun + seconds):
        reason = f"{options.hours:g} hours do not suffice to try a finetuning and then train"
        return Choice("route", FROZEN, reason)
    count, minutes = len(frozen.features.labels), max(1, round(seconds / 60))
    print(
        f"frozen features reach {percent(frozen.found.hits(), frozen.features.units)} on held-out "
        f"videos. Finetuning is tried on {count} labelled videos for up to {minutes} minute"
        f"{'s' * (minutes > 1)} (--route {FROZEN} skips this)",
        flush=True,
    )
    share = seconds / max(training.planned_seconds, 1e-6)
    epochs = max(1, min(training.epochs, int(share * training.epochs)))
    trial = try_finetuning(
        training.subject,
        frozen.features,
        frozen.found.folds,
        lambda data, folder: training.config(data, folder, epochs),
        seconds if epochs < training.epochs else None,  # a budget would prolong a whole training
    )
    return better_route(frozen.found, frozen.features.units, trial, training.epochs)


class _Training:
    """A finetuning run with gradient training, with measured times.

    Args:
        base: The recipe.
        subject: Source, videos and machine.
        out: Folder of the run.
        recipe: Name of the recipe.
        head: Classifier of the recipe; None chooses one.
    """

    def __init__(
        self, base: Config, subject: Subject, out: str, recipe: str, head: Choice | None
    ) -> None:
        self.base, self.subject, self.out, self.recipe = base, subject, out, recipe
        per_class = int(np.median(subject.counts))
        classes = subject.videos.videos.classes
        known = (subject.facts, subject.machine, subject.source)
        self.chosen = choose_finetuning(*known, per_class, subject.given, classes, head)

    @cached_property
    def timing(self) -> Timing:
        """Times with the chosen network and batch, for any length. They determine the epochs."""
        with tempfile.TemporaryDirectory(prefix="sce_video_") as lists:
            data = data_settings(self.subject, lists)
            return measure(_config(self.base, self.chosen, data, self.subject.source, self.out))

    @property
    def steps(self) -> int:
        """Optimiser steps of an epoch."""
        return math.ceil(len(self.subject.videos) / self.chosen["batch"].value)

    @property
    def epoch_seconds(self) -> float:
        """Estimated seconds of an epoch."""
        return self.timing.epoch(self.subject.machine.cores, self.chosen["workers"].value)

    @cached_property
    def seconds_after(self) -> float:
        """Estimated seconds of the test, the linear probe and the page."""
        timing, trained, tested = self.timing, len(self.subject.videos), len(self.subject.tested)
        views = self.chosen["clips"].value * self.chosen["crops"].value
        # ``features`` counts two clips of a video.
        probe = (trained + tested) * timing.features(_PROBED_CLIPS / 2)
        page = min(_PAGE_VIDEOS, trained) * timing.features(1) + _PAGE_SECONDS
        return tested * timing.features(views / 2) + probe + page

    def fits(self, hours: float | None, spent: float) -> bool:
        """Return whether a budget suffices for an epoch after ``spent`` seconds."""
        needed = spent + self.epoch_seconds + self.seconds_after
        return hours is None or needed <= 3600 * hours

    def choose_length(self, hours: float | None, other: float) -> Choice:
        """Choose the epochs of a command that takes ``other`` seconds besides the training."""
        if "epochs" in self.chosen:
            return self.chosen["epochs"]
        least = FROM_SCRATCH if self.subject.source is None else LEAST_STEPS
        return choose_epochs(self.steps, least, hours, self.epoch_seconds, other)

    @property
    def epochs(self) -> int:
        """Epochs without a budget."""
        return self.choose_length(None, 0.0).value

    @property
    def planned_seconds(self) -> float:
        """Estimated seconds of a training run without a budget."""
        return self.epochs * self.epoch_seconds

    def config(self, data: Mapping[str, Any], out: str, epochs: int) -> Config:
        """Return the config to train for this many epochs on the videos in ``data``."""
        warmup, _ = warmup_and_momentum(epochs, epochs * self.steps)
        chosen = {"warmup": warmup, **self.chosen, "epochs": Choice("epochs", epochs, "a trial")}
        return _config(self.base, chosen, data, self.subject.source, out)

    def plan(self, options: FinetuneOptions, begun: float, route: Choice) -> PlannedTraining:
        """Return the plan of the whole training, which a budget counts from ``begun``."""
        subject, chosen, timing = self.subject, self.chosen, self.timing
        now, after = time.monotonic(), self.seconds_after
        other = 0.0 if options.hours is None else now - begun + after
        chosen["epochs"] = self.choose_length(options.hours, other)
        epochs = chosen["epochs"].value
        warmup, _ = warmup_and_momentum(epochs, epochs * self.steps)
        chosen.setdefault("warmup", warmup)
        data = data_settings(subject, options.out, write=False)
        config = _config(self.base, chosen, data, subject.source, options.out)
        if options.hours is not None:
            add_budget(config, options.hours, other - after, after)
        decay = layer_decay(subject.source, chosen["frozen"].value)
        recipe = Choice("recipe", self.recipe, "of finetune")
        shown = {*available_settings(self.base, known_keys), "precision", "head"}
        chosen = {name: choice for name, choice in chosen.items() if name in shown}
        about = (recipe, describe_source(subject.source), *subject.rows, route)
        return PlannedTraining(
            command="finetune",
            request=request_of(options),
            config=config,
            facts=subject.facts,
            machine=subject.machine,
            choices=(*about, *chosen.values(), *((decay,) if decay else ())),
            timing=timing,
            other_seconds=other,
            remarks=_remarks(subject, chosen, timing),
            lists={"train": subject.videos, "test": subject.tested},
        )


def _own_head(base: Config, recipe: str, given: str | None) -> Choice | None:
    """Return a recipe's classifier if it differs from the shipped recipe's classifier.

    Raises:
        ValueError: If the user requests a classifier of the shipped recipe.
    """
    kind = base.model.cls_head.type
    if kind == _HEAD:
        return None
    if given is not None:
        raise ValueError(
            f"--head {given} replaces the classifier of the recipe {recipe}, which is a {kind}. "
            "Remove --head or --recipe"
        )
    return Choice("head", kind, "of the recipe")


def _remarks(subject: Subject, chosen: Mapping[str, Choice], timing: Timing) -> tuple[str, ...]:
    """Return sentences about anything unusual in the videos and their loading."""
    shared = {*recordings_of(subject.videos)} & {*recordings_of(subject.tested)}
    loading, size = timing.loading(chosen["workers"].value), chosen["size"].value
    counts, tested = subject.counts.tolist(), len(subject.tested)
    return tuple(finetuning_notes(counts, tested, len(shared), size, loading))


def _config(
    base: Config,
    chosen: Mapping[str, Choice],
    data: Mapping[str, Any],
    source: Source | None,
    out: str,
) -> Config:
    """Return the recipe with the chosen settings, the videos and the source's network."""
    config = filled_recipe(base, chosen, data, out)
    between = max(1, config.train_cfg.max_epochs // _VALIDATIONS)
    config.train_cfg.val_interval = config.default_hooks.checkpoint.interval = between
    config.run_page = {"videos": _PAGE_VIDEOS, "tested": True}
    config.pretrained = RANDOM
    if source is not None:
        _start_from(config, source, chosen)
    if chosen["head"].value == "attentive":
        _add_attentive_head(config)
    complete_classifier(config)
    return config


def _start_from(config: Config, source: Source, chosen: Mapping[str, Choice]) -> None:
    """Change a planned config, in place: network, frames and parameter groups of a source."""
    frozen = chosen["frozen"].value
    take_network(config, source, frozen)
    if is_transformer(source):
        decay = layer_decay(source, frozen)
        config.optim_wrapper.paramwise_cfg = {"no_decay": list(NO_DECAY)}
        if decay is not None:
            config.optim_wrapper.paramwise_cfg.layer_decay = decay.value
    own_size = chosen["size"].value == source.train_size
    for part in ("val", "test"):
        dataset = config[f"{part}_dataloader"].dataset
        dataset.pipeline = [step_of_source(step, source, own_size) for step in dataset.pipeline]


def _add_attentive_head(config: Config) -> None:
    """Change a planned config, in place: one attentive probe, with the rate of the optimiser."""
    wrapper, of_linear = config.optim_wrapper, config.model.cls_head
    config.model.cls_head = {
        "type": "AttentiveProbeHead",
        "num_classes": of_linear.num_classes,
        "in_channels": None,
        "lrs": [wrapper.optimizer.lr],
        "weight_decays": [wrapper.optimizer.weight_decay],
    }
    wrapper.constructor, wrapper.paramwise_cfg = "ProbeGridConstructor", None
