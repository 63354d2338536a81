"""Settings of a finetuning run, chosen from facts about the source, the videos and the machine.

The functions are pure, as in :mod:`sce_video.runs.choices`. Learning rates and layer decay of
transformers come from facebookresearch/mae (FINETUNE.md) and MCG-NJU/VideoMAE (FINETUNE.md). The
attentive head and its learning rate come from facebookresearch/jepa (configs/evals). The other
settings come from the recipe, or were measured (docs/results.md). A rule that was not measured is
marked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sce_video.engine.run_json import Choice
from sce_video.runs.choices import ChosenSettings, Machine, choose_settings, slow_loading
from sce_video.runs.continued import LAYER_DECAY, clip_of_network, names_layers
from sce_video.runs.folder_facts import FolderFacts
from sce_video.runs.start_weights import Source

#: Number of optimiser steps for a pretrained network if there is no time budget
LEAST_STEPS = 600
#: Number of optimiser steps for a network with random weights if there is no time budget
FROM_SCRATCH = 1500
#: Number of videos per class below which a convolutional backbone is frozen. With two videos per
#: class, training it was better than freezing it (docs/results.md). We have not measured one video
#: per class.
_FEW_FOR_CONVOLUTIONS = 2
#: Number of videos per class below which a transformer is frozen (chosen without measurement)
_FEW_FOR_TRANSFORMERS = 20
#: Number of parameters above which a CPU cannot train a transformer in an hour. This is an
#: estimate, not a measurement.
_LARGE = 50_000_000
#: AdamW learning rate for convolutional networks, as in the recipe
_RATE = 1e-3
#: AdamW learning rate for convolutional networks that were trained on images. At 1e-3, a student of
#: EfficientNet-Lite0 stays at chance on J-HMDB (docs/results.md).
_RATE_OF_IMAGE_NETWORKS = 1e-4
#: Learning rate for transformers with 256 videos per step, as in MAE and VideoMAE
_RATE_OF_TRANSFORMERS = 5e-4
#: AdamW weight decay, as in the recipe
_DECAY = 0.05
#: Learning rate of a linear head on frozen features, times the number of channels. A step of AdamW
#: changes each weight by the learning rate, so it changes a logit by this product. If the product
#: is 10, training for 600 steps reaches the accuracy of the linear probe for 64 to 1,024 channels
#: (docs/results.md). A fixed learning rate of 1e-2 did so only for many channels.
_RATE_TIMES_CHANNELS = 10
#: Networks that were trained to predict single positions of a clip instead of summarising it. Their
#: papers evaluate them with an attentive probe.
_OF_POSITIONS = frozenset(("videomae", "vjepa2", "videoprism_vision_model"))
#: Number of heads in the attentive probe (facebookresearch/jepa, configs/evals)
_ATTENTION_HEADS = 16
#: Learning rate for the attentive probe (facebookresearch/jepa, configs/evals)
_RATE_OF_ATTENTION = 1e-3
#: Weight decay for the attentive probe (facebookresearch/jepa, configs/evals)
_DECAY_OF_ATTENTION = 0.01
#: Words in class names that rule out mirroring
_DIRECTIONS = re.compile(r"(?<![a-z])(left|right)(?![a-z])", re.IGNORECASE)
#: Largest number of test clips per video, as in the paper
_MAX_CLIPS = 10
#: Largest number of test clips per video without a GPU
_MAX_CLIPS_ON_CPU = 5


def is_transformer(source: Source | None) -> bool:
    """Return whether a source's network consists of attention blocks."""
    return source is not None and source.family != "convolution"


def learned_images(source: Source | None) -> bool:
    """Return whether a source is a convolutional image network or a student of such a network.

    A student keeps the batch norm statistics of the images in training (``norm_eval``).
    """
    if source is None or is_transformer(source):
        return False
    return source.per_frame or bool(source.settings.backbone.get("norm_eval", False))


