"""Settings of a pretraining run, chosen from facts about the videos and the machine.

The functions are pure: they map facts to settings with reasons. The numbers come from recipes and
from measurements in docs/results.md and docs/performance.md. If a rule has not been measured, its
reason or comment states that.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sce_video.engine.optimizers import computes_bfloat16
from sce_video.engine.run_json import Choice
from sce_video.runs.folder_facts import FolderFacts
from sce_video.utils.cores import usable_cores


@dataclass(frozen=True)
class Machine:
    """Hardware to which the settings of a pretraining run are adapted."""

    cores: int  # CPU cores that this process may use
    gpu: str | None = None  # name of the GPU; None without a GPU
    gpu_memory: float = 0.0  # GPU memory in GiB
    bfloat16: bool = False  # whether the GPU computes in bfloat16; if not, float16 is used

    def describe(self) -> str:
        """Return a sentence about the machine for the user."""
        if self.gpu is None:
            return f"{self.cores} CPU cores, no GPU"
        return f"{self.cores} CPU cores, {self.gpu} with {self.gpu_memory:.0f} GiB"


def this_machine() -> Machine:
    """Describe the cores that this process may use, and the first GPU."""
    cores = usable_cores()
    if not torch.cuda.is_available():
        return Machine(cores)
    gpu = torch.cuda.get_device_properties(0)
    return Machine(cores, gpu.name, gpu.total_memory / 2**30, computes_bfloat16())


#: Number of optimiser steps below which a small network has learned little (docs/results.md)
_STEPS = 2000
#: Smallest number of videos for which a CPU trains a network that is twice as wide
#: (docs/results.md)
_WIDE_VIDEOS = 100
#: Number of optimiser steps for a wider network. On the real clips of J-HMDB, 1,200 steps are
#: hardly better than random weights, whereas 8,000 steps double their accuracy (docs/results.md).
_WIDE_STEPS = 8000
#: Largest number of loader workers with a GPU
_MAX_WORKERS = 16
#: Number of steps that are enough without a time budget, even if they take fewer than 20 epochs
_MANY_STEPS = 20_000
#: Largest number of steps for which SCE trains without a momentum target and without a queue. We
#: measured this with 600 steps (docs/results.md).
FEW_STEPS = 1000
#: Share of the epochs used for learning rate warm-up
WARMUP_SHARE = 0.05
#: Number of videos below which a note warns the user (chosen without measurement)
_FEW_VIDEOS = 50
#: Duration of a video in seconds above which a note warns the user (chosen without measurement)
_LONG = 60.0
#: Share of repeated frames above which a note warns the user
MANY_REPEATS = 0.1
#: Reason stated for choosing a small network if there is no GPU
_ON_CPU = "small, because there is no GPU"
#: Advice for long videos
_CUT = (
    "Cut long videos into pieces first: ffmpeg -i VIDEO.mp4 -c copy -f segment -segment_time 10 "
    "-reset_timestamps 1 PIECE%05d.mp4"
)


def default_method(machine: Machine, given: Container[str]) -> tuple[str, str]:
    """Choose a method, and return it with a clause that explains the choice.

    ``given`` contains the names of the settings that the user gave. In a few minutes on a CPU,
    SimCLR and LeJEPA learn the most, and SimCLR varies less over seeds (docs/results.md,
    "Which method?"). Longer runs need a GPU. The paper's results for such runs are SCE's. With
    their small batches, SimCLR is at a disadvantage, because its negatives come from the batch.
    """
    if "queue" in given or "momentum" in given:
        return "sce", ", which has the given settings"
    if machine.gpu is None:
        return "simclr", ", which learns the most in a few minutes on a CPU"
    return "sce", ", as in the paper"


@dataclass(frozen=True)
class NetworkScale:
    """Sizes of a network, a clip and a batch with which training takes hours, and their reason.

    Attributes:
        width: Number of channels in the network's stem.
        hidden: Hidden size of projector and predictor.
        embedding: Size of an embedding.
        frames: Number of frames in a clip.
        size: Height and width of a clip in pixels.
        batch: Number of videos in an optimiser step.
        reason: Short reason for the user.
    """

    width: int
    hidden: int
    embedding: int
    frames: int
    size: int
    batch: int
    reason: str


def network_scale(machine: Machine, num_videos: int) -> NetworkScale:
    """Choose the sizes of the network and its clips for a machine.

    They are not measured on GPUs. The memory is extrapolated from the recipes for ResNet3D-18.
    """
    if machine.gpu is None:
        width = 16 if num_videos >= _WIDE_VIDEOS else 8
        return NetworkScale(width, 256, 64, frames=4, size=64, batch=16, reason=_ON_CPU)
    reason = f"chosen for {machine.gpu_memory:.0f} GiB of GPU memory"
    if machine.gpu_memory >= 10:
        size = 224 if machine.gpu_memory >= 20 else 112
        return NetworkScale(64, 1024, 256, frames=8, size=size, batch=32, reason=reason)
    return NetworkScale(32, 512, 128, frames=8, size=112, batch=16, reason=reason)


class ChosenSettings:
    """Settings in the order in which they are chosen. Later settings depend on earlier ones.

    A value that the user gave takes precedence over a value from the network, which takes
    precedence over the added value.

    Args:
        given: Settings that the user gave, by name. None means that a setting was not given.
        own: Settings that come from the network, by name.
    """

    def __init__(self, given: Mapping[str, Any], own: Mapping[str, Choice] | None = None) -> None:
        self.given = {name: value for name, value in given.items() if value is not None}
        self.own = own or {}
        self.found: dict[str, Choice] = {}

    def add(self, choice: Choice) -> Any:
        """Add a setting, and return the value that takes precedence."""
        name = choice.setting
        if name in self.given:
            choice = Choice(name, self.given[name], "given")
        elif name in self.own:
            choice = self.own[name]
        self.found[name] = choice
        return choice.value

    def add_others(self) -> None:
        """Add the network's and the user's remaining settings that have not been chosen yet."""
        for name in (*self.own, *self.given):
            if name not in self.found:
                self.add(Choice(name, None, ""))


def choose_settings(
    facts: FolderFacts,
    machine: Machine,
    given: Mapping[str, Any] | None = None,
    own: Mapping[str, Choice] | None = None,
) -> dict[str, Choice]:
    """Choose every setting except the length of the training.

    Args:
        facts: Facts about the videos.
        machine: Machine on which the run trains.
        given: Settings that the user gave, by name. The other settings are adapted to them.
        own: Settings of the network from which training starts
            (:func:`~sce_video.runs.continued.own_choices`).

    Returns:
        The settings by name, in display order.

    Raises:
        ValueError: If there is only one video, or the given batch is too large.
    """
    if facts.num_videos < 2:
        raise ValueError(
            f"{facts.folder} contains only one video, but a network learns from the differences "
            f"between videos. {_CUT}"
        )
    choices, scale = ChosenSettings(given or {}, own), network_scale(machine, facts.num_videos)
    choices.add(Choice("width", scale.width, f"channels of the stem: {scale.reason}"))
    in_heads = "of projector and predictor, in proportion to the network"
    choices.add(Choice("hidden", scale.hidden, in_heads))
    choices.add(Choice("embedding", scale.embedding, "in proportion to the network"))
    _choose_clip(choices, facts, scale)
    _choose_batch(choices, facts.num_videos, machine, scale)
    choices.add(_checkpointing(machine, choices.found))
    _choose_loading(choices, machine)
    choices.add_others()
    return choices.found


def _choose_clip(choices: ChosenSettings, facts: FolderFacts, scale: NetworkScale) -> None:
    """Choose duration, frames and size of a clip."""
    frames = choices.given.get("frames", scale.frames)
    duration = choices.add(_clip_duration(facts, scale.frames, frames))
    # Number of distinct frames in a clip
    available = max(1, int(min(duration, facts.duration) * facts.fps + 0.01))
    fewer = f"a clip of {duration:g} s has no more frames"
    reason = fewer if available < scale.frames else scale.reason
    choices.add(Choice("frames", min(available, scale.frames), reason))
    if facts.short_side >= scale.size:
        reason = f"{scale.reason}; the short side of the videos is {facts.short_side} pixels"
        choices.add(Choice("size", scale.size, reason))
        return
    # Use a multiple of the network's stride, which is 32.
    side = max(32, facts.short_side // 32 * 32)
    reason = f"the short side of the videos is {facts.short_side} pixels"
    choices.add(Choice("size", side, reason))


def _choose_batch(
    choices: ChosenSettings, count: int, machine: Machine, scale: NetworkScale
) -> None:
    """Choose the batch, the queue, and the length of an epoch for ``count`` videos.

    Raises:
        ValueError: If the given batch is larger than the number of videos.
    """
    if count >= 2 * scale.batch:
        batch = choices.add(Choice("batch", scale.batch, scale.reason))
    else:
        few = 2 ** int(math.log2(max(2, count // 2)))
        batch = choices.add(Choice("batch", few, f"there are only {count} videos"))
    if batch > count:
        raise ValueError(
            f"batch must be at most {count}, the number of videos, got {batch}. Clips of one video "
            "would be treated as different videos"
        )
    most = 256 if machine.gpu is None else 4096
    fitting = max((count - 1) // batch * batch, batch)
    if fitting <= most:
        reason = f"fewer keys than the {count} videos: no video is its own negative"
        choices.add(Choice("queue", fitting, reason))
    else:
        choices.add(Choice("queue", max(1, most // batch) * batch, "fewer keys than videos"))
    passes = math.ceil(20 * batch / count)
    clips = f"{passes} clips of every video, so that an epoch has 20 steps or more"
    reason = clips if passes > 1 else "every video once"
    choices.add(Choice("epoch_samples", passes * count, reason))


def _choose_loading(choices: ChosenSettings, machine: Machine) -> None:
    """Choose loader workers and precision."""
    choices.add(choose_workers(machine))
    if machine.gpu is None:
        choices.add(Choice("precision", "float32", "mixed precision is slower on a CPU"))
    elif machine.bfloat16:
        reason = "the GPU has it, and it needs no loss scaling"
        choices.add(Choice("precision", "bfloat16", reason))
    else:
        choices.add(Choice("precision", "float16", "the GPU has no bfloat16"))


def choose_workers(machine: Machine) -> Choice:
    """Choose the number of loader workers."""
    cores = machine.cores
    if machine.gpu is None:
        return Choice(
            "workers", max(1, cores // 4), f"a quarter of {cores} cores, the rest computes"
        )
    workers = min(_MAX_WORKERS, max(1, cores - 1))
    return Choice("workers", workers, f"{cores} cores, one for the training process")


def _checkpointing(machine: Machine, chosen: Mapping[str, Choice]) -> Choice:
    """Choose whether to recompute activations because they do not fit into the GPU's memory.

    The memory is not measured, but scaled from the 20 GiB in :func:`network_scale`.
    """
    if machine.gpu is None:
        return Choice("memory", False, "without a GPU, time is short, not memory")
    batch, frames, size, width = (chosen[n].value for n in ("batch", "frames", "size", "width"))
    needed = 20 * batch / 32 * frames / 8 * (size / 224) ** 2 * width / 64
    if needed <= machine.gpu_memory:
        return Choice("memory", False, f"about {needed:.1f} GiB of GPU memory suffice")
    reason = f"about {needed:.0f} GiB of activations are recomputed, not kept"
    return Choice("memory", True, reason)


def _clip_duration(facts: FolderFacts, usual: int, frames: int) -> Choice:
    """Choose the duration of a clip with ``frames`` frames.

    The paper's 8 frames span 2.56 s. More frames than ``usual`` do not lengthen a clip, as in the
    paper, unless the videos have too few frames per second.
    """
    wanted = 0.32 * usual
    reason = "frames 0.32 s apart, as in the paper" if frames == usual else "as in the paper"
    if frames > wanted * facts.fps:
        wanted = frames / facts.fps
        reason = f"{frames} different frames at {facts.fps:.2g} frames/s"
    if facts.duration < wanted:
        wanted = max(0.8 * facts.duration, 0.1)
        reason = f"four fifths of a video of {facts.duration:.1f} s"
    return Choice("clip_duration", round(wanted, 2), reason)


def samples_of_epoch(num_videos: int, least: int) -> int:
    """Return the samples per epoch: whole passes over the videos, and at least ``least``."""
    return num_videos * max(1, math.ceil(least / num_videos))


def least_steps(width: int) -> int:
    """Return the number of steps without a budget, which is larger for a wide network."""
    return _WIDE_STEPS if width > 8 else _STEPS


def choose_epochs(
    steps: int,
    least: int = _STEPS,
    hours: float | None = None,
    epoch_seconds: float = 0.0,
    other_seconds: float = 0.0,
) -> Choice:
    """Choose the number of epochs.

    Args:
        steps: Optimiser steps per epoch.
        least: Number of optimiser steps that are sufficient.
        hours: Time budget of the command in hours. None trains for a sufficient number of steps.
        epoch_seconds: Measured seconds per epoch.
        other_seconds: Seconds of the command before and after training.

    Raises:
        ValueError: If ``hours`` does not suffice for an epoch.
    """
    if hours is None:
        passes = min(20, math.ceil(_MANY_STEPS / steps))
        if passes * steps >= _MANY_STEPS:
            return Choice("epochs", passes, f"{passes * steps:,} steps; give --hours for more")
        return Choice("epochs", max(20, math.ceil(least / steps)), f"{least} steps or more")
    epochs = int((hours * 3600 - other_seconds) / epoch_seconds)
    if epochs < 1:
        needed = (epoch_seconds + other_seconds) / 3600
        raise ValueError(
            f"{hours:g} hours do not suffice for one epoch, which takes {needed:.2g} hours "
            "including the work before and after it. Give more hours, or a smaller --size, "
            "--frames or --width"
        )
    reason = (
        f"{hours:g} hours at {epoch_seconds:.0f} s an epoch, and {other_seconds:.0f} s before and "
        "after; measured again while training"
    )
    return Choice("epochs", epochs, reason)


def warmup_and_momentum(
    epochs: int, steps: int, share: float = WARMUP_SHARE
) -> tuple[Choice, Choice]:
    """Choose the warm-up epochs and the initial momentum of the target network.

    The fewer ``steps`` there are in total, the faster the target network must follow. For 2000
    steps, 0.9 and 0.97 were compared on three kinds of videos (docs/results.md). The limits of
    5,000 and 20,000 steps are not measured.
    """
    rise, reason = round(share * epochs, 2), f"{100 * share:.0f} % of the epochs"
    warmup = Choice("warmup", int(rise) if rise == int(rise) else rise, reason)
    value = 0.9 if steps <= 5000 else 0.97 if steps <= 20_000 else 0.99
    return warmup, Choice("momentum", value, f"{steps:,} steps; fewer steps need a faster target")


def without_lag(steps: int, batch: int, queue: Choice) -> tuple[Choice, Choice, Choice]:
    """Choose momentum, queue and predictor of SCE for a run with few steps.

    The target follows immediately, the keys are as fresh as possible, and there is no predictor.
    The first ten steps change the network by a third. Keys from a target that lags by ten steps, or
    that have waited in the queue as long, therefore depend more on the step than on the video. A
    predictor starts with random weights. In both cases, the loss stays at chance level
    (docs/results.md).
    """
    momentum = Choice("momentum", 0.0, f"{steps:,} steps: the target is the network at first")
    if queue.value > 2 * batch:
        reason = "only the keys of the last batch, because older keys are stale"
        queue = Choice("queue", 2 * batch, reason)
    reason = f"{steps:,} steps: a predictor would start at random"
    return momentum, queue, Choice("predictor", None, reason)


def notes(
    facts: FolderFacts,
    size: int,
    loading: float,
    differences: float = 0.0,
    has_teacher: bool = False,
) -> Iterator[str]:
    """Yield sentences about unusual facts, with advice.

    Args:
        facts: Facts about the videos.
        size: Side of a view in pixels.
        loading: Time to make a batch of views, as a multiple of the network's step.
        differences: Probability that a clip shows RGB differences.
        has_teacher: Whether the network learns from a teacher instead of from differences between
            videos.
    """
    if facts.num_videos < _FEW_VIDEOS:
        why = (
            "A student learns the teacher's features only on these videos, and may imitate the "
            "teacher less well on other videos"
            if has_teacher
            else "A network learns from the differences between videos, and can compare each one "
            "with only a few others"
        )
        yield f"{facts.num_videos} videos are few. {why}"
    if facts.duration * facts.fps < 2:
        yield "the videos have a single frame, so nothing moves, and all clips of a video are equal"
    if facts.duration > _LONG:
        yield (
            f"the videos are long ({facts.duration / 60:.0f} minutes). The two clips of a pair are "
            f"drawn from the whole video, but should show the same scene. {_CUT}"
        )
    if differences and facts.repeats > MANY_REPEATS:
        yield (
            f"{100 * facts.repeats:.0f} % of adjacent frames are equal. RGB differences, which "
            f"{100 * differences:.0f} % of the clips show, use the next frame that differs. A clip "
            "in which nothing changes for 0.5 s stays RGB"
        )
    yield from slow_loading(size, loading)


def slow_loading(size: int, loading: float) -> Iterator[str]:
    """Yield a sentence if making views of this ``size`` takes more than two network steps."""
    if loading > 2:
        yield (
            f"making the views takes {loading:.0f} times as long as the network's step. Make a "
            "copy that is faster to read: sce-video repack VIDEOS COPY --short-side "
            f"{max(128, 32 * math.ceil(size * 1.15 / 32))}"
        )
