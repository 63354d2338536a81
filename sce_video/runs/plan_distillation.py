"""Plan of a distillation: the teacher, its settings, and the student of an image network."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from torch import nn

from sce_video.engine.run_json import Choice
from sce_video.inference.embed_job import iterate_features
from sce_video.inference.model import VideoModel, build_model
from sce_video.inference.network_input import ViewOptions
from sce_video.models.backbones.frame_pools import (
    features_of_frame,
)
from sce_video.registry import DATASETS
from sce_video.runs.continued import enlarged, enlarges_much, refuse_small_videos
from sce_video.runs.folder_facts import FolderFacts
from sce_video.runs.start_weights import Source, find_source
from sce_video.runs.teacher import (
    check_objective,
    give_teacher,
    network_of_clips,
    student_clip,
    with_clip,
    with_frame_pool,
)
from sce_video.utils.run_files import TEACHER_FEATURES, split_pool

#: Backbone to which temporal layers are added to make a student
_STUDENT = "EfficientNetLite"
#: Pool for the frame features of student and teacher
FRAME_POOL = "mean+absdiff+delta+energy"
#: Number of videos that are embedded to measure the time for the teacher's features
_TIMED = 4
#: Default number of clips per video
_CLIPS = 4
#: Default objective, except for the student of an image network. On toy actions, with a video
#: teacher and students that start from random weights, it reaches 93.3 % in the linear probe after
#: 990 steps, and "cosine" reaches 81.7 %. For students of an image network on J-HMDB, the two
#: objectives do not differ beyond chance (docs/results.md).
_OBJECTIVE = "relations"
#: Reason that the plan states for the settings below
_MEASURED = "measured on J-HMDB (docs/results.md)"
#: Number of frames in a student's clip
_FRAMES = 8
#: Height and width of a student's clip in pixels
_SIZE = 88
#: Number of videos per optimiser step of a student
_BATCH = 16
#: Learning rate of a student
_LR = 2e-4
#: Number of epochs if there is no time budget
_EPOCHS = 5
#: Smallest number of optimiser steps if there is no time budget
_STEPS = 290
#: Largest number of epochs within a time budget. More epochs did not help.
MOST_EPOCHS = 20
#: Largest clip duration in seconds, as in the paper
_CLIP_DURATION = 2.56
#: Share of a video that a clip must cover so that one clip per video is enough
_WHOLE = 0.75


@dataclass(frozen=True, eq=False)
class PlannedTeacher:
    """Teacher of a distillation run that has not begun.

    Attributes:
        model: Network of the teacher.
        given: Settings that the teacher determines, by name.
        num_videos: Number of training videos.
        short_side: Short side of the training videos in pixels.
        name: Name that the user gave.
        per_frame: Whether it is an image network.
        is_classifier: Whether it was trained on labels.
    """

    model: VideoModel
    given: Mapping[str, Any]
    num_videos: int
    short_side: int
    name: str
    per_frame: bool
    is_classifier: bool

    @property
    def objective(self) -> str:
        """Objective of the distillation."""
        return self.given["objective"]

    @property
    def channels(self) -> int:
        """Size of the feature that the student learns."""
        if self.objective != "frames":
            return self.model.feature_size
        return features_of_frame(self.model.encoder.backbone)  # motion is computed from the frames

    @property
    def suits_student(self) -> bool:
        """Whether a student of an image network can learn it, from stored features of clips."""
        return self.objective == "frames" or (self.per_frame and self.objective != "tokens")

    def choices(self, num_frames: int) -> dict[str, Choice]:
        """Return the teacher's settings with reasons, for clips of ``num_frames`` frames."""
        model, clips = self.model, self.given["teacher_clips"]
        clip_bytes = 4 * model.feature_size
        if self.objective == "frames":  # one feature per frame, in half precision
            clip_bytes = 2 * num_frames * self.channels
        kib = -(-self.num_videos * clips * clip_bytes // 1024)
        backbone = model.settings.backbone
        kind = backbone.get("architecture") if "TimmEncoder" in backbone["type"] else None
        reason = f"{kind or backbone['type']}, {model.feature_size} numbers per clip"
        if self.is_classifier:
            reason += "; a classifier: its backbone teaches, its classes are not used"
        if self.per_frame:
            reason += "; an image network: per frame, pooled over the frames of a clip"
        once = f"of each video, seen once: {kib:,} KiB in {TEACHER_FEATURES}"
        each = "the teacher runs in every step, on the student's views"
        found = {
            "teacher": (model.checkpoint, reason),
            "teacher_clips": (clips, once if clips else each),
            "objective": (self.objective, "what the student learns from the teacher"),
        }
        if "clip_duration" in self.given:
            found["clip_duration"] = (self.given["clip_duration"], "as the teacher's clips")
        return {name: Choice(name, *values) for name, values in found.items()}

    def remarks(self, size: int) -> list[str]:
        """Return a sentence if the teacher's frames are enlarged.

        Args:
            size: Height and width of the student's views in pixels.
        """
        side = self.short_side
        if not self.given["teacher_clips"]:  # the teacher receives the student's views
            side = min(side, size)
        own = self.model.settings.crop_size
        return enlarged("the teacher's frames", side, own, self.name)

    def stand_in(self, student: nn.Module, config: Config) -> None:
        """Give a network that is being timed the teacher, or random features of the right size."""
        clip = student_clip(config)
        if not clip.fixed:
            give_teacher(student, with_clip(self.model, clip))
            return
        own = network_of_clips(self.model, clip)
        places = (own.positions,) if own.positions else ()
        give_teacher(student, features=torch.rand(2, clip.fixed, *places, own.feature_size))

    def seconds(self, config: Config) -> float:
        """Estimate, from a few videos, the seconds for all features that the run stores."""
        clip = student_clip(config)
        if not clip.fixed:
            return 0.0
        dataset = DATASETS.build({**config.train_dataloader.dataset, "pipeline": []})
        chosen = np.linspace(0, len(dataset) - 1, _TIMED).astype(int)
        paths = [dataset.path(int(index)) for index in np.unique(chosen)]
        network = network_of_clips(self.model, clip)
        begun = time.monotonic()
        for _ in iterate_features(network, paths, ViewOptions(num_clips=clip.fixed)):
            pass
        return (time.monotonic() - begun) / len(paths) * self.num_videos


def plan_teacher(
    teacher: str, facts: FolderFacts, given: Mapping[str, Any], has_student: bool
) -> PlannedTeacher:
    """Load a teacher, and choose the settings that it determines.

    Args:
        teacher: Name of the given or chosen network.
        facts: Facts about the training videos.
        given: Settings that the user gave, by name.
        has_student: Whether there is a network that becomes the student of an image network.

    Raises:
        FileNotFoundError: If the teacher does not exist.
        ValueError: If the teacher's clip does not suit the videos, the videos are too small for it,
            its pool is not the student's, or :func:`~sce_video.runs.teacher.check_objective` raises
            it.
    """
    source = find_source(teacher)
    # A video teacher keeps its own clips and pool, even if a network for a student is installed.
    has_student = has_student and source.per_frame
    if has_student:
        refuse_pool(teacher)
    objective = given.get("objective", "frames" if has_student else _OBJECTIVE)
    seconds = given.get("clip_duration", clip_duration(facts))
    clips = clips_of_video(facts, seconds, _CLIPS) if has_student else _CLIPS
    clips = given.get("teacher_clips", 0 if objective == "tokens" else clips)
    check_objective(objective, clips)
    model = build_model(source.settings, source.checkpoint)
    refuse_small_videos(source, model.encoder.backbone, source.settings.crop_size, facts)
    if has_student and objective != "frames":
        model = with_frame_pool(model, FRAME_POOL)
    decided = {"teacher": model.checkpoint, "objective": objective, "teacher_clips": clips}
    own = None if source.per_frame else source.settings.clip_duration  # None means the whole video
    if own is not None and "clip_duration" not in given:
        if own > facts.duration:
            shorter = max(0.1, round(0.8 * facts.duration, 1))
            raise ValueError(
                f"the teacher's clips last {own:g} s, but the videos {facts.duration:.1f} s. Set "
                f"--clip-duration {shorter:g} to show it shorter clips"
            )
        decided["clip_duration"] = own
    return PlannedTeacher(
        model=model,
        given=decided,
        num_videos=facts.num_videos,
        short_side=facts.short_side,
        name=teacher,
        per_frame=source.per_frame,
        is_classifier=source.is_classifier,
    )


def could_teach(source: Source, facts: FolderFacts) -> bool:
    """Return whether an image network could be the teacher of a small video network."""
    suits = split_pool(source.name)[1] in (None, FRAME_POOL)
    return source.per_frame and suits and not enlarges_much(source.settings.crop_size, facts)


def is_student(source: Source) -> bool:
    """Return whether a network can become a video network that learns from an image network."""
    return _is_lite(source.settings.backbone)


def _is_lite(backbone: Mapping[str, Any]) -> bool:
    """Return whether a backbone is of the kind to which temporal layers are added."""
    return backbone["type"].rpartition(".")[2] == _STUDENT


def refuse_pool(network: str) -> None:
    """Raise ValueError if a student or its teacher is given with a pool other than its own."""
    name, pool = split_pool(network)
    if pool not in (None, FRAME_POOL):
        raise ValueError(
            f"{network}: a student and its teacher pool frames by {FRAME_POOL}. Give {name} alone"
        )


def clip_duration(facts: FolderFacts) -> float:
    """Return the duration of a student's clip in seconds: a whole video, or part of a long one."""
    return round(min(_CLIP_DURATION, max(facts.duration, 0.1)), 2)


def clips_of_video(facts: FolderFacts, seconds: float, usual: int) -> int:
    """Return the number of clips per video, which is 1 if a clip of this length covers it."""
    return 1 if seconds >= _WHOLE * facts.duration else usual


def student_choices(
    source: Source, facts: FolderFacts, hours: float | None, given: Mapping[str, Any]
) -> dict[str, Choice]:
    """Return the settings that suit a student, by name.

    Args:
        source: Network from which the student starts.
        facts: Facts about the training videos.
        hours: Time budget in hours; None for the usual length.
        given: Settings that the user gave, by name.
    """
    batch = min(given.get("batch") or _BATCH, 2 ** int(math.log2(max(2, facts.num_videos // 2))))
    steps = max(1, facts.num_videos // batch)
    found = [
        Choice("frames", _FRAMES, _MEASURED),
        Choice("clip_duration", clip_duration(facts), "a whole video, up to 2.56 s"),
        Choice("size", min(_SIZE, facts.short_side), f"for speed; {_MEASURED}"),
        Choice("batch", batch, _MEASURED),
        Choice("epoch_samples", facts.num_videos, "every video once"),
        Choice("lr", _LR, f"a small rate, because {source.name} is trained already"),
    ]
    if hours is None:
        epochs = max(_EPOCHS, math.ceil(_STEPS / steps))
        reason = f"{epochs * steps:,} steps; {_EPOCHS} passes over the videos or more"
        found.append(Choice("epochs", epochs, reason))
    return {choice.setting: choice for choice in found}


def become_student(
    config: Config, source: Source, teacher: PlannedTeacher, facts: FolderFacts
) -> None:
    """Set the network, weights and input of a student in the config of its run, in place.

    The teacher pools its frames as the student does. If both networks have the same published
    weights, their features correspond one to one. Otherwise, a linear layer maps the student's
    features to the teacher's, even if both have the same size.

    Args:
        config: Config of the training run.
        source: Network from which the student starts.
        teacher: Teacher of the student.
        facts: Facts about the training videos.

    Raises:
        ValueError: If the student is given with another pool.
    """
    refuse_pool(source.name)
    own, model = source.settings.backbone, config.model
    model.backbone.frame_pool = FRAME_POOL
    model.backbone.variant = own.get("variant", "lite0")
    taught = teacher.model.settings.backbone
    if not _is_lite(taught) or taught.get("variant", "lite0") != model.backbone.variant:
        model.projector.num_layers = 1
    config.pretrained = source.checkpoint
    config.data_preprocessor.update(mean=source.settings.mean, std=source.settings.std)
    for loader in (config.test_dataloader, config.test_cfg.gallery_dataloader):
        for step in loader.dataset.pipeline:
            if step.type == "UniformClips":  # additional clips of a short video would be identical
                step.num_clips = clips_of_video(facts, step.clip_duration, step.num_clips)
