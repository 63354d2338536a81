"""The plan of a linear classifier on frozen features: clips, readout and config."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import Tensor

from sce_video.engine.config.load import load_config
from sce_video.engine.recipes import FROZEN_FEATURES
from sce_video.engine.run_json import Choice
from sce_video.evaluation.rows import build_eval_dataloader, collect_rows
from sce_video.inference.model import build_model
from sce_video.inference.multi_view import BatchRows, rows_of_views
from sce_video.models.backbones.frame_pools import frame_features
from sce_video.options.connect import FRAME_POOLS
from sce_video.options.training import FinetuneOptions, request_of
from sce_video.registry import MODELS
from sce_video.runs.choices import ChosenSettings
from sce_video.runs.configs import complete_classifier
from sce_video.runs.continued import clip_of_network, take_network
from sce_video.runs.finetune_choices import finetuning_notes
from sce_video.runs.finetune_subject import (
    Subject,
    data_settings,
    describe_source,
    step_of_source,
)
from sce_video.runs.frozen_readout import (
    USUAL_L2,
    USUAL_POOL,
    CrossValidation,
    FrozenFeatures,
    Readout,
    cross_validate,
    make_folds,
    percent,
)
from sce_video.runs.labelled_parts import recordings_of
from sce_video.runs.planned_training import PlannedTraining, Timing, filled_recipe
from sce_video.runs.start_weights import Source
from sce_video.utils.command import Progress
from sce_video.utils.stored_arguments import constructor_parameters

#: Maximum number of frames in an image network's clip.
_IMAGE_FRAMES = 8
#: Maximum length of an image network's clip in seconds. Motion needs frames that differ.
_IMAGE_SECONDS = 2.56
#: Maximum number of clips per video on a GPU.
_CLIPS = 10
#: Maximum number of clips per video without a GPU.
_CLIPS_ON_CPU = 5
#: Maximum number of compared videos: the 95 % interval is then at most three points to each side.
_COMPARED = 1000
#: Videos that are embedded to measure the time if nothing can be compared.
_TIMED = 4
#: Videos of a batch, which bound the memory.
_BATCH = 8
#: Views per forward pass.
_MAX_VIEWS = 32
#: Seconds of the page besides its features.
_PAGE_SECONDS = 20.0


@dataclass(frozen=True)
class FrozenPlan:
    """A linear classifier on frozen features that has not been fitted.

    Attributes:
        settings: Chosen and given settings by name.
        features: Features of the compared videos.
        found: Result of the cross-validation; None if there are too few videos for it.
    """

    settings: Mapping[str, Choice]
    features: FrozenFeatures
    found: CrossValidation | None

    @property
    def readout(self) -> Readout:
        """Readout that is fitted."""
        if self.found is not None:
            return self.found.readout
        pools = self.features.pools
        return Readout(USUAL_POOL if USUAL_POOL in pools else pools[0], USUAL_L2)


def choose_frozen(subject: Subject, seed: int) -> FrozenPlan:
    """Choose the clips, embed labelled videos, and use them to choose pool and weight decay.

    Args:
        subject: Source, videos and machine.
        seed: Seed of the compared videos and of the folds.

    Raises:
        ValueError: If the clip of the network does not fit the videos, or none can be read.
    """
    assert subject.source is not None
    settings = _choose_settings(subject, subject.source)
    units = torch.from_numpy(subject.units)
    labels = torch.from_numpy(np.asarray(subject.videos.videos.labels, dtype=np.int64))
    possible = make_folds(labels, units, seed) is not None
    drawn = _drawn(labels, units, _COMPARED if possible else _TIMED, seed)
    features = _embed(subject, subject.source, settings, drawn)
    folds = make_folds(features.labels, features.units, seed) if possible else None
    return FrozenPlan(
        settings, features, None if folds is None else cross_validate(features, folds)
    )


def _drawn(labels: Tensor, units: Tensor, most: int, seed: int) -> np.ndarray:
    """Return the numbers of at most about ``most`` videos, of whole units drawn by the seed."""
    if len(labels) <= most:
        return np.arange(len(labels))
    names, counts = units.unique(return_counts=True)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    taken = names[order[: max(1, int((counts[order].cumsum(0) <= most).sum()))]]
    return torch.nonzero(torch.isin(units, taken)).flatten().numpy()


def _choose_settings(subject: Subject, source: Source) -> dict[str, Choice]:
    """Choose the clips of a video and how they are read."""
    facts, machine, given = subject.facts, subject.machine, subject.given
    choices = ChosenSettings(given)
    if source.per_frame:
        seconds = min(_IMAGE_SECONDS, facts.duration)
        frames = max(1, min(_IMAGE_FRAMES, int(seconds * facts.fps + 0.01)))
        apart = f"{_IMAGE_FRAMES} frames {_IMAGE_SECONDS / _IMAGE_FRAMES:g} s apart"
        whole = f"the whole video of {facts.duration:.1f} s"
        reason = whole if facts.duration <= _IMAGE_SECONDS else apart
        seconds = choices.add(Choice("clip_duration", round(seconds, 2), reason))
        choices.add(Choice("frames", frames, "an image network sees each of them alone"))
    else:
        clip = clip_of_network(source, facts, given)
        seconds = choices.add(clip["clip_duration"])
        choices.add(clip["frames"])
    size = source.settings.crop_size
    enlarged = "; the videos are enlarged" if facts.short_side < size else ""
    choices.add(Choice("size", size, f"as the network was tested{enlarged}"))
    most = _CLIPS_ON_CPU if machine.gpu is None else _CLIPS
    clips = min(most, max(1, math.ceil(facts.duration / seconds - 0.1)))
    reason = f"of {seconds:g} s, in videos of {facts.duration:.1f} s"
    choices.add(Choice("clips", clips, reason))
    choices.add(Choice("crops", 1, "the central one, as in the fit"))
    choices.add(Choice("batch", _BATCH, "videos that are embedded at a time"))
    workers = max(1, machine.cores // 4) if machine.gpu is None else max(1, machine.cores - 1)
    choices.add(Choice("workers", min(16, workers), f"{machine.cores} cores"))
    choices.add(Choice("precision", "float32", "the features are computed once"))
    choices.add_others()
    return choices.found


def pools_of(source: Source) -> tuple[str | None, ...]:
    """Return the ways to pool the frames of a network; (None,) for the network's own way alone."""
    network: Any = MODELS.get(source.settings.backbone["type"])
    pooled = source.per_frame and "frame_pool" in constructor_parameters(network)
    return FRAME_POOLS if pooled else (None,)