def choose_finetuning(
    facts: FolderFacts,
    machine: Machine,
    source: Source | None,
    per_class: int,
    given: Mapping[str, Any],
    classes: Sequence[str] = (),
    own_head: Choice | None = None,
) -> dict[str, Choice]:
    """Choose every setting except the length of the training.

    Args:
        facts: Facts about the training videos.
        machine: Machine on which the run trains.
        source: Network from which the run starts; None for random weights.
        per_class: Median number of training videos per class.
        given: Settings that the user gave, by name. The other settings are adapted to them.
        classes: Names of the classes.
        own_head: Classifier of the recipe; None chooses one.

    Returns:
        The settings by name, in display order.

    Raises:
        ValueError: If the clip of the source does not suit the videos, or an attentive head is
            given together with settings that it does not have.
    """
    choices = ChosenSettings(given)
    clip = {} if source is None else _clip(source, facts, machine, choices.given)
    usual = choose_settings(facts, machine, choices.given, clip)
    frozen = choices.add(_frozen(machine, source, per_class))
    head = choices.add(own_head or _head(source, frozen, per_class))
    _check_head(head, frozen, choices.given)
    channels = 8 * usual["width"].value if source is None else source.channels
    choices.add(_rate(source, frozen, usual["batch"].value, head, channels))
    choices.add(_weight_decay(frozen, head))
    choices.add(_dropout(source, frozen))
    for name in ("width", "clip_duration", "frames", "size"):
        if name != "width" or source is None:
            choices.add(usual[name])
    choices.add(_flip(classes))
    choices.add(usual["batch"])
    choices.add(_test_clips(machine, facts, usual["clip_duration"].value))
    choices.add(_test_crops(facts, source))
    choices.add(usual["workers"])
    choices.add(usual["precision"])
    choices.add_others()
    return choices.found


def _flip(classes: Sequence[str]) -> Choice:
    """Choose the probability that a clip is mirrored."""
    directed = [name for name in classes if _DIRECTIONS.search(name)]
    if directed:
        return Choice("flip", 0.0, f"the class {directed[0]!r} tells left from right")
    return Choice("flip", 0.5, "no class name tells left from right")


def _clip(
    source: Source, facts: FolderFacts, machine: Machine, values: Mapping[str, Any]
) -> dict[str, Choice]:
    """Choose frames, duration and size of the clips for a network.

    An image network encodes several frames, and their features are averaged. The frames span as
    much time as a clip of a video network that is trained from scratch.

    Raises:
        ValueError: If the clip does not suit the videos.
    """
    clip = clip_of_network(source, facts, values)
    if not source.per_frame:
        return clip
    usual = choose_settings(facts, machine, values)
    reason = "the features of an image network's frames are averaged"
    for name in ("frames", "clip_duration"):
        clip[name] = Choice(name, usual[name].value, reason)
    return clip


def _frozen(machine: Machine, source: Source | None, per_class: int) -> Choice:
    """Choose the number of frozen stages: -1 for none, 4 for all."""
    videos = f"{per_class} video{'s' * (per_class > 1)} per class"
    if source is None:
        return Choice("frozen", -1, "all weights are trained, because they start at random")
    all_trained = Choice("frozen", -1, f"all weights are trained: {videos}")
    if not is_transformer(source):
        if per_class >= _FEW_FOR_CONVOLUTIONS:
            return all_trained
        count = f"{source.parameters:,}"
        return Choice("frozen", 4, f"one video per class is too little to change {count} weights")
    if per_class < _FEW_FOR_TRANSFORMERS:
        reason = f"{videos}: a transformer needs {_FEW_FOR_TRANSFORMERS} or more"
        return Choice("frozen", 4, reason)
    if machine.gpu is None and source.parameters > _LARGE:
        count = f"{source.parameters / 1e6:.0f} M"
        return Choice("frozen", 4, f"without a GPU, training {count} weights takes too long")
    return all_trained


def _head(source: Source | None, frozen: int, per_class: int) -> Choice:
    """Choose the classifier."""
    if source is None or frozen != 4 or source.family not in _OF_POSITIONS:
        return Choice("head", "linear", "on the mean of the features")
    if per_class < _FEW_FOR_TRANSFORMERS:
        reason = f"an attentive one has too many weights for {per_class} videos per class"
        return Choice("head", "linear", reason)
    if source.settings.backbone.get("pool") != "mean" or source.channels % _ATTENTION_HEADS:
        reason = "the network gives one feature per clip, or too few channels"
        return Choice("head", "linear", reason)
    reason = "a query attends to all positions, as in the probes of V-JEPA and VideoPrism"
    return Choice("head", "attentive", reason)


def _check_head(head: str, frozen: int, given: Mapping[str, Any]) -> None:
    """Raise ValueError if a head cannot be combined with these settings."""
    if head == "attentive" and frozen != 4:
        raise ValueError(
            f"an attentive head needs a frozen network. Set frozen to 4 instead of {frozen}"
        )
    if head == "attentive" and "dropout" in given:
        raise ValueError("an attentive head has no dropout. Remove dropout, or set head to linear")


