"""Plan of a linear classifier on frozen features: clips, features, readout and config."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import Tensor

from sce_video.engine.checkpoint import weights_sha256
from sce_video.engine.config.load import load_config
from sce_video.engine.recipes import FROZEN_FEATURES
from sce_video.engine.run_json import Choice
from sce_video.evaluation.functional.linear_probe import L2_GRID
from sce_video.evaluation.linear_fit_loop import feature_key, write_known
from sce_video.evaluation.rows import build_eval_dataloader, collect_rows
from sce_video.inference.clip_features import clip_network
from sce_video.inference.encoders.frame_networks import frame_pools_of
from sce_video.inference.model import build_model
from sce_video.inference.multi_view import Batch, BatchRows
from sce_video.models.backbones.frame_pools import StoredClips
from sce_video.models.backbones.hf_encoder import FAMILIES
from sce_video.options.connect import DEFAULT_FRAME_POOL
from sce_video.options.training import FinetuneOptions, request_of
from sce_video.runs.choices import ChosenSettings, choose_workers
from sce_video.runs.configs import complete_classifier
from sce_video.runs.continued import clip_of_network, take_network
from sce_video.runs.finetune_subject import (
    PAGE_SECONDS,
    PAGE_VIDEOS,
    Subject,
    data_settings,
    describe_source,
    step_of_source,
)
from sce_video.runs.fold_probe import cross_validate, make_folds, percent
from sce_video.runs.planned_training import PlannedTraining, Timing, filled_recipe
from sce_video.runs.start_weights import Source
from sce_video.utils.command import Progress
from sce_video.utils.run_files import KNOWN_FEATURES, split_pool

#: Largest number of frames per clip for an image network
_IMAGE_FRAMES = 8
#: Largest clip duration in seconds for an image network. Its frames are far enough apart to show
#: motion.
_IMAGE_SECONDS = 2.56
#: Largest number of clips per video on a GPU
_CLIPS = 10
#: Largest number of clips per video without a GPU
_CLIPS_ON_CPU = 5
#: Largest number of videos in a comparison. With this many videos, the 95 % interval extends at
#: most three points to each side.
_COMPARED = 1000
#: Number of videos that are embedded to measure the time if there is nothing to compare
_TIMED = 4
#: Number of videos per batch, small enough to limit memory
_BATCH = 8
#: Largest number of views per forward pass
_MAX_VIEWS = 32
#: Weight decay if there is nothing to compare
_USUAL_L2 = 0.1


@dataclass(frozen=True)
class FrozenFeatures:
    """Features of the clips of N videos.

    Attributes:
        values: (N, V, D) features of V clips, or the clips (N, V) of a network with pools.
        labels: (N,) int64 labels.
        units: (N,) int64 units. Videos in the same unit are in the same fold.
        pools: Names of the ways to pool the frames; None for the network's own pool.
        indices: (N,) int64 indices of the videos in their set.
        frame_pools: Frame pools by these names.
        paths: N paths of the videos, with their folder or table.
        weights: Hash of the network's weights.
        failures: Path and reason for each video that could not be read.
        seconds: Seconds to read and embed a video.
    """

    values: Tensor | StoredClips
    labels: Tensor
    units: Tensor
    pools: Sequence[str | None]
    indices: Tensor
    frame_pools: Mapping[str, str] = field(default_factory=dict)
    paths: Sequence[str] = ()
    weights: str = ""
    failures: Sequence[tuple[str, str]] = ()
    seconds: float = 0.0

    def pooled(self, pool: str | None) -> Tensor:
        """Return the representations (N, V, C) of the clips."""
        if isinstance(self.values, StoredClips):
            assert pool is not None  # must be one of ``pools``
            return self.values.pooled(self.frame_pools[pool])
        return self.values


@dataclass(frozen=True, kw_only=True)
class PlannedFit(PlannedTraining):
    """Planned fit of a linear classifier, with the features that planning has computed.

    Attributes:
        frozen: Features of labelled videos, and how their frames are pooled.
    """

    frozen: FrozenFit

    def write_features(self) -> None:
        """Write the features into the run's folder, so that the fit does not compute them again.

        Raises:
            WriteError: If the file cannot be written.
        """
        features = self.frozen.features
        key = feature_key(self.config, features.weights)
        views = features.pooled(self.frozen.pool)
        write_known(self.config.work_dir, key, features.paths, views)


class FrozenFit:
    """Linear classifier on frozen features that is being planned.

    The constructor chooses the clips, embeds labelled videos, and uses the features to choose pool
    and weight decay.

    Args:
        options: Options of the command.
        subject: Source, videos and machine.
        begun: ``time.monotonic()`` at the start of the command.

    Attributes:
        settings: Chosen and given settings by name.
        features: Features of the compared videos.
        found: Result of the cross-validation; None if there are too few videos.
        pool: Name of the pool of the frame features; None for the network's own pool.
        l2: Weight decay of the classifier, on standardised features.

    Raises:
        ValueError: If the network's clip does not suit the videos, no video can be read, or the
            budget does not suffice for the features.
    """

    def __init__(self, options: FinetuneOptions, subject: Subject, begun: float) -> None:
        assert subject.source is not None
        self.options, self.subject, self.begun = options, subject, begun
        self.source: Source = subject.source
        self.settings, seed = self._choose_settings(), options.seed or 0
        units = torch.from_numpy(subject.units)
        labels = torch.from_numpy(np.asarray(subject.videos.videos.labels, dtype=np.int64))
        possible = make_folds(labels, units, seed) is not None
        drawn = _drawn(labels, units, _COMPARED if possible else _TIMED, seed)
        self.features = features = self._embed(drawn)
        self.found, self.l2 = None, _USUAL_L2
        own = self.source.settings.backbone.get("frame_pool", "mean")
        # No motion pool has been measured for the encoders of transformers.
        measured = self.source.per_frame and self.source.family not in FAMILIES
        usual = DEFAULT_FRAME_POOL if measured else own
        named = {pool: name for name, pool in features.frame_pools.items()}
        self.pool = named.get(usual, features.pools[0])
        folds = make_folds(features.labels, features.units, seed) if possible else None
        if folds is not None:
            self.found = cross_validate(
                features.pools, features.pooled, features.labels, folds, L2_GRID
            )
            self.pool, self.l2 = self.found.best()

    def _choose_settings(self) -> dict[str, Choice]:
        """Choose a video's clips and how they are read."""
        facts, source = self.subject.facts, self.source
        choices = ChosenSettings(self.subject.given)
        if source.per_frame:
            seconds = min(_IMAGE_SECONDS, facts.duration)
            frames = max(1, min(_IMAGE_FRAMES, int(seconds * facts.fps + 0.01)))
            apart = f"{_IMAGE_FRAMES} frames {_IMAGE_SECONDS / _IMAGE_FRAMES:g} s apart"
            whole = f"the whole video of {facts.duration:.1f} s"
            reason = whole if facts.duration <= _IMAGE_SECONDS else apart
            seconds = choices.add(Choice("clip_duration", round(seconds, 2), reason))
            choices.add(Choice("frames", frames, "an image network encodes each frame separately"))
        else:
            clip = clip_of_network(source, facts, self.subject.given)
            seconds = choices.add(clip["clip_duration"])
            choices.add(clip["frames"])
        size = source.settings.crop_size
        enlarged = "; the videos are enlarged" if facts.short_side < size else ""
        choices.add(Choice("size", size, f"as the network was tested{enlarged}"))
        most = _CLIPS_ON_CPU if self.subject.machine.gpu is None else _CLIPS
        clips = min(most, max(1, math.ceil(facts.duration / seconds - 0.1)))
        reason = f"of {seconds:g} s, in videos of {facts.duration:.1f} s"
        choices.add(Choice("clips", clips, reason))
        choices.add(Choice("crops", 1, "the central crop, as in the fit"))
        choices.add(Choice("batch", _BATCH, "videos that are embedded at a time"))
        choices.add(choose_workers(self.subject.machine))
        choices.add(Choice("precision", "float32", "the features are computed once"))
        choices.add_others()
        return choices.found

    def _embed(self, drawn: np.ndarray) -> FrozenFeatures:
        """Compute the clip features of the drawn videos with the pipeline of the fit."""
        frame_pools, part = pools_of(self.source), self.subject.part(drawn)
        pools: tuple[str | None, ...] = (*frame_pools,) or (None,)
        names = ("frames", "clip_duration", "clips", "batch")
        frames, duration, clips, batch_size = (self.settings[name].value for name in names)
        own = replace(self.source.settings, num_frames=frames, clip_duration=duration)
        model = build_model(own, self.source.checkpoint)
        network = clip_network(model, clips, all_pools=bool(frame_pools))
        encoder: Any = network.encoder
        times: list[float] = []

        def rows_of(_: Any, batch: Batch) -> BatchRows:
            found = network.rows(batch, _MAX_VIEWS)
            times.append(time.monotonic())
            if len(times) in (2, 4):  # the first batch also starts the loader, which reads ahead
                each = (times[-1] - times[0]) / (len(times) - 1) / batch_size
                self._check_hours(each, len(times) * batch_size)
            return found

        with tempfile.TemporaryDirectory(prefix="sce_video_") as lists:
            data = data_settings(part, lists, parts=("test",))
            config = self._config(self.settings, pools[0], data, lists)
            loader = {k: v for k, v in config.train_dataloader.items() if k != "sampler"}
            loader["dataset"] = {**loader["dataset"], "on_error": "skip"}
            title = "features of labelled videos:"
            progress = Progress(len(drawn), title, unit="videos", quiet=True)
            begun = time.monotonic()
            # Set the default scope, because mmengine looks up datasets and samplers in it.
            with DefaultScope.overwrite_default_scope("sce_video"):
                batches = build_eval_dataloader(loader, 0)
                rows = collect_rows(encoder, batches, rows_of, progress)
        assert rows is not None  # planning uses a single process
        each = (time.monotonic() - begun) / len(drawn)
        if len(times) == 1:
            self._check_hours(each, len(drawn))
        by_clip = rows.values.unflatten(1, (network.num_clips, -1))
        return FrozenFeatures(
            values=network.stored_clips(rows.values) if network.all_pools else by_clip,
            labels=rows.labels,
            units=torch.from_numpy(part.units)[rows.indices],
            pools=pools,
            frame_pools=frame_pools,
            indices=torch.from_numpy(drawn)[rows.indices],
            paths=rows.paths,
            weights=weights_sha256(encoder.backbone.state_dict()),
            failures=rows.failures,
            seconds=each,
        )

    def _check_hours(self, each: float, done: int) -> None:
        """Check the time budget, given the seconds per video and the number of embedded videos."""
        other = time.monotonic() - self.begun - each * done + PAGE_SECONDS
        count = len(self.subject.videos) + len(self.subject.tested) + self.subject.drawn
        check_hours(self.options.hours, other, each, count, self.settings["clips"].value)

    def _config(
        self, settings: Mapping[str, Choice], pool: str | None, data: Mapping[str, Any], out: str
    ) -> Config:
        """Return the recipe of a linear fit with the settings, the network and its pool."""
        config = filled_recipe(load_config(FROZEN_FEATURES), settings, data, out)
        take_network(config, self.source, 4)
        if pool is not None:
            config.model.backbone.frame_pool = pools_of(self.source)[pool]
        own_size = settings["size"].value == self.source.settings.crop_size
        for loader in (config.train_dataloader, config.test_dataloader):
            pipeline = loader.dataset.pipeline
            loader.dataset.pipeline = [step_of_source(s, self.source, own_size) for s in pipeline]
        complete_classifier(config)
        return config

    def plan(self, route: Choice) -> PlannedFit:
        """Return the plan of the fit. ``route`` is the row of the plan that explains this route."""
        subject, features = self.subject, self.features
        data = data_settings(subject, self.options.out, parts=("test",), write=False)
        readout = self._readout_rows()
        settings = {**self.settings, "l2": readout[-1]}
        config = self._config(settings, self.pool, data, self.options.out)
        config.run_page = {"videos": PAGE_VIDEOS, "tested": True}
        batch, each = self.settings["batch"].value, features.seconds
        unknown = math.ceil((len(subject.videos) - len(features.paths)) / batch) * batch
        other = (len(subject.tested) + subject.drawn) * each + PAGE_SECONDS
        if self.options.hours is not None:
            other += time.monotonic() - self.begun
        about = (Choice("recipe", FROZEN_FEATURES, "of finetune"), describe_source(subject.source))
        notes = subject.remarks(self.settings["size"].value, loading=0.0)
        for path, reason in features.failures[:1]:
            count = len(features.failures)
            notes.append(
                f"{count} labelled videos could not be read and were not compared; {path}: {reason}"
            )
        return PlannedFit(
            command="finetune",
            request=request_of(self.options),
            config=config,
            facts=subject.facts,
            machine=subject.machine,
            choices=(*about, *subject.rows, route, *readout, *self.settings.values()),
            timing=Timing(batch * each, 0.0, batch, unknown, subject.machine.gpu is not None),
            other_seconds=other,
            remarks=tuple(notes),
            lists={"train": subject.videos, "test": subject.tested},
            frozen=self,
        )

    def _readout_rows(self) -> tuple[Choice, ...]:
        """Return rows of the plan for features, pool and, as the last one, weight decay."""
        features, found = self.features, self.found
        of_pool = of_decay = "the usual value: the labelled videos are too few to compare"
        if found is not None:
            accuracies = zip(found.kinds, found.correct.mean(2).amax(1).tolist(), strict=True)
            pools = (f"{pool} {100 * share:.1f} %" for pool, share in accuracies)
            of_pool = f"held-out videos: {', '.join(pools)}"
            reached = percent(found.hits(), features.units)
            of_decay = f"the best weight decay; this choice reaches {reached} on held-out videos"
        seconds = features.seconds * len(features.paths)
        once = f"videos read in {seconds:.0f} s; the fit reads them in {KNOWN_FEATURES}"
        rows = [Choice("features", len(features.paths), once)]
        if self.pool is not None:
            rows.append(Choice("frame_pool", self.pool, of_pool))
        return (*rows, Choice("l2", self.l2, of_decay))