def _embed(
    subject: Subject, source: Source, settings: Mapping[str, Choice], drawn: np.ndarray
) -> FrozenFeatures:
    """Compute the features of the clips of some videos by the pipeline of the fit."""
    pools = pools_of(source)
    part = subject.part(drawn)
    first = Readout(pools[0], USUAL_L2)
    with tempfile.TemporaryDirectory(prefix="sce_video_") as lists:
        data = data_settings(part, lists, parts=("test",))
        config = frozen_config(source, settings, first, data, lists)
        loader = {k: v for k, v in config.train_dataloader.items() if k != "sampler"}
        loader["dataset"] = {**loader["dataset"], "on_error": "skip"}
        model = build_model(source.settings, source.checkpoint)
        progress = Progress(len(drawn), "features of labelled videos:", unit="videos", quiet=True)
        begun = time.monotonic()
        # mmengine looks datasets and samplers up in the default scope.
        with DefaultScope.overwrite_default_scope("sce_video"):
            rows = collect_rows(
                model.encoder,
                build_eval_dataloader(loader, 0),
                lambda encoder, batch: _clip_rows(encoder, batch, by_frame=pools[0] is not None),
                progress,
            )
    assert rows is not None  # a single process plans
    frames = settings["frames"].value if pools[0] is not None else 1
    kept = torch.from_numpy(drawn)[rows.indices]
    return FrozenFeatures(
        values=rows.values.unflatten(1, (settings["clips"].value, frames, -1)),
        labels=rows.labels,
        units=torch.from_numpy(part.units)[rows.indices],
        pools=pools,
        indices=kept,
        failures=rows.failures,
        seconds=(time.monotonic() - begun) / len(drawn),
    )