def _rate(source: Source | None, frozen: int, batch: int, head: str, channels: int) -> Choice:
    """Choose AdamW's learning rate after the warm-up, given the number of feature channels."""
    if head == "attentive":
        return Choice("lr", _RATE_OF_ATTENTION, "as in V-JEPA's evaluation")
    if frozen == 4:
        rate = float(f"{_RATE_TIMES_CHANNELS / max(1, channels):.2g}")
        how = f"{_RATE_TIMES_CHANNELS} / {channels} channels"
        return Choice("lr", rate, f"{how}: only the classifier is trained")
    if learned_images(source):
        return Choice("lr", _RATE_OF_IMAGE_NETWORKS, "AdamW; more destroys features of images")
    if not is_transformer(source):
        return Choice("lr", _RATE, "AdamW, as in the recipe")
    rate = float(f"{_RATE_OF_TRANSFORMERS * batch / 256:.2g}")
    how = f"{_RATE_OF_TRANSFORMERS:g} x batch / 256"
    return Choice("lr", rate, f"{how}, as MAE and VideoMAE are finetuned")


def _weight_decay(frozen: int, head: str) -> Choice:
    """Choose the weight decay of AdamW."""
    if head == "attentive":
        return Choice("weight_decay", _DECAY_OF_ATTENTION, "as in V-JEPA's evaluation")
    if frozen == 4:
        return Choice("weight_decay", 0.0, "it would hold the classifier back at this rate")
    return Choice("weight_decay", _DECAY, "of AdamW, as in the recipe")


def layer_decay(source: Source | None, frozen: int) -> Choice | None:
    """Choose the ratio of a transformer layer's learning rate to the layer above it."""
    if source is None or not is_transformer(source) or frozen == 4 or not names_layers(source):
        return None
    return Choice("layer_decay", LAYER_DECAY, "lower layers change less, as in VideoMAE")


def _dropout(source: Source | None, frozen: int) -> Choice:
    """Choose the share of features that dropout hides from the classifier."""
    if frozen == 4:
        return Choice("dropout", 0.0, "only the classifier is trained")
    if is_transformer(source):
        return Choice("dropout", 0.0, "as transformers are finetuned")
    return Choice("dropout", 0.5, "before the classifier, as in the recipe")


def _test_clips(machine: Machine, facts: FolderFacts, duration: float) -> Choice:
    """Choose the number of test clips per video, whose probabilities are averaged."""
    most = _MAX_CLIPS_ON_CPU if machine.gpu is None else _MAX_CLIPS
    # Neighbouring clips overlap by half. Use at least two clips, even if a video is only as long as
    # one clip.
    wanted = max(2, math.ceil(2 * facts.duration / duration))
    if wanted <= most:
        reason = f"of {duration:g} s, in videos of {facts.duration:.1f} s"
        return Choice("clips", wanted, reason)
    reason = "as in the paper" if machine.gpu else "half of the paper's 10, because there is no GPU"
    return Choice("clips", most, reason)


def _test_crops(facts: FolderFacts, source: Source | None) -> Choice:
    """Choose the number of crops of a test clip."""
    if source is not None and source.settings.resize in ("square", "network"):
        return Choice("crops", 1, "the network sees whole frames")
    if abs(facts.width / max(1, facts.height) - 1) < 0.05:
        return Choice("crops", 1, "the videos are square: three crops would show the same")
    return Choice("crops", 3, "along the long side, as in the paper")


def finetuning_notes(
    counts: Sequence[int], tested: int, shared: int, size: int, loading: float
) -> Iterator[str]:
    """Yield sentences about anything unusual.

    Args:
        counts: Number of training videos in each class.
        tested: Number of test videos.
        shared: Number of videos in both sets.
        size: Side of a view in pixels.
        loading: Time to make a batch of views, as a multiple of the network's step.
    """
    if shared:
        yield (
            f"{shared} videos are in both the training and the test set, so the accuracy is not "
            "valid for new videos"
        )
    if max(counts) > 10 * max(1, min(counts)):
        yield (
            f"the largest class has {max(counts)} videos and the smallest {min(counts)}, so look "
            "at the mean class accuracy"
        )
    if tested < 30:
        yield f"there are only {tested} test videos, so the interval of the accuracy is wide"
    yield from slow_loading(size, loading)
