"""Plan of a finetuning run: source, videos, choices, measured times, and the config."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mmengine.config import Config

from sce_video.datasets.labelled import GroupColumns, LabelledVideos
from sce_video.datasets.sources import is_table, listed_extensions
from sce_video.engine.config.changes import available_settings
from sce_video.engine.config.check import known_keys, options_of_settings
from sce_video.engine.config.load import load_config
from sce_video.engine.recipes import FINETUNING
from sce_video.engine.run_json import Choice
from sce_video.engine.runner import RANDOM
from sce_video.inference.network_input import TEST_CROPS
from sce_video.options.training import NONE, FinetuneOptions, given_settings, request_of
from sce_video.runs.choices import Machine, choose_epochs, this_machine, warmup_and_momentum
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
from sce_video.runs.folder_facts import FolderFacts, examine_folder
from sce_video.runs.labelled_parts import labelled_parts, recordings_of
from sce_video.runs.planned_training import PlannedTraining, add_budget, filled_recipe
from sce_video.runs.start_weights import Source, find_source
from sce_video.runs.timing import Timing, measure

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


@dataclass(frozen=True)
class _Subject:
    """Videos, machine and settings for which a finetuning run is planned.

    Attributes:
        videos: Training videos.
        tested: Test videos.
        rows: Rows of the plan that describe the videos.
        facts: Facts about the training videos.
        machine: Machine on which the run trains.
        source: Network from which the run starts; None for random weights.
        given: Settings that the user gave, by name.
    """

    videos: LabelledVideos
    tested: LabelledVideos
    rows: tuple[Choice, ...]
    facts: FolderFacts
    machine: Machine
    source: Source | None
    given: dict[str, Any]

    @property
    def counts(self) -> np.ndarray:
        """(K,) numbers of training videos in the classes that have any."""
        counts = np.bincount(self.videos.videos.labels)
        return counts[counts > 0]


def plan_finetuning(options: FinetuneOptions, begun: float) -> PlannedTraining:
    """Examine source, videos and machine, choose the remaining settings, and time a few steps.

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
    subject = _examine(options)
    machine, facts, source = subject.machine, subject.facts, subject.source
    per_class, classes = int(np.median(subject.counts)), subject.videos.videos.classes
    head = _own_head(base, recipe, options.head)
    chosen = choose_finetuning(facts, machine, source, per_class, subject.given, classes, head)
    decay = layer_decay(source, chosen["frozen"].value)
    # Measure with the chosen network and batch, for any length. The speed determines the epochs.
    with tempfile.TemporaryDirectory(prefix="sce_video_") as lists:
        timing = measure(_config(base, chosen, _data(subject, lists), source, options.out))
    now, after = time.monotonic(), _seconds_after(timing, subject, chosen)
    other = 0.0 if options.hours is None else now - begun + after
    steps = math.ceil(len(subject.videos) / chosen["batch"].value)
    if "epochs" not in chosen:
        least = FROM_SCRATCH if source is None else LEAST_STEPS
        seconds = timing.epoch(machine.cores, chosen["workers"].value)
        chosen["epochs"] = choose_epochs(steps, least, options.hours, seconds, other)
    epochs = chosen["epochs"].value
    warmup, _ = warmup_and_momentum(epochs, epochs * steps)
    chosen.setdefault("warmup", warmup)
    data = _data(subject, options.out, write=False)
    config = _config(base, chosen, data, source, options.out)
    if options.hours is not None:
        add_budget(config, options.hours, other - after, after)
    about = (Choice("recipe", recipe, "of finetune"), _of_source(source), *subject.rows)
    shown = {*available_settings(base, known_keys), "precision", "head"}
    chosen = {name: choice for name, choice in chosen.items() if name in shown}
    return PlannedTraining(
        command="finetune",
        request=request_of(options),
        config=config,
        facts=facts,
        machine=machine,
        choices=(*about, *chosen.values(), *((decay,) if decay else ())),
        timing=timing,
        other_seconds=other,
        remarks=_remarks(subject, chosen, timing),
        lists={"train": subject.videos, "test": subject.tested},
    )