def _clip_rows(encoder: Any, batch: dict[str, Any], by_frame: bool) -> BatchRows:
    """Compute the features (n, V C) of the clips of a batch, or (n, V T D) of their frames."""

    def function(view: Tensor) -> Tensor:
        if by_frame:
            return frame_features(encoder.backbone, view).flatten(1)
        return encoder(inputs=[view], mode="tensor")[0]

    views = rows_of_views(encoder, batch, function, _MAX_VIEWS)
    return BatchRows(torch.stack(views).flatten(1).cpu(), len(views[0]))


def frozen_config(
    source: Source,
    settings: Mapping[str, Choice],
    readout: Readout,
    data: Mapping[str, Any],
    out: str,
) -> Config:
    """Return the recipe of a linear fit with the settings, the network and its readout."""
    base = load_config(FROZEN_FEATURES)
    config = filled_recipe(base, {**settings, "l2": Choice("l2", readout.l2, "")}, data, out)
    take_network(config, source, 4)
    if readout.pool is not None:
        config.model.backbone.frame_pool = readout.pool
    own_size = settings["size"].value == source.settings.crop_size
    for part in ("train", "test"):
        dataset = config[f"{part}_dataloader"].dataset
        dataset.pipeline = [step_of_source(step, source, own_size) for step in dataset.pipeline]
    complete_classifier(config)
    return config


def plan_frozen(
    options: FinetuneOptions, subject: Subject, plan: FrozenPlan, route: Choice, pages: int
) -> PlannedTraining:
    """Return the plan of a linear classifier on frozen features.

    Args:
        options: Options of the command.
        subject: Source, videos and machine.
        plan: Chosen settings and readout.
        route: Row of the plan with the reason for this route.
        pages: Number of videos on the page of the run.
    """
    assert subject.source is not None
    data = data_settings(subject, options.out, parts=("test",), write=False)
    config = frozen_config(subject.source, plan.settings, plan.readout, data, options.out)
    config.run_page = {"videos": pages, "tested": True}
    batch, each = plan.settings["batch"].value, plan.features.seconds
    samples = math.ceil(len(subject.videos) / batch) * batch
    after = (len(subject.tested) + min(pages, len(subject.videos))) * each + _PAGE_SECONDS
    about = (Choice("recipe", FROZEN_FEATURES, "of finetune"), describe_source(subject.source))
    shared = {*recordings_of(subject.videos)} & {*recordings_of(subject.tested)}
    tested, size = len(subject.tested), plan.settings["size"].value
    notes = finetuning_notes(subject.counts.tolist(), tested, len(shared), size, 0.0)
    return PlannedTraining(
        command="finetune",
        request=request_of(options),
        config=config,
        facts=subject.facts,
        machine=subject.machine,
        choices=(*about, *subject.rows, route, *_readout_rows(plan), *plan.settings.values()),
        timing=Timing(batch * each, 0.0, batch, samples, subject.machine.gpu is not None),
        other_seconds=after,
        remarks=(*notes, *_failures(plan.features)),
        lists={"train": subject.videos, "test": subject.tested},
    )


def _readout_rows(plan: FrozenPlan) -> tuple[Choice, ...]:
    """Return pool and weight decay as rows of the plan."""
    readout, found = plan.readout, plan.found
    of_pool = of_decay = "as usual: the labelled videos are too few to compare"
    if found is not None:
        pools = (f"{pool} {100 * share:.1f} %" for pool, share in found.by_pool.items())
        of_pool = f"held-out videos: {', '.join(pools)}"
        reached = percent(found.hits, plan.features.units)
        of_decay = f"the best weight decay; this choice reaches {reached} on held-out videos"
    decay = Choice("l2", readout.l2, of_decay)
    return (
        (decay,) if readout.pool is None else (Choice("frame_pool", readout.pool, of_pool), decay)
    )


def _failures(features: FrozenFeatures) -> tuple[str, ...]:
    """Return a sentence on videos that could not be read."""
    if not features.failures:
        return ()
    path, reason = features.failures[0]
    count = len(features.failures)
    return (f"{count} labelled videos could not be read and were not compared; {path}: {reason}",)
