"""The settings of a finetuning, chosen from what is known of source, videos and machine.

Pure functions, as :mod:`sce_video.runs.choices`. Rates and layer decay of transformers are those of
facebookresearch/mae (FINETUNE.md) and MCG-NJU/VideoMAE (FINETUNE.md), the attentive head and its
rate those of facebookresearch/jepa (configs/evals); the others are those of the recipe, or measured
(docs/results.md). A rule that has not been measured says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sce_video.engine.run_json import Choice
from sce_video.runs.choices import Machine, choose, slow_loading
from sce_video.runs.continued import LAYER_DECAY, clip_of_network, names_layers
from sce_video.runs.folder_facts import FolderFacts
from sce_video.runs.start_weights import Source

#: Optimiser steps without a budget, of a pretrained network.
LEAST_STEPS = 600
#: And from random weights.
FROM_SCRATCH = 1500
#: Videos of a class below which a convolutional backbone stays frozen: with two, training it was
#: better than freezing it (docs/results.md). One video is not measured.
_FEW_FOR_CONVOLUTIONS = 2
#: And a transformer (not measured).
_FEW_FOR_TRANSFORMERS = 20
#: Parameters of a transformer that a CPU does not train in an hour (not measured).
_LARGE = 50_000_000
#: Learning rate of AdamW for convolutions, that of the recipe.
_RATE = 1e-3
#: And for transformers with 256 videos in a step (MAE and VideoMAE).
_RATE_OF_TRANSFORMERS = 5e-4
#: Weight decay of AdamW, that of the recipe.
_DECAY = 0.05
#: Over the channels, the rate of a linear head on frozen features. A step of AdamW changes each
#: weight by the rate, so a logit by the rate times the channels: where that is 10, 600 steps reach
#: the probe with 64 to 1,024 channels (docs/results.md); a fixed 1e-2 did with many of them alone.
_RATE_TIMES_CHANNELS = 10
#: Networks whose positions are trained one by one, and no summary of a clip: their papers read them
#: out by attention.
_OF_POSITIONS = frozenset(("videomae", "vjepa2", "videoprism_vision_model"))
#: Heads of this attention (facebookresearch/jepa, configs/evals).
_ATTENTION_HEADS = 16
#: Its learning rate (ibid.).
_RATE_OF_ATTENTION = 1e-3
#: Its weight decay (ibid.).
_DECAY_OF_ATTENTION = 0.01
_DIRECTIONS = re.compile(r"(?<![a-z])(left|right)(?![a-z])", re.IGNORECASE)
#: Test clips of a video at most, as in the paper.
_MAX_CLIPS = 10
#: And without a GPU.
_MAX_CLIPS_ON_CPU = 5


def is_transformer(source: Source | None) -> bool:
    """Whether the network of a source is made of blocks of attention."""
    return source is not None and source.family != "convolution"


def choose_finetuning(
    facts: FolderFacts,
    machine: Machine,
    source: Source | None,
    per_class: int,
    given: Mapping[str, Any],
    classes: Sequence[str] = (),
) -> dict[str, Choice]:
    """Every setting but the length of the training, by its name, in the order to show them.

    Args:
        facts: Of the training videos.
        machine: That trains.
        source: Network to start from; None for random weights.
        per_class: Training videos of a class, the median.
        given: Settings that the user chose, by name; the others are chosen to suit them.
        classes: Names of the classes.

    Raises:
        ValueError: the clip of the source does not fit the videos, a given setting is not one of
            a finetuning, or an attentive head is given with what it does not have.
    """
    values = {name: value for name, value in given.items() if value is not None}
    clip = {} if source is None else _clip(source, facts, machine, values)
    own = choose(facts, machine, values, clip)
    chosen: dict[str, Choice] = {}

    def add(name: str, value: Any, reason: str) -> Any:
        """What is given wins; later choices follow the value."""
        of_user = name in values
        reason = "given" if of_user else reason
        chosen[name] = Choice(name, values[name] if of_user else value, reason)
        return chosen[name].value

    batch = own["batch"].value
    frozen = add("frozen", *_frozen(machine, source, per_class))
    head = add("head", *_head(source, frozen, per_class))
    _check_head(head, frozen, values)
    channels = 8 * own["width"].value if source is None else source.channels
    add("lr", *_rate(source, frozen, batch, head, channels))
    add("weight_decay", *_weight_decay(frozen, head))
    add("dropout", *_dropout(source, frozen))
    kept = ("width",) * (source is None) + ("clip_duration", "frames", "size")
    chosen |= {name: own[name] for name in kept}
    directed = [name for name in classes if _DIRECTIONS.search(name)]
    tells = f"the class {directed[0]!r} tells left from right" if directed else ""
    add("flip", 0.0 if directed else 0.5, tells or "no class name tells left from right")
    chosen["batch"] = own["batch"]
    add("clips", *_test_clips(machine, facts, chosen["clip_duration"].value))
    add("crops", *_test_crops(facts, source))
    chosen |= {name: own[name] for name in ("workers", "precision")}
    extra = {name: Choice(name, values[name], "given") for name in values if name not in chosen}
    return {**chosen, **extra}


def _clip(
    source: Source, facts: FolderFacts, machine: Machine, values: Mapping[str, Any]
) -> dict[str, tuple[Any, str]]:
    """Frames, duration and size of a clip for the network of a source, with reasons.

    An image network sees several frames, whose features are averaged, as long as a video network
    of one's own would. Raises ValueError: they do not fit.
    """
    clip = clip_of_network(source, facts, values)
    if not source.per_frame:
        return clip
    usual = choose(facts, machine, {k: v for k, v in values.items() if k != "width"})
    reason = "of an image network the features of the frames are averaged"
    return {"size": clip["size"]} | {
        k: (usual[k].value, reason) for k in ("frames", "clip_duration")
    }


def _frozen(machine: Machine, source: Source | None, per_class: int) -> tuple[int, str]:
    """``frozen_stages``, -1 for none and 4 for all, and the reason."""
    videos = f"{per_class} video{'s' * (per_class > 1)} of a class"
    if source is None:
        return -1, "all weights are trained: random ones know nothing yet"
    if not is_transformer(source):
        if per_class < _FEW_FOR_CONVOLUTIONS:
            return 4, f"one video of a class is too little to change {source.parameters:,} weights"
        return -1, f"all weights are trained: {videos}"
    if per_class < _FEW_FOR_TRANSFORMERS:
        return 4, f"{videos}: a transformer wants {_FEW_FOR_TRANSFORMERS} or more"
    if machine.gpu is None and source.parameters > _LARGE:
        return 4, f"no GPU: {source.parameters / 1e6:.0f} M weights are trained too slowly"
    return -1, f"all weights are trained: {videos}"


def _head(source: Source | None, frozen: int, per_class: int) -> tuple[str, str]:
    """The classifier, and the reason."""
    if source is None or frozen != 4 or source.family not in _OF_POSITIONS:
        return "linear", "on the mean of the features"
    if per_class < _FEW_FOR_TRANSFORMERS:
        return "linear", f"an attentive one has too many weights for {per_class} of a class"
    if source.settings.backbone.get("pool") != "mean" or source.channels % _ATTENTION_HEADS:
        return "linear", "the network gives one feature of a clip, or too narrow ones"
    return "attentive", "a query to the positions, as V-JEPA and VideoPrism are read out"


def _check_head(head: str, frozen: int, given: Mapping[str, Any]) -> None:
    """Raise ValueError for a head that there is not, or not with these settings."""
    if head == "attentive" and frozen != 4:
        raise ValueError(f"an attentive head wants a frozen network: give frozen 4, not {frozen}")
    if head == "attentive" and "dropout" in given:
        raise ValueError("an attentive head has no dropout: leave it out, or give head linear")


def _rate(
    source: Source | None, frozen: int, batch: int, head: str, channels: int
) -> tuple[float, str]:
    """Learning rate of AdamW after the warm-up, and the reason; ``channels`` of the features."""
    if head == "attentive":
        return _RATE_OF_ATTENTION, "as in V-JEPA's evaluation"
    if frozen == 4:
        rate = float(f"{_RATE_TIMES_CHANNELS / max(1, channels):.2g}")
        return rate, f"{_RATE_TIMES_CHANNELS} / {channels} channels: only the classifier is trained"
    if not is_transformer(source):
        return _RATE, "AdamW, as in the recipe"
    rate = float(f"{_RATE_OF_TRANSFORMERS * batch / 256:.2g}")
    return rate, f"{_RATE_OF_TRANSFORMERS:g} x batch / 256, as MAE and VideoMAE are finetuned"


def _weight_decay(frozen: int, head: str) -> tuple[float, str]:
    """Of AdamW, and the reason."""
    if head == "attentive":
        return _DECAY_OF_ATTENTION, "as in V-JEPA's evaluation"
    if frozen == 4:
        return 0.0, "at this rate it would hold the classifier back"
    return _DECAY, "of AdamW, as in the recipe"


def layer_decay(source: Source | None, frozen: int) -> Choice | None:
    """Rate of a layer of a transformer in that of the one above; None for other networks."""
    if source is None or not is_transformer(source) or frozen == 4 or not names_layers(source):
        return None
    return Choice("layer_decay", LAYER_DECAY, "lower layers change less, as in VideoMAE")


def _dropout(source: Source | None, frozen: int) -> tuple[float, str]:
    """Share of the features that the classifier does not see in a step, and the reason."""
    if frozen == 4:
        return 0.0, "the classifier alone is trained"
    if is_transformer(source):
        return 0.0, "as transformers are finetuned"
    return 0.5, "before the classifier, as in the recipe"


def _test_clips(machine: Machine, facts: FolderFacts, duration: float) -> tuple[int, str]:
    """Clips of a video in the test, whose probabilities are averaged, and the reason."""
    most = _MAX_CLIPS_ON_CPU if machine.gpu is None else _MAX_CLIPS
    # Half of neighbouring clips overlap; two at least, for a video of one clip they differ little.
    wanted = max(2, math.ceil(2 * facts.duration / duration))
    if wanted <= most:
        return wanted, f"of {duration:g} s, in videos of {facts.duration:.1f} s"
    return most, "as in the paper" if machine.gpu else "half of the paper's 10: no GPU"


def _test_crops(facts: FolderFacts, source: Source | None) -> tuple[int, str]:
    """Crops of a test clip, and the reason."""
    if source is not None and source.settings.resize in ("square", "network"):
        return 1, "the network sees whole frames"
    if abs(facts.width / max(1, facts.height) - 1) < 0.05:
        return 1, "the videos are square: three crops would show the same"
    return 3, "along the long side, as in the paper"


def finetuning_notes(
    counts: Sequence[int], tested: int, shared: int, size: int, loading: float
) -> Iterator[str]:
    """Sentences about what is unusual.

    Args:
        counts: Training videos of each class.
        tested: Test videos.
        shared: Videos of both sets.
        size: Of a frame of a view, pixels.
        loading: Time of making a batch of views in that of the network's step.
    """
    if shared:
        yield f"{shared} videos are trained on and tested: the accuracy says nothing about new ones"
    if max(counts) > 10 * max(1, min(counts)):
        yield (
            f"the largest class has {max(counts)} videos, the smallest {min(counts)}: look at the "
            "mean class accuracy"
        )
    if tested < 30:
        yield f"{tested} test videos are few: the interval of the accuracy is wide"
    yield from slow_loading(size, loading)
