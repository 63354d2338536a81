"""The settings of a pretraining, chosen from what is known of videos and machine.

Pure functions: facts in, settings and the reason for each out. The numbers are those of recipes
and measurements in docs/results.md and docs/performance.md; a rule that has not been measured says
so in its reason or comment.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sce_video.runs.folder_facts import FolderFacts


@dataclass(frozen=True)
class Machine:
    """Cores and GPU of one process.

    Attributes:
        cores: CPU cores that this process may use.
        gpu: Name of the GPU; None if there is none.
        gpu_memory: Its memory, GiB; 0 without a GPU.
        bfloat16: Whether the GPU computes in bfloat16.
    """

    cores: int
    gpu: str | None = None
    gpu_memory: float = 0.0
    bfloat16: bool = False

    def describe(self) -> str:
        """One sentence for the user."""
        if self.gpu is None:
            return f"{self.cores} CPU cores, no GPU"
        return f"{self.cores} CPU cores, {self.gpu} with {self.gpu_memory:.0f} GiB"


def process_began() -> float:
    """Value of ``time.monotonic()`` when this process began; now where the system does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        age = 0.0
    return time.monotonic() - age


def this_machine() -> Machine:
    """The cores that this process may use, and the first GPU."""
    cores = len(os.sched_getaffinity(0))
    if not torch.cuda.is_available():
        return Machine(cores)
    properties = torch.cuda.get_device_properties(0)
    return Machine(
        cores,
        properties.name,
        properties.total_memory / 2**30,
        torch.cuda.is_bf16_supported(),
    )


#: Optimiser steps below which a small network has learnt little (docs/results.md).
_STEPS = 2000
#: Videos from which a CPU trains a network twice as wide, in as much time (docs/results.md).
_WIDE_VIDEOS, _WIDE_STEPS = 100, 1540
_MAX_QUEUE = {"cpu": 256, "gpu": 4096}
_MAX_WORKERS = 16
#: Few passes over many videos: beyond so many steps an epoch need not be repeated 20 times.
_MANY_STEPS = 20_000
#: Below so many videos, and above so many seconds of a video, the user is told (not measured).
_FEW_VIDEOS, _LONG = 32, 60.0
#: Share of adjacent frames that are equal above which the user is told.
MANY_REPEATS = 0.1
#: Settings that other choices follow.
_NUMBERS = frozenset(("frames", "clip_duration", "batch", "epoch_samples", "epochs"))
_CUT = (
    "Cut long videos into pieces first: ffmpeg -i VIDEO.mp4 -c copy -f segment -segment_time 10 "
    "-reset_timestamps 1 PIECE%05d.mp4"
)


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


def _scale(machine: Machine, num_videos: int) -> _Scale:
    """Not measured on GPUs: the memory of ResNet3D-18 is scaled from the recipes' headers."""
    if machine.gpu is None:
        width = 16 if num_videos >= _WIDE_VIDEOS else 8
        return _Scale(width, 256, 64, 4, 64, 16, "no GPU: minutes on a few cores")
    memory = f"{machine.gpu_memory:.0f} GiB of GPU memory"
    if machine.gpu_memory >= 20:
        return _Scale(64, 1024, 256, 8, 224, 32, memory)
    if machine.gpu_memory >= 10:
        return _Scale(64, 1024, 256, 8, 112, 32, memory)
    return _Scale(32, 512, 128, 8, 112, 16, memory)


def choose(
    facts: FolderFacts, machine: Machine, given: Mapping[str, Any] | None = None
) -> dict[str, Choice]:
    """Every setting but the length of the training, by its name, in the order to show them.

    Args:
        facts: Of the videos.
        machine: That trains.
        given: Settings that the user chose, by name; the others are chosen to suit them.

    Raises:
        ValueError: there is one video only.
    """
    if facts.num_videos < 2:
        raise ValueError(
            f"there is one video only in {facts.folder}: a network learns from the differences "
            f"between videos. {_CUT}"
        )
    values = {name: value for name, value in (given or {}).items() if value is not None}
    for name in _NUMBERS & values.keys():
        if isinstance(values[name], str | bool) or not values[name] > 0:
            raise ValueError(f"{name} must be a positive number, got {values[name]!r}")
    choices: dict[str, Choice] = {}
    # In order: later choices follow the values of earlier ones.
    for choice in _choices(facts, machine, values):
        choices[choice.name] = choice
    extra = {name: Choice(name, values[name], "given") for name in values if name not in choices}
    return {**choices, **extra}


def _choices(facts: FolderFacts, machine: Machine, given: Mapping[str, Any]) -> Iterator[Choice]:
    def known(choice: Choice) -> Choice:
        if choice.name in given:
            return Choice(choice.name, given[choice.name], "given")
        return choice

    scale = _scale(machine, facts.num_videos)
    yield known(Choice("width", scale.width, f"channels of the stem; {scale.reason}"))
    hidden = "of projector and predictor, as wide as the network asks"
    yield known(Choice("hidden", scale.hidden, hidden))
    yield known(Choice("embedding", scale.embedding, "size of an embedding, likewise"))
    duration = known(_clip_duration(facts, scale, given.get("frames", scale.frames)))
    yield duration
    yield known(_frames(facts, duration.value, scale))
    yield known(_size(facts, scale))
    batch = known(_batch(facts, scale))
    if batch.value > facts.num_videos:
        raise ValueError(
            f"batch must be at most the {facts.num_videos} videos, got {batch.value}: clips of one "
            "video in a batch are taken for different videos"
        )
    yield batch
    yield known(_queue(facts, machine, batch.value))
    yield known(_samples(facts, batch.value))
    yield known(_workers(machine))
    yield known(_precision(machine))


