"""Finetuning on labelled videos with settings that are chosen for them, test and page included."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config

from sce_video.datasets.labelled import NO_COLUMNS, GroupColumns, LabelledVideos, read_pair
from sce_video.datasets.sources import is_table
from sce_video.datasets.video_list import split_segment, video_of
from sce_video.engine.config.check import options_of_settings
from sce_video.engine.config.load import load_config
from sce_video.engine.recipes import FINETUNING
from sce_video.engine.run_json import Choice
from sce_video.engine.runner import RANDOM
from sce_video.evaluation.functional.linear_probe import held_out
from sce_video.evaluation.functional.statistics import group_ids
from sce_video.inference.network_input import TEST_CROPS
from sce_video.runs.choices import choose_epochs, this_machine, warmup_and_momentum
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
from sce_video.runs.folder_facts import examine_folder
from sce_video.runs.page import train_with_page
from sce_video.runs.planned_config import resumable_config
from sce_video.runs.pretrain import (
    PRECISIONS,
    PlannedTraining,
    Timing,
    add_budget,
    check_length,
    claimed_plan,
    count_seconds,
    filled_recipe,
    given_values,
    measure,
)
from sce_video.runs.start_weights import Source, find_source
from sce_video.utils.files import read_json
from sce_video.utils.run_files import RESULTS

#: In place of a source: random weights.
NONE = "none"
#: Share of the videos, or of the groups, that is held out where no test set is given.
_HELD_OUT = 0.25
_VALIDATIONS = 5  # during a training, and checkpoints
_PAGE_VIDEOS, _PAGE_SECONDS, _PROBED_CLIPS = 64, 20.0, 4


def labelled_parts(
    train: str | Path,
    test: str | Path | None,
    *,
    data_root: str | Path | None = None,
    group_pattern: str | None = None,
    columns: GroupColumns = NO_COLUMNS,
    few: int | None = None,
    seed: int = 0,
) -> tuple[LabelledVideos, LabelledVideos, tuple[Choice, ...]]:
    """The videos to train and to test with, and sentences on them.

    Arguments and errors are those of :func:`finetune`. Without a test set a quarter of the videos
    of each class, or of the groups, is held out by the seed; of segments a quarter of the
    recordings, or, where each has the only segments of a class, what is last in each. ``few`` are
    drawn from the rest.
    """
    root = None if data_root is None else str(data_root)
    videos, tested = read_pair(str(train), None if test is None else str(test), root, columns)
    if tested is not None and (group_pattern is not None or columns != NO_COLUMNS):
        raise ValueError("groups and folds are held out where there is no --test. Remove one")
    reason = "given"
    if tested is None:
        kept, held, reason = _divided(videos, group_pattern, columns, seed)
        if not held.any():
            raise ValueError(f"no class of {train} has two videos, one to test: give --test")
        tested, videos = videos.subset(np.flatnonzero(held)), videos.subset(np.flatnonzero(kept))
    all_of_them = len(videos)
    if few is not None:
        videos = videos.few(few, seed)
    of = (
        f"{few} of each class, of {all_of_them}, drawn by the seed" if few else "all that are given"
    )
    rows = (Choice("train", _counted(videos), of), Choice("test", _counted(tested), reason))
    return videos, tested, rows


def _divided(
    videos: LabelledVideos, group_pattern: str | None, columns: GroupColumns, seed: int
) -> tuple[np.ndarray, np.ndarray, str]:
    """Masks (N,) of what is to train and to test with, and a sentence on them."""
    if videos.folds:
        held = videos.in_fold(columns)
        tested = videos.folds[int(np.argmax(held))]
        return ~held, held, f"no --test: the fold {tested} of {columns.fold_name} is held out"
    given = group_pattern is not None or bool(videos.groups)
    groups, segments = None, not given and _are_segments(videos)
    recordings = np.unique(_recordings(videos), return_inverse=True)[1]
    reason = "no --test: a quarter of each class is held out, drawn by the seed"
    if group_pattern is not None:
        groups, _ = group_ids(videos.paths(), group_pattern)
        reason = f"no --test: a quarter of the groups {group_pattern} is held out"
    elif videos.groups:
        groups = torch.from_numpy(np.unique(videos.groups, return_inverse=True)[1])
        reason = f"no --test: a quarter of the groups of {columns.group} is held out"
    elif segments and len(np.unique(recordings)) < len(videos):
        groups = torch.from_numpy(recordings)
        reason = "no --test: a quarter of the recordings is held out, drawn by the seed"
    held = held_out(torch.from_numpy(videos.videos.labels), groups, _HELD_OUT, seed).numpy()
    if held.any() or not segments:
        return ~held, held, reason
    kept, held = _cut_in_time(videos, recordings)
    reason = "no --test, no recording to hold out: the last quarter of each is tested"
    across = len(videos) - int((kept | held).sum())
    return kept, held, reason + f", {across} segments reach across the cut" * bool(across)


def _recordings(videos: LabelledVideos) -> list[str]:
    """The file of each video; of a segment that of its recording, whose segments look alike."""
    return [video_of(str(Path(videos.root, path).absolute())) for path in videos.paths()]


def _are_segments(videos: LabelledVideos) -> bool:
    return any(split_segment(os.path.join(videos.root, path)) for path in videos.paths())


def _counted(videos: LabelledVideos) -> str:
    """``12 videos``, or ``12 segments of 3 recordings``."""
    if not _are_segments(videos):
        return f"{len(videos)} videos"
    count = len(set(_recordings(videos)))
    return f"{len(videos)} segments of {count} recording{'s' * (count != 1)}"


def _cut_in_time(videos: LabelledVideos, recordings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Masks (N,) of what is before and after a cut in each recording; neither of what is across.

    After it are the last quarter of its segments. Raises ValueError where a class is not before.
    """
    found = (split_segment(os.path.join(videos.root, path)) for path in videos.paths())
    spans = np.array([(0.0, np.inf) if s is None else s[1:] for s in found])
    before, after = np.ones(len(videos), bool), np.zeros(len(videos), bool)
    for recording in np.unique(recordings):
        own = np.flatnonzero(recordings == recording)
        if len(own) > 1:
            cut = np.sort(spans[own, 0])[-max(1, round(_HELD_OUT * len(own)))]
            after[own], before[own] = spans[own, 0] >= cut, spans[own, 1] <= cut
    labels = videos.videos.labels
    missing = sorted(set(labels.tolist()) - set(labels[before].tolist()))
    if missing:
        raise ValueError(
            f"no recording of {videos.source} can be held out whole, and in the first three "
            f"quarters of each there is no {videos.name(missing[0])!r}: label it in another "
            "recording, or give --test"
        )
    return before, after


