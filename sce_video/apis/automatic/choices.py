"""The settings of a pretraining, chosen from what is known of videos and machine.

Pure functions: facts in, settings and the reason for each out. The numbers are those of recipes
and measurements in docs/results.md and docs/performance.md; a rule that has not been measured says
so in its reason or comment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sce_video.apis.automatic.folder_facts import FolderFacts
from sce_video.apis.automatic.machine import Machine

#: Optimiser steps below which a small network has learnt little (docs/results.md).
_STEPS = 2000
_MAX_QUEUE = {"cpu": 256, "gpu": 4096}
_MAX_WORKERS = 16


@dataclass(frozen=True)
class Choice:
    """A setting and why it has its value."""

    name: str
    value: Any
    reason: str


@dataclass(frozen=True)
class _Scale:
    """Network and clip that a device trains in hours."""

    width: int
    hidden: int
    embedding: int
    frames: int
    size: int
    batch: int
    reason: str


def _scale(machine: Machine) -> _Scale:
    """Not measured on GPUs: the memory of ResNet3D-18 is scaled from the recipes' headers."""
    if machine.gpu is None:
        return _Scale(8, 256, 64, 4, 64, 16, "no GPU: minutes on a few cores")
    memory = f"{machine.gpu_memory:.0f} GiB of GPU memory"
    if machine.gpu_memory >= 20:
        return _Scale(64, 1024, 256, 8, 224, 32, memory)
    if machine.gpu_memory >= 10:
        return _Scale(64, 1024, 256, 8, 112, 32, memory)
    return _Scale(32, 512, 128, 8, 112, 16, memory)


def choose(facts: FolderFacts, machine: Machine) -> dict[str, Choice]:
    """Every setting but the length of the training, by its name, in the order to show them."""
    return {choice.name: choice for choice in _choices(facts, machine)}


def _choices(facts: FolderFacts, machine: Machine) -> Iterator[Choice]:
    scale = _scale(machine)
    yield Choice("width", scale.width, f"channels of the stem; {scale.reason}")
    yield Choice("hidden", scale.hidden, "of projector and predictor, as wide as the network asks")
    yield Choice("embedding", scale.embedding, "size of an embedding, likewise")
    yield _clip_duration(facts, scale)
    yield _frames(facts, scale)
    yield _size(facts, scale)
    batch = _batch(facts, scale)
    yield batch
    yield _queue(facts, machine, batch.value)
    yield _samples(facts, batch.value)
    yield _workers(machine)
    yield _precision(machine)


def _clip_duration(facts: FolderFacts, scale: _Scale) -> Choice:
    wanted = 0.32 * scale.frames  # the paper's 8 frames of 2.56 s
    if facts.duration >= wanted:
        return Choice("clip_duration", round(wanted, 2), "frames 0.32 s apart, as in the paper")
    value = max(round(0.8 * facts.duration, 2), 0.1)
    return Choice("clip_duration", value, f"four fifths of a video of {facts.duration:.1f} s")


def _frames(facts: FolderFacts, scale: _Scale) -> Choice:
    available = max(1, int(facts.duration * facts.fps))
    if available < scale.frames:
        return Choice("frames", available, f"a video has {available} frames")
    return Choice("frames", scale.frames, scale.reason)


def _size(facts: FolderFacts, scale: _Scale) -> Choice:
    """A multiple of 32, the stride of the network."""
    if facts.short_side >= scale.size:
        return Choice("size", scale.size, f"short side {facts.short_side}; {scale.reason}")
    value = max(32, facts.short_side // 32 * 32)
    return Choice("size", value, f"the short side of the videos is {facts.short_side} pixels")


def _batch(facts: FolderFacts, scale: _Scale) -> Choice:
    if facts.num_videos >= 2 * scale.batch:
        return Choice("batch", scale.batch, scale.reason)
    value = max(2, 2 ** int(math.log2(max(2, facts.num_videos // 2))))
    return Choice("batch", value, f"there are {facts.num_videos} videos only")


def _queue(facts: FolderFacts, machine: Machine, batch: int) -> Choice:
    most = _MAX_QUEUE["cpu" if machine.gpu is None else "gpu"]
    fitting = max((facts.num_videos - 1) // batch * batch, batch)
    if fitting <= most:
        reason = f"fewer keys than the {facts.num_videos} videos: no video is its own negative"
        return Choice("queue", fitting, reason)
    return Choice("queue", most // batch * batch, "fewer keys than videos")


def _samples(facts: FolderFacts, batch: int) -> Choice:
    """Samples of an epoch: at least 20 steps, so that few videos are passed over several times."""
    least = 20 * batch
    if facts.num_videos >= least:
        return Choice("epoch_samples", facts.num_videos, "every video once")
    return Choice("epoch_samples", least, "20 steps of an epoch: few videos, several clips of each")


def _workers(machine: Machine) -> Choice:
    if machine.gpu is None:
        value = max(1, machine.cores // 4)
        return Choice("workers", value, f"a quarter of {machine.cores} cores, the rest computes")
    value = min(_MAX_WORKERS, max(1, machine.cores - 1))
    return Choice("workers", value, f"{machine.cores} cores, one for the training process")


def _precision(machine: Machine) -> Choice:
    if machine.gpu is None:
        return Choice("precision", "float32", "mixed precision is slower on a CPU")
    if machine.bfloat16:
        return Choice("precision", "bfloat16", "the GPU has it, and it needs no loss scaling")
    return Choice("precision", "float16", "the GPU has no bfloat16")


def choose_epochs(
    samples: int, batch: int, epoch_seconds: float | None, hours: float | None
) -> Choice:
    """The length of the training.

    Args:
        samples: Samples of an epoch.
        batch: Samples of a step.
        epoch_seconds: Measured time of an epoch; needed with ``hours``.
        hours: Budget; None for enough steps to learn.

    Raises:
        ValueError: ``hours`` is not positive, or does not suffice for an epoch.
    """
    steps = max(1, samples // batch)
    if hours is None:
        return Choice("epochs", max(20, math.ceil(_STEPS / steps)), f"{_STEPS} steps or more")
    if hours <= 0 or epoch_seconds is None:
        raise ValueError(f"--hours must be positive, got {hours}")
    epochs = int(hours * 3600 / epoch_seconds)
    if epochs < 1:
        raise ValueError(
            f"{hours} hours do not suffice for one epoch, which takes {epoch_seconds / 3600:.1f}: "
            "give more, or a smaller --size, --frames or --width"
        )
    return Choice("epochs", epochs, f"{hours:g} hours at {epoch_seconds:.0f} s an epoch")


def choose_momentum(steps: int) -> Choice:
    """Where the momentum of the target starts: the fewer steps, the quicker the target."""
    for most, value in ((1500, 0.9), (20_000, 0.97), (math.inf, 0.99)):
        if steps <= most:
            return Choice("momentum", value, f"{steps:,} steps; fewer need a quicker target")
    raise AssertionError("the last limit is infinite")