def _clip_duration(facts: FolderFacts, scale: _Scale, frames: int) -> Choice:
    """The paper's 8 frames span 2.56 s; more frames of a clip do not lengthen it there."""
    wanted = 0.32 * scale.frames
    reason = "frames 0.32 s apart, as in the paper" if frames == scale.frames else "as in the paper"
    if frames > wanted * facts.fps:
        wanted = frames / facts.fps
        reason = f"{frames} different frames at {facts.fps:.2g} frames/s"
    if facts.duration < wanted:
        wanted = max(0.8 * facts.duration, 0.1)
        reason = f"four fifths of a video of {facts.duration:.1f} s"
    return Choice("clip_duration", round(wanted, 2), reason)


def _frames(facts: FolderFacts, clip_duration: float, scale: _Scale) -> Choice:
    """No frame twice in a clip."""
    available = max(1, int(min(clip_duration, facts.duration) * facts.fps + 0.01))
    if available < scale.frames:
        return Choice("frames", available, f"a clip of {clip_duration:g} s has no more")
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
    return Choice("queue", max(1, most // batch) * batch, "fewer keys than videos")


def _samples(facts: FolderFacts, batch: int) -> Choice:
    """Least samples of an epoch: 20 steps, so that few videos are passed over several times."""
    least = 20 * batch
    if facts.num_videos >= least:
        return Choice("epoch_samples", facts.num_videos, "every video once")
    passes = math.ceil(least / facts.num_videos)
    reason = f"{passes} clips of every video, so that an epoch has 20 steps or more"
    return Choice("epoch_samples", passes * facts.num_videos, reason)


def samples_of_epoch(num_videos: int, least: int) -> int:
    """Samples of an epoch of ``least`` or more: whole passes, as ``ResumableSampler`` makes."""
    return num_videos * max(1, math.ceil(least / num_videos))


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


def least_steps(machine: Machine, width: int) -> int:
    """Optimiser steps without a budget: on a CPU a wide network gets the time of a narrow one."""
    return _WIDE_STEPS if machine.gpu is None and width > 8 else _STEPS


def choose_epochs(
    steps: int,
    epoch_seconds: float | None,
    hours: float | None,
    least: int = _STEPS,
    other_seconds: float = 0.0,
) -> Choice:
    """The length of the training.

    Args:
        steps: Of an epoch.
        epoch_seconds: Measured time of an epoch; needed with ``hours``.
        hours: Budget of the command; None for enough steps to learn.
        least: Steps that are enough.
        other_seconds: Of the command before and after the training.

    Raises:
        ValueError: ``hours`` is not positive, or does not suffice for an epoch.
    """
    if hours is None:
        passes = min(20, math.ceil(_MANY_STEPS / steps))
        if passes * steps >= _MANY_STEPS:
            return Choice("epochs", passes, f"{passes * steps:,} steps; give hours for more")
        return Choice("epochs", max(20, math.ceil(least / steps)), f"{least} steps or more")
    if hours <= 0 or epoch_seconds is None:
        raise ValueError(f"--hours must be positive, got {hours}")
    epochs = int((hours * 3600 - other_seconds) / epoch_seconds)
    if epochs < 1:
        needed = (epoch_seconds + other_seconds) / 3600
        raise ValueError(
            f"{hours:g} hours do not suffice for one epoch, which takes {needed:.2g} with what "
            "comes before and after it: give more, or a smaller --size, --frames or --width"
        )
    return Choice(
        "epochs",
        epochs,
        f"{hours:g} hours at {epoch_seconds:.0f} s an epoch, and {other_seconds:.0f} s before and "
        "after; measured again while training",
    )


def choose_warmup(epochs: int) -> Choice:
    """Epochs in which the learning rate rises."""
    value = round(0.05 * epochs, 2)
    return Choice("warmup", int(value) if value == int(value) else value, "5 % of the epochs")


def choose_momentum(steps: int) -> Choice:
    """Where the momentum of the target starts: the fewer steps, the quicker the target.

    At 2000 steps 0.9 and 0.97 were compared on three kinds of videos (docs/results.md); the other
    limits are not measured.
    """
    for most, value in ((5000, 0.9), (20_000, 0.97), (math.inf, 0.99)):
        if steps <= most:
            return Choice("momentum", value, f"{steps:,} steps; fewer need a quicker target")
    raise AssertionError("the last limit is infinite")


def notes(facts: FolderFacts, size: int, loading: float, differences: float = 0.0) -> Iterator[str]:
    """Sentences about what is unusual and what to do.

    Args:
        facts: Of the videos.
        size: Pixels that a frame is reduced to.
        loading: Time of making a batch of views, in that of the network's step.
        differences: Probability that a clip shows RGB differences.
    """
    if facts.num_videos < _FEW_VIDEOS:
        yield (
            f"{facts.num_videos} videos are few: a network learns from the differences between "
            "videos, and each of these is compared with few others"
        )
    if facts.duration * facts.fps < 2:
        yield "the videos have a single frame: nothing moves, and the clips of a video are alike"
    if facts.duration > _LONG:
        yield (
            f"the videos are long ({facts.duration / 60:.0f} minutes): both clips of a pair come "
            f"from anywhere in a video, and should show the same. {_CUT}"
        )
    if differences and facts.repeats > MANY_REPEATS:
        yield (
            f"{100 * facts.repeats:.0f} % of adjacent frames are equal: RGB differences, of "
            f"{100 * differences:.0f} % of the clips, take the next frame that differs, and a clip "
            "in which nothing changes for 0.5 s stays RGB"
        )
    if loading > 2:
        yield (
            f"making the views takes {loading:.0f} times as long as the network's step; a copy "
            "that is quick to read: sce-video repack VIDEOS COPY "
            f"--short-side {max(128, 32 * math.ceil(size * 1.15 / 32))}"
        )