def planned_finetuning(
    source: str | Path,
    train: str | Path,
    out: str | Path,
    *,
    test: str | Path | None = None,
    data_root: str | Path | None = None,
    group_pattern: str | None = None,
    columns: GroupColumns = NO_COLUMNS,
    few: int | None = None,
    hours: float | None = None,
    settings: Mapping[str, Any] | None = None,
    begun: float | None = None,
) -> PlannedTraining:
    """Examine source, videos and machine, choose what is not given, and measure a few steps.

    Arguments and errors as of :func:`finetune`; ``begun`` as of
    :func:`~sce_video.runs.pretrain.planned_pretraining`. Nothing is written to ``out``: lists of
    the videos, where they are needed, come with :func:`~sce_video.runs.pretrain.write_config`.
    """
    start, given = time.monotonic(), dict(settings or {})
    sets = {"source": source, "train": train, "test": test, "data_root": data_root, "few": few}
    held = {"group_pattern": group_pattern, **asdict(columns)}
    request = given_values({**sets, **held, "hours": hours, **given})
    if given.get("precision", PRECISIONS[0]) not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise ValueError(f"precision must be one of {known}, got {given['precision']!r}")
    check_length(hours, given)
    base = load_config(FINETUNING)
    of_recipe = {k: v for k, v in given.items() if k not in ("precision", "head")}
    options_of_settings(base, of_recipe)  # unknown ones end here
    videos, tested, rows = labelled_parts(
        train,
        test,
        data_root=data_root,
        group_pattern=group_pattern,
        columns=columns,
        few=few,
        seed=given.get("seed", 0),
    )
    network = None if str(source) == NONE else find_source(source)
    machine, counts = this_machine(), np.bincount(videos.videos.labels)
    of_list = videos.videos if videos.listed and not is_table(videos.root) else None
    examined = examine_folder(videos.root, of_list).check_readable()
    facts = replace(examined, num_videos=len(videos))
    per_class = int(np.median(counts[counts > 0]))
    chosen = choose_finetuning(facts, machine, network, per_class, given, videos.videos.classes)
    decay = layer_decay(network, chosen["frozen"].value)
    # Measured with the chosen network and batch, and any length: epochs follow from the speed.
    with tempfile.TemporaryDirectory(prefix="sce_video_") as lists:
        timing = measure(_config(base, chosen, _data(videos, tested, lists), network, out))
    data = _data(videos, tested, out, write=False)
    now, after = time.monotonic(), _seconds_after(timing, len(videos), len(tested), chosen)
    other = 0.0 if hours is None else now - (start if begun is None else begun) + after
    steps = math.ceil(len(videos) / chosen["batch"].value)
    least = FROM_SCRATCH if network is None else LEAST_STEPS
    seconds = timing.epoch(machine.cores, chosen["workers"].value)
    epochs = chosen.get("epochs") or choose_epochs(steps, least, hours, seconds, other)
    warmup, _ = warmup_and_momentum(epochs.value, epochs.value * steps)
    chosen |= {"epochs": epochs, "warmup": chosen.get("warmup", warmup)}
    config = _config(base, chosen, data, network, out)
    if hours is not None:
        add_budget(config, hours, other - after, after)
    shared = len({*_recordings(videos)} & {*_recordings(tested)})
    loading = timing.loading(chosen["workers"].value)
    each, size = counts[counts > 0].tolist(), chosen["size"].value
    remarks = finetuning_notes(each, len(tested), shared, size, loading)
    about = (Choice("recipe", FINETUNING, "of finetune"), _of_source(network), *rows)
    return PlannedTraining(
        command="finetune",
        request=request,
        config=config,
        facts=facts,
        machine=machine,
        choices=(*about, *chosen.values(), *((decay,) if decay else ())),
        timing=timing,
        other_seconds=other,
        remarks=tuple(remarks),
        lists=(("train", videos), ("test", tested)),
    )