def _own_head(base: Config, recipe: str, given: str | None) -> Choice | None:
    """Return the classifier of a recipe that has another one than the shipped recipe.

    Raises:
        ValueError: If the user asks for a classifier of the shipped recipe.
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


def _examine(options: FinetuneOptions) -> _Subject:
    """Examine the videos, the source and the machine."""
    words = {"precision": options.precision, "head": options.head}
    given = given_settings(options)
    given |= {name: word for name, word in words.items() if word is not None}
    videos, tested, rows = labelled_parts(
        str(options.train),
        options.test,
        data_root=options.data_root,
        group_pattern=options.group_pattern,
        columns=GroupColumns(options.group_column, options.fold_column),
        few=options.few,
        seed=given.get("seed", 0),
        extensions=listed_extensions(options.all_files),
    )
    source = None if options.source == NONE else find_source(str(options.source))
    of_list = videos.videos if videos.listed and not is_table(videos.root) else None
    facts = examine_folder(videos.root, of_list, videos.extensions).check_readable()
    facts = replace(facts, num_videos=len(videos))
    return _Subject(videos, tested, rows, facts, this_machine(), source, given)


def _remarks(subject: _Subject, chosen: Mapping[str, Choice], timing: Timing) -> tuple[str, ...]:
    """Return sentences about anything unusual in the videos and their loading."""
    shared = {*recordings_of(subject.videos)} & {*recordings_of(subject.tested)}
    loading, size = timing.loading(chosen["workers"].value), chosen["size"].value
    counts, tested = subject.counts.tolist(), len(subject.tested)
    return tuple(finetuning_notes(counts, tested, len(shared), size, loading))


def _of_source(source: Source | None) -> Choice:
    """Describe the source as a choice, with its kind and size."""
    if source is None:
        return Choice("source", NONE, "random weights")
    kind = source.settings.backbone["type"].rpartition(".")[2]
    kind = source.family if kind == "HFEncoder" else kind
    head = "; its classifier is replaced" if source.is_classifier else ""
    return Choice("source", source.name, f"{kind}, {source.parameters:,} weights{head}")


def _data(subject: _Subject, out: str, write: bool = True) -> dict[str, Any]:
    """Return recipe changes by key that select the videos, and write their lists if ``write``."""
    sets = {"train": subject.videos.dataset(out, "train", write)}
    sets |= dict.fromkeys(("val", "test"), subject.tested.dataset(out, "test", write))
    changes = {
        f"{part}_dataloader.dataset.{name}": value
        for part, settings in sets.items()
        for name, value in settings.items()
    }
    head = {"model.cls_head.num_classes": subject.videos.num_classes}
    # A broken file must not end a test. Results list such files.
    return {**changes, **head, "test_dataloader.dataset.on_error": "skip"}


def _config(
    base: Config,
    chosen: Mapping[str, Choice],
    data: Mapping[str, Any],
    source: Source | None,
    out: str,
) -> Config:
    """Return the recipe with the chosen settings, the videos, and the source's network."""
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
    """Set a source's network, frames and parameter groups in a planned config, in place."""
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
        dataset.pipeline = [_step(step, source, own_size) for step in dataset.pipeline]


def _add_attentive_head(config: Config) -> None:
    """Add one attentive probe with the optimiser's learning rate to a planned config, in place."""
    wrapper, of_linear = config.optim_wrapper, config.model.cls_head
    config.model.cls_head = {
        "type": "AttentiveProbeHead",
        "num_classes": of_linear.num_classes,
        "in_channels": None,
        "lrs": [wrapper.optimizer.lr],
        "weight_decays": [wrapper.optimizer.weight_decay],
    }
    wrapper.constructor, wrapper.paramwise_cfg = "ProbeGridConstructor", None


def _step(step: Mapping[str, Any], source: Source, own_size: bool) -> dict[str, Any]:
    """Return a step of a test pipeline, changed to produce the frames that the source accepts.

    With ``own_size``, the test crop is the source's, which may be larger than the training crop.
    """
    settings, changed, kind = source.settings, dict(step), step["type"]
    if kind in TEST_CROPS and own_size:
        changed[TEST_CROPS[kind]] = settings.crop_size
    if kind != "ResizeShortSide":
        return changed
    side = settings.short_side if own_size else step["size"]
    if settings.resize == "linear":
        return {**changed, "size": side}
    whole = settings.resize in ("square", "network")
    crop = settings.crop_size if own_size else step["size"]
    how = settings.resize if settings.resize in ("bilinear", "bicubic") else "bilinear"
    return {
        "type": "ResizeAsProcessor",
        "size": [crop, crop] if whole else side,
        "interpolation": how,
    }


def _seconds_after(timing: Timing, subject: _Subject, chosen: Mapping[str, Choice]) -> float:
    """Estimate the seconds for the test, the linear probe and the page."""
    trained, tested = len(subject.videos), len(subject.tested)
    views = chosen["clips"].value * chosen["crops"].value
    # ``features`` counts two clips per video.
    probe = (trained + tested) * timing.features(_PROBED_CLIPS / 2)
    page = min(_PAGE_VIDEOS, trained) * timing.features(1) + _PAGE_SECONDS
    return tested * timing.features(views / 2) + probe + page
