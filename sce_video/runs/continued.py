"""Pretraining that starts from a network: what is kept of it, and which settings suit it.

A network that is already good is changed in small steps. Its first layers change least. While the
heads are still random, all layers change little. The numbers come from other work (docs/settings.md
lists the sources). docs/results.md states which of them were measured here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.config import Config

from sce_video.engine.run_json import Choice
from sce_video.models.backbones.common import FreezableBackbone
from sce_video.registry import MODELS
from sce_video.runs.choices import Machine, network_scale
from sce_video.runs.folder_facts import FolderFacts
from sce_video.runs.start_weights import Source
from sce_video.utils.records import at


@dataclass(frozen=True)
class Suited:
    """Settings that suit a transformer with up to ``parameters`` weights."""

    size: str
    parameters: float
    lr: float
    # Share of the usual batch size. It is smaller for larger networks, whose activations need more
    # memory (chosen without measurement).
    batch_share: float


TRANSFORMERS = (
    Suited("small", 60e6, 5e-5, 1.0),  # chosen without measurement
    Suited("base", 200e6, 1.7e-5, 0.5),  # lr is the geometric mean of the other two rows
    # As for V-JEPA's ViT-L, which was trained further on videos of apes (ecker-lab/dap-behavior,
    # configs/pretrain, arXiv 2509.12193)
    Suited("large", math.inf, 6e-6, 0.25),
)
#: Factor for convolutional networks on the recipe's learning rate, which is meant for training from
#: scratch. We chose the factor by hand.
CONVOLUTION_LR_SHARE = 0.1
#: Ratio between the learning rates of a block and the block after it (ViT-L in
#: facebookresearch/mae, FINETUNE.md)
LAYER_DECAY = 0.75
#: Weight decay of transformers at the start and at the end of training (facebookresearch/jepa,
#: vitl16.yaml)
WEIGHT_DECAY = 0.04, 0.4
#: Initial momentum of the target network (facebookresearch/jepa, vitl16.yaml; dap-behavior)
MOMENTUM = 0.998
#: Share of the epochs used for warm-up (5 of 50 in dap-behavior, 40 of 300 in V-JEPA)
CONTINUED_WARMUP_SHARE = 0.1
#: Largest norm of the whole gradient, as in lightly-train (dino.py). The original DINO limits the
#: norm of each parameter's gradient separately.
CLIP_GRAD = 3.0
#: Factor on the learning rate if adapters are trained instead of all weights (Thinking Machines Lab
#: 2025, "LoRA Without Regret")
LORA_LR_FACTOR = 10
#: Parameters without weight decay: biases, position embeddings, tokens and layer scales
NO_DECAY = (
    *("bias", "q_bias", "v_bias", "position_time", "position_space", "position_embeddings"),
    *("cls_token", "register_tokens", "class_embedding", "lambda1"),
)
#: Rows in a plan that are not settings of a recipe
ROWS = ("clip_grad", "weight_decay", "layer_decay")
#: Videos are enlarged by less than this factor for a network with a fixed input size.
_MAX_ENLARGED = 2.0
#: Smallest height and width of a view, which is also the stride of convolutional networks
_LEAST_SIDE = 32


@dataclass(frozen=True)
class Start:
    """Network from which a pretraining run starts, and how it is trained.

    Attributes:
        source: Network from :func:`~sce_video.runs.start_weights.find_source`.
        freeze: Number of frozen quarters of the network's blocks; 0 freezes only the stem or
            the embeddings, and None trains everything.
        lora: Rank of the adapters that are trained instead of the weights; None for no adapters.
    """

    source: Source
    freeze: int | None = None
    lora: int | None = None

    def __post_init__(self) -> None:
        kind = self.source.settings.backbone["type"]
        if self.freeze is not None and not _can_freeze(kind):
            raise ValueError(f"freeze: no part of a {kind} can be frozen")
        if self.lora is not None and self.source.family == "convolution":
            raise ValueError(
                f"lora adapts attention and MLP layers, which {self.source.name}, a {kind}, does "
                "not have. Remove it, or freeze the first quarters"
            )

    @property
    def suited(self) -> Suited | None:
        """Settings for a transformer of this size; None for a convolutional network."""
        if self.source.family == "convolution":
            return None
        return next(row for row in TRANSFORMERS if self.source.parameters <= row.parameters)

    def describe(self) -> str:
        """Return a phrase about the network for the plan."""
        how = "" if self.freeze is None else f", the first {self.freeze} quarters frozen"
        first = "stem" if self.suited is None else "patch embeddings"
        how = f", the {first} frozen" if self.freeze == 0 else how
        how += "" if self.lora is None else f", adapters of rank {self.lora} are trained"
        return f"{self.source.kind} of {self.source.parameters:,} parameters{how}"


def own_choices(
    start: Start, facts: FolderFacts, machine: Machine, given: Mapping[str, Any], recipe_lr: float
) -> dict[str, Choice]:
    """Return the settings that come from the network, by name.

    Args:
        start: Network from which the run starts.
        facts: Facts about the videos.
        machine: Machine on which the run trains.
        given: Settings that the user gave, by name.
        recipe_lr: Learning rate of the recipe.

    Raises:
        ValueError: If the network's clip length does not fit the videos, or the network does not
            accept the requested clips.
    """
    source, row = start.source, start.suited
    own = [*clip_of_network(source, facts, given).values()]
    lr = recipe_lr * CONVOLUTION_LR_SHARE if row is None else row.lr
    why = "a tenth of the recipe's" if row is None else f"a {row.size} transformer"
    if start.lora is not None:
        lr, why = lr * LORA_LR_FACTOR, f"{LORA_LR_FACTOR} times that of {why}, for adapters"
    reason = f"{why}; a larger one may undo what the network has learned"
    own.append(Choice("lr", float(f"{lr:.3g}"), reason))
    own.append(Choice("momentum", MOMENTUM, "the target begins as the network itself"))
    own.append(Choice("clip_grad", CLIP_GRAD, "largest norm of the gradient of a step"))
    if row is not None:
        first, last = WEIGHT_DECAY
        reason = "follows a cosine; not for norms and biases"
        own.append(Choice("weight_decay", f"{first} to {last}", reason))
        if names_layers(source):
            reason = "learning rate of a block relative to the next block"
            own.append(Choice("layer_decay", LAYER_DECAY, reason))
    if row is not None and row.batch_share < 1:
        usual = network_scale(machine, facts.num_videos).batch
        most = 2 ** int(math.log2(max(2, facts.num_videos // 2)))
        batch = max(2, min(int(usual * row.batch_share), most))
        own.append(Choice("batch", batch, f"for a {row.size} transformer"))
    return {choice.setting: choice for choice in own}


def clip_of_network(
    source: Source, facts: FolderFacts, given: Mapping[str, Any]
) -> dict[str, Choice]:
    """Return the frames, duration and size of a clip that suit the network, by name.

    Raises:
        ValueError: If the clip does not suit the videos, or the network does not accept the
            requested values.
    """
    network = _meta_network(source)
    own = _frames(source, network, facts, given)
    frames = given.get("frames", own)
    duration = _clip_duration(source, facts, frames)
    size = _size(source, network, facts, frames)
    clip = {"frames": frames, "size": given.get("size", size.value)}
    if refused := _refused(source, network, **clip):
        what, taken = refused
        raise ValueError(
            f"--{what} {clip[what]}: {source.name} accepts only {taken}. Remove --{what}"
        )
    found = (Choice("frames", own, "as the network expects"), duration, size)
    return {choice.setting: choice for choice in found}


def _meta_network(source: Source) -> Any:
    """Build a network, without memory, that states which clips it accepts; None if it does not."""
    if not hasattr(_class_of(source), "refused"):
        return None
    with torch.device("meta"):
        return MODELS.build(_backbone(source))


def _refused(source: Source, network: Any, frames: int, size: int) -> tuple[str, str] | None:
    """Return a refused setting and what the network accepts; None if it accepts this clip."""
    if network is not None:
        return network.refused(frames, size, size)
    patch = source.settings.backbone.get("patch_size", 16)
    if source.family == "vit" and type(patch) is int and size % patch:
        return "size", f"sizes that are multiples of its patches of {patch} pixels"
    return None


def _frames(source: Source, network: Any, facts: FolderFacts, given: Mapping[str, Any]) -> int:
    """Return the number of frames per clip that the network accepts."""
    own, size = source.settings.num_frames, source.train_size
    available = max(1, int(facts.duration * facts.fps + 0.01))
    if "frames" in given or own <= available:
        return own
    fewer = [n for n in range(available, 0, -1) if not _refused(source, network, n, size)]
    advice = f"Give --frames {fewer[0]}" if fewer else "Give longer videos or another source"
    raise ValueError(
        f"{source.name} needs clips of {own} frames, but the videos in {facts.folder} have "
        f"{available}. {advice}"
    )


def _clip_duration(source: Source, facts: FolderFacts, frames: int) -> Choice:
    """Choose the duration of a clip in seconds, at the network's own frame rate."""
    seconds, own = source.settings.clip_duration, source.settings.num_frames
    longest = max(0.8 * facts.duration, 0.1)
    if seconds is None:
        reason = "the network spreads its frames over the whole video"
        return Choice("clip_duration", round(longest, 2), reason)
    wanted = seconds / own * frames
    if wanted > facts.duration:
        reason = f"four fifths of a video; the network was trained on {wanted:.3g} s"
        return Choice("clip_duration", round(longest, 2), reason)
    reason = f"{frames / wanted:.3g} frames/s, as in the network's training"
    return Choice("clip_duration", round(wanted, 3), reason)


