"""Student of an image network: a video network that starts from public weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmengine.config import Config

from sce_video.engine.run_json import Choice
from sce_video.models.backbones.frame_pools import frame_channels, pooled_channels
from sce_video.runs.folder_facts import FolderFacts
from sce_video.runs.start_weights import Source
from sce_video.utils.run_files import split_pool

#: Backbone that becomes a student when it gets temporal layers.
KIND = "EfficientNetLite"
#: Pool of the frame features of student and teacher.
FRAME_POOL = "mean+absdiff+delta+energy"
#: The following numbers were chosen on J-HMDB (docs/results.md).
FRAMES = 8
SIZE = 88
BATCH = 16
LR = 2e-4
#: Number of passes over the videos, and minimum number of optimiser steps, without a budget.
EPOCHS = 5
STEPS = 290
#: Maximum number of passes within a budget. More passes were not better.
MOST_EPOCHS = 20
#: Maximum length of a clip in seconds, as in the paper.
_CLIP_DURATION = 2.56
#: A clip that covers this share of a video stands for the whole video.
_WHOLE = 0.75


@dataclass(frozen=True)
class TeacherTarget:
    """Features that a student learns from its teacher.

    Attributes:
        channels: Size of a feature.
        of_frames: Whether a feature belongs to a frame, and not to a clip.
    """

    channels: int
    of_frames: bool


def is_student(source: Source) -> bool:
    """Return whether a network can become a video network that learns from an image network."""
    return source.settings.backbone["type"].rpartition(".")[2] == KIND


def refuse_pool(network: str) -> None:
    """Raise ValueError if a student or its teacher is given with a pool other than its own."""
    name, pool = split_pool(network)
    if pool not in (None, FRAME_POOL):
        raise ValueError(
            f"{network}: a student and its teacher pool frames by {FRAME_POOL}. Give {name} alone"
        )


def clip_duration(facts: FolderFacts) -> float:
    """Return the seconds of a clip: a whole video, or a part of a long one."""
    return round(min(_CLIP_DURATION, max(facts.duration, 0.1)), 2)


def clips_of_video(facts: FolderFacts, usual: int) -> int:
    """Return the teacher's number of clips per video, 1 if a clip covers the video."""
    return 1 if clip_duration(facts) >= _WHOLE * facts.duration else usual


def student_choices(
    source: Source, facts: FolderFacts, hours: float | None, given: Mapping[str, Any]
) -> dict[str, Choice]:
    """Return the settings that suit a student, by name.

    Args:
        source: Network that the student starts from.
        facts: Facts about the training videos.
        hours: Budget; None for the usual length.
        given: Settings that the user gave, by name.
    """
    measured = "measured on J-HMDB (docs/results.md)"
    batch = min(given.get("batch") or BATCH, 2 ** int(math.log2(max(2, facts.num_videos // 2))))
    steps = max(1, facts.num_videos // batch)
    found = [
        Choice("frames", FRAMES, measured),
        Choice("clip_duration", clip_duration(facts), "a whole video, up to 2.56 s"),
        Choice("size", min(SIZE, facts.short_side), f"for speed; {measured}"),
        Choice("batch", batch, measured),
        Choice("epoch_samples", facts.num_videos, "every video once"),
        Choice("lr", LR, f"a small rate, because {source.name} is trained already"),
    ]
    if hours is None:
        epochs = max(EPOCHS, math.ceil(STEPS / steps))
        reason = f"{epochs * steps:,} steps; {EPOCHS} passes over the videos or more"
        found.append(Choice("epochs", epochs, reason))
    return {choice.setting: choice for choice in found}


def become_student(
    config: Config, source: Source, target: TeacherTarget, facts: FolderFacts
) -> None:
    """Change the recipe of a student, in place: the network, its weights and its input.

    The teacher pools its frames as the student does, so that their features correspond one to one.
    If they have another size, a linear layer maps them.

    Args:
        config: Config of the training.
        source: Network that the student starts from.
        target: Features that it learns.
        facts: Facts about the training videos.

    Raises:
        ValueError: If the student is given with another pool.
    """
    refuse_pool(source.name)
    config.model.backbone.frame_pool = FRAME_POOL
    own_pool = source.settings.backbone.get("frame_pool", "mean")
    channels = frame_channels(own_pool, source.channels)
    if not target.of_frames:
        channels = pooled_channels(FRAME_POOL, channels)
    if target.channels != channels:
        config.model.projector.num_layers = 1
    config.model.backbone.variant = source.settings.backbone.get("variant", "lite0")
    config.pretrained = source.checkpoint
    config.data_preprocessor.update(mean=source.settings.mean, std=source.settings.std)
    for loader in (config.test_dataloader, config.test_cfg.gallery_dataloader):
        for step in loader.dataset.pipeline:
            if step.type == "UniformClips":  # more clips of a short video would be equal
                step.num_clips = clips_of_video(facts, step.num_clips)