def _of_source(source: Source | None) -> Choice:
    """The source as a choice, with what is known of it."""
    if source is None:
        return Choice("source", NONE, "random weights")
    kind = source.settings.backbone["type"].rpartition(".")[2]
    kind = source.family if kind == "HFEncoder" else kind
    head = "; its classifier is replaced" if source.is_classifier else ""
    return Choice("source", source.name, f"{kind}, {source.parameters:,} weights{head}")


def _data(
    videos: LabelledVideos, tested: LabelledVideos, out: str | Path, write: bool = True
) -> dict[str, Any]:
    """Changes of the recipe by key that name the videos; their lists may be written."""
    sets = {"train": videos.dataset(out, "train", write)}
    sets |= dict.fromkeys(("val", "test"), tested.dataset(out, "test", write))
    changes = {
        f"{part}_dataloader.dataset.{name}": value
        for part, settings in sets.items()
        for name, value in settings.items()
    }
    head = {"model.cls_head.num_classes": videos.num_classes}
    # Broken files are listed in the results, and do not end a test.
    return {**changes, **head, "test_dataloader.dataset.on_error": "skip"}


def _config(
    base: Config,
    chosen: Mapping[str, Choice],
    data: Mapping[str, Any],
    source: Source | None,
    out: str | Path,
) -> Config:
    """The recipe with the chosen settings, on the videos, from the network of the source."""
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
        dataset.pipeline = [_step(step, source, own_size) for step in dataset.pipeline]


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


def _step(step: Mapping[str, Any], source: Source, own_size: bool) -> dict[str, Any]:
    """A step of a test pipeline that gives the frames which the network of the source takes.

    ``own_size``: its test crop is that of the source, which may be larger than the training's.
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


def _seconds_after(
    timing: Timing, trained: int, tested: int, chosen: Mapping[str, Choice]
) -> float:
    """Seconds of the test, the linear probe and the page; ``features`` counts two clips."""
    views = chosen["clips"].value * chosen["crops"].value
    probe = (trained + tested) * timing.features(_PROBED_CLIPS / 2)
    page = min(_PAGE_VIDEOS, trained) * timing.features(1) + _PAGE_SECONDS
    return tested * timing.features(views / 2) + probe + page


def finetune(
    source: str | Path,
    train: str | Path,
    out: str | Path,
    *,
    test: str | Path | None = None,
    data_root: str | Path | None = None,
    group_pattern: str | None = None,
    columns: GroupColumns = NO_COLUMNS,
    few: int | None = None,
    hours: float | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> dict[str, float]:
    """Train a classifier of videos from a pretrained network, test it, and write a page.

    Every setting that is not given is chosen for source, videos and machine
    (:mod:`.finetune_choices`), and written with its reason to ``out/config.py``.

    Args:
        source: What :func:`~sce_video.runs.start_weights.find_source` takes: a run, a checkpoint,
            ``hf:NAME``, an exported folder; or "none" for random weights.
        train: What :func:`~sce_video.datasets.labelled.read_labelled` takes: a folder with a
            sub-folder for each class, a table, a list, a CSV file.
        out: Folder of the run, for config, logs, checkpoints, results and the page ``run.html``.
        test: As ``train``; without it a quarter of the training videos, or of the recordings of
            segments, is held out.
        data_root: Folder that the paths of lists and CSV files are relative to.
        group_pattern: Without ``test``: regular expression with one group, searched in the paths;
            whole groups are held out (``person(\\\\d+)``).
        columns: Instead: columns of the CSV file ``train`` with groups, or with folds, of which one
            is held out.
        few: Train with so many videos of each class, drawn by the seed.
        hours: Budget of the call; without it (and ``epochs``) as long as a first result takes.
        overwrite: Remove an earlier training from ``out``.
        settings: ``precision``, ``head`` ("linear" or "attentive"), and those that the recipe
            declares: ``epochs=50, frames=16, frozen=4, lr=1e-4, seed=1, ...``; others are refused.

    Returns:
        The metrics of the test by name, as in ``out/results.json``; none of a training that a
        signal has stopped.

    Raises:
        FileNotFoundError: there is no such source.
        ValueError: sets that cannot be used, or do not fit each other or the source; ``out`` holds
            an earlier training.
    """
    begun = time.monotonic()

    def plan() -> PlannedTraining:
        return planned_finetuning(
            source,
            train,
            out,
            test=test,
            data_root=data_root,
            group_pattern=group_pattern,
            columns=columns,
            few=few,
            hours=hours,
            settings=settings,
        )

    with claimed_plan(out, plan, overwrite) as config:
        runner = train_with_page(count_seconds(resumable_config(config), begun), overwrite)
    if getattr(runner.train_loop, "stopped_by", None) is not None:
        return {}
    return read_json(Path(out, RESULTS))["metrics"]