def _size(source: Source, network: Any, facts: FolderFacts, frames: int) -> Choice:
    """Choose the height and width of a view."""
    own, side = source.train_size, facts.short_side
    if side >= own:
        return Choice("size", own, "as the network expects")
    refuse_small_videos(source, network, own, facts)
    if getattr(network, "takes_one_size", False):
        return Choice("size", own, "as the network expects; the videos are enlarged")
    # Convolutional networks have a stride of 32. A transformer's patch size has to divide the side.
    step = _LEAST_SIDE if source.family == "convolution" else 1
    sides = range(max(side, _LEAST_SIDE) // step * step, _LEAST_SIDE - 1, -step)
    fitting = (n for n in sides if not _refused(source, network, frames, n))
    reason = f"the short side of the videos is {side} pixels"
    return Choice("size", next(fitting, own), reason)


def enlarges_much(size: int, facts: FolderFacts) -> bool:
    """Return whether videos would be enlarged by a factor of 2 or more to frames of a size."""
    return size >= _MAX_ENLARGED * facts.short_side


def refuse_small_videos(source: Source, network: Any, size: int, facts: FolderFacts) -> None:
    """Raise ValueError if a network accepts only frames that are much larger than the videos.

    Args:
        source: Network to which the videos are shown.
        network: The same network, as a module that may state which frames it accepts.
        size: Height and width of its frames in pixels.
        facts: Facts about the videos.
    """
    if getattr(network, "takes_one_size", False) and enlarges_much(size, facts):
        raise ValueError(
            f"{source.name} needs frames of {size}x{size} pixels, but the short side of the "
            f"videos in {facts.folder} is {facts.short_side}. Give larger videos, or a network "
            "that accepts smaller frames"
        )


def enlarged(frames: str, side: int, size: int, name: str) -> list[str]:
    """Return a sentence if frames are enlarged for a network.

    Args:
        frames: Description of the frames.
        side: Short side of the frames in pixels.
        size: Height and width of the network's input in pixels.
        name: Name of the network.
    """
    if side >= size:
        return []
    return [f"{frames} are enlarged from {side} to {size} pixels, the input size of {name}"]


def remarks(start: Start, facts: FolderFacts, frames: int, size: int) -> list[str]:
    """Return sentences about anything unusual in the initial network.

    Args:
        start: Network from which the run starts.
        facts: Facts about the videos.
        frames: Number of frames in a clip.
        size: Height and width of a view in pixels.
    """
    source, found = start.source, []
    if source.is_classifier:
        found.append(f"{source.name} is a classifier. Only its backbone is used, not its classes")
    if source.per_frame:
        found.append(f"{source.name} encodes images. {_motion(source, frames)}")
    return found + enlarged("frames", facts.short_side, size, source.name)


def _motion(source: Source, frames: int) -> str:
    """Return a sentence about the motion that an image network detects in its clips."""
    if frames == 1:
        return "It receives one frame of each clip, so it does not detect motion"
    separately = "It encodes the frames of a clip separately and"
    pool = source.settings.backbone.get("frame_pool", "mean")
    if pool == "mean":
        return f"{separately} averages their features, so it does not detect motion"
    return f"{separately} pools their features by {pool}, which shows how they change"


def continue_from(config: Config, start: Start) -> None:
    """Set network, weights, normalisation and optimiser of a planned config, in place.

    Raises:
        ValueError: If the method has smaller views than the network accepts.
    """
    source = start.source
    pipeline = config.train_dataloader.dataset.pipeline
    _check_local_views(config.model.type, pipeline, source)
    take_network(config, source, -1 if start.freeze is None else start.freeze)
    wrapper = config.optim_wrapper
    wrapper.clip_grad = dict(max_norm=CLIP_GRAD)
    if start.suited is not None:
        wrapper.constructor = "NoNormDecayConstructor"
        wrapper.paramwise_cfg = dict(no_decay=list(NO_DECAY))
        if names_layers(source):
            wrapper.paramwise_cfg["layer_decay"] = LAYER_DECAY
        first, last = WEIGHT_DECAY
        wrapper.optimizer.weight_decay = first
        schedules = next(h for h in config.custom_hooks if h.type == "ScheduleHook")
        schedules.weight_decay = dict(name="cosine", start=first, end=last)
    if start.lora is not None:
        config.lora = dict(rank=start.lora)
    for step in pipeline:
        if "diff_prob" in step and source.per_frame:
            step.diff_prob = 0.0  # a single frame has no differences


def take_network(config: Config, source: Source, frozen: int) -> None:
    """Set a config's network with ``frozen_stages``, weights and normalisation, in place."""
    backbone = _backbone(source)
    if _can_freeze(backbone["type"]):
        backbone["frozen_stages"] = frozen
    config.model.backbone = backbone
    config.pretrained = source.checkpoint
    config.data_preprocessor.update(
        mean=source.settings.mean,
        std=source.settings.std,
        channels_last=bool(backbone.get("channels_last", False)),
    )


def _backbone(source: Source) -> dict[str, Any]:
    """Return a copy of a network's settings without ``resize_to``.

    The pipeline provides frames of the planned size, which the network would enlarge again.
    """
    return {k: v for k, v in source.settings.backbone.items() if k != "resize_to"}


def _check_local_views(method: str, pipeline: Sequence[dict], source: Source) -> None:
    """Raise ValueError if the network does not accept a method's local views."""
    steps = {step["type"].rpartition(".")[2]: step for step in pipeline}
    if not at(steps, "RandomClips.num_local_views"):
        return
    clips, crops = steps["RandomClips"], steps["RandomResizedCropClips"]
    sizes = at(crops, "local_size") or crops["size"]
    frames = at(clips, "local_num_frames") or clips["num_frames"]
    network = _meta_network(source)
    for size in (sizes,) if isinstance(sizes, int) else sizes:
        if refused := _refused(source, network, frames, size):
            raise ValueError(
                f"{method} has local views of {frames} frames of {size}x{size}, but {source.name} "
                f"accepts only {refused[1]}. Use another --method"
            )


def names_layers(source: Source) -> bool:
    """Return whether every layer can have its own learning rate."""
    return issubclass(_class_of(source), FreezableBackbone)


def _class_of(source: Source) -> Any:
    return MODELS.get(source.settings.backbone["type"])


def _can_freeze(kind: str) -> bool:
    """Return whether the constructor of a backbone has the argument ``frozen_stages``."""
    part: Any = MODELS.get(kind)
    return "frozen_stages" in inspect.signature(part).parameters