def check_hours(hours: float | None, other: float, each: float, videos: int, clips: int) -> None:
    """Raise ValueError if a time budget does not suffice to embed all videos.

    Args:
        hours: Budget of the command in hours; None without one.
        other: Seconds that the command needs for other work.
        each: Seconds per video.
        videos: Number of videos that the command embeds for fit, test and page.
        clips: Number of clips per video.
    """
    needed = each * videos
    if hours is None or other + needed <= 3600 * hours:
        return
    fewer = int(clips * (3600 * hours - other) / needed)
    advice = f"--clips {fewer}" if fewer > 0 else "fewer videos (--few)"
    raise ValueError(
        f"--hours {hours:g} does not suffice. The features of {videos} videos for fit, test and "
        f"page take about {needed / 3600:.2g} hours (--clips {clips}). Give --hours "
        f"{1.1 * (other + needed) / 3600:.2g} or more, or {advice}"
    )


def _drawn(labels: Tensor, units: Tensor, most: int, seed: int) -> np.ndarray:
    """Return the indices of at most about ``most`` videos, in whole units drawn by the seed."""
    if len(labels) <= most:
        return np.arange(len(labels))
    names, counts = units.unique(return_counts=True)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    taken = names[order[: max(1, int((counts[order].cumsum(0) <= most).sum()))]]
    return torch.nonzero(torch.isin(units, taken)).flatten().numpy()


def pools_of(source: Source) -> dict[str, str]:
    """Return the ways to pool a network's frames, by their names in ``NAME:POOL``.

    If the user named a pool, only this pool is returned. The result is empty if the network has
    only its own pool.
    """
    pools, named = frame_pools_of(source.settings.backbone), split_pool(source.name)[1]
    return pools if named is None or not pools else {named: pools[named]}
