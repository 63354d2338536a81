"""Conversion of video ResNets from and to the layouts of SlowFast, mmaction2 and pytorchvideo.

================ ==================================== ===================================
this package     SlowFast                             mmaction2
================ ==================================== ===================================
conv1, bn1       s1.pathway0_stem.conv, .bn           conv1.conv, conv1.bn
layer1.0.conv1   s2.pathway0_res0.branch2.a           layer1.0.conv1.conv
layer1.0.bn1     s2.pathway0_res0.branch2.a_bn        layer1.0.conv1.bn
.downsample.0    .branch1                             .downsample.conv
.downsample.1    .branch1_bn                          .downsample.bn
================ ==================================== ===================================

Sources: facebookresearch/SlowFast, ``slowfast/models/resnet_helper.py`` and ``stem_helper.py`` (an
``ARCH: slow`` network); mmaction2 1.1.0, ``ResNet3dSlowOnly`` and, for images and frames,
``ResNet``. pytorchvideo, on which the authors' code builds, uses the names ``blocks.0.conv``,
``.norm`` and ``blocks.S.res_blocks.I.branch2.conv_a``, ``norm_a``, ``branch1_conv``. The authors'
released encoders use these names with or without the prefix ``trunk.model.``.

In mmaction2, both convolutions of a temporal basic block (depth 18, 34) have three taps in time. In
this package, the second one has a single tap. Export pads it with a zero tap on either side, which
computes the same function. Import requires these taps to be zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sce_video.models.backbones.common import STAGE_BLOCKS
from sce_video.registry import MODELS
from sce_video.utils.records import at

#: Config of a backbone: its class as ``type``, and the arguments of the class.
BackboneConfig = dict[str, Any]


class Conversion(NamedTuple):
    """Backbone weights under the names of this package or of another code base.

    Attributes:
        state_dict: Weights by name.
        backbone: Config of the backbone, which follows from the shapes of the weights.
        prefix: Prefix that was removed from the names.
        dropped: Names outside the backbone: heads, projectors, other branches.
    """

    state_dict: dict[str, Tensor]
    backbone: BackboneConfig
    prefix: str
    dropped: list[str]


def stored_weights(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a file's tensors by name, from ``state_dict``, ``model_state`` or the top level.

    Raises:
        ValueError: If there are no tensors.
    """
    for key in ("state_dict", "model_state"):
        if (inner := at(checkpoint, key, dict)) is not None:
            checkpoint = inner
    weights = {name: value for name, value in checkpoint.items() if isinstance(value, Tensor)}
    if not weights:
        raise ValueError(f"the file contains no weights, only {', '.join(map(str, checkpoint))}")
    return weights


def checked_weights(weights: dict[str, Tensor], backbone: BackboneConfig) -> dict[str, Tensor]:
    """Return the weights in the order of a backbone, with missing BN counters set to 0.

    Raises:
        ValueError: If names or shapes differ from the network's. The message lists all of them.
    """
    with torch.device("meta"):  # allocate no memory for weights
        wanted = MODELS.build(backbone).state_dict()
    counters = (n for n in wanted if n.endswith("num_batches_tracked") and n not in weights)
    weights = weights | {name: torch.zeros((), dtype=torch.long) for name in counters}
    faults = {
        "missing": [name for name in wanted if name not in weights],
        "of a different shape": [
            f"{name} {tuple(weights[name].shape)} instead of {tuple(like.shape)}"
            for name, like in wanted.items()
            if name in weights and weights[name].shape != like.shape
        ],
        "unexpected": [name for name in weights if name not in wanted],
    }
    if any(faults.values()):
        raise ValueError(
            f"the weights do not fit {backbone['type']}: "
            + "; ".join(f"{what}: {', '.join(names)}" for what, names in faults.items() if names)
        )
    return {name: weights[name] for name in wanted}


@dataclass(frozen=True)
class _Names:
    """Names of a ResNet's layers in a code base.

    In the names of blocks, {stage} is counted from 1 and {res} from 2. ``wrapper`` is the prefix of
    all names in the code base's files.
    """

    stem: tuple[str, str]
    block: str
    convolution: tuple[str, str]
    shortcut: tuple[str, str]
    head: str
    wrapper: str = ""


_LAYOUTS = {
    "slowfast": _Names(
        stem=("s1.pathway0_stem.conv", "s1.pathway0_stem.bn"),
        block="s{res}.pathway0_res{block}.",
        convolution=("branch2.{letter}", "branch2.{letter}_bn"),
        shortcut=("branch1", "branch1_bn"),
        head="head.",
    ),
    "mmaction2": _Names(
        stem=("conv1.conv", "conv1.bn"),
        block="layer{stage}.{block}.",
        convolution=("conv{number}.conv", "conv{number}.bn"),
        shortcut=("downsample.conv", "downsample.bn"),
        head="cls_head.",
        wrapper="backbone.",
    ),
    "pytorchvideo": _Names(
        stem=("blocks.0.conv", "blocks.0.norm"),
        block="blocks.{stage}.res_blocks.{block}.",
        convolution=("branch2.conv_{letter}", "branch2.norm_{letter}"),
        shortcut=("branch1_conv", "branch1_norm"),
        head="blocks.5.",
    ),
}
VIDEO_LAYOUTS = tuple(_LAYOUTS)
_STEM = re.compile(r"(conv|bn)1\.(\w+)")
_BLOCK = re.compile(r"layer(\d)\.(\d+)\.(?:(conv|bn)(\d)|downsample\.([01]))\.(\w+)")
#: Names in this package of the second convolutions in temporal basic blocks.
_SECOND = re.compile(r"layer[34]\.\d+\.conv2\.weight")


def _their_name(name: str, names: _Names) -> str:
    """Translate a tensor's name to the name in another code base."""
    stem = _STEM.fullmatch(name)
    if stem:
        return f"{names.stem[stem[1] == 'bn']}.{stem[2]}"
    match = _BLOCK.fullmatch(name)
    assert match is not None, name
    stage, block, kind, number, shortcut, entry = match.groups()
    if shortcut is None:
        part = names.convolution[kind == "bn"].format(letter="_abc"[int(number)], number=number)
    else:
        part = names.shortcut[int(shortcut)]
    return f"{names.block.format(stage=stage, res=int(stage) + 1, block=block)}{part}.{entry}"


@cache
def _names_of(kind: str, depth: int) -> tuple[str, ...]:
    """Return this package's names for a network's tensors."""
    with torch.device("meta"):  # allocate no memory for weights
        return tuple(MODELS.build({"type": kind, "depth": depth, "base_channels": 1}).state_dict())


def _nearest(stem: Tensor, given: Iterable[str], names: _Names | None) -> BackboneConfig:
    """Return the config of the network whose names differ least from the given names.

    Args:
        stem: Weight of the first convolution, which determines class and width.
        given: Names of the given weights.
        names: Names in the code base; None for the names of this package.
    """
    kind, given = "ResNet3dSlowPath" if stem.ndim == 5 else "ResNet2d", set(given)

    def differences(depth: int) -> int:
        own = _names_of(kind, depth)
        return len(given ^ {name if names is None else _their_name(name, names) for name in own})

    depth = min(STAGE_BLOCKS, key=differences)
    channels = {"base_channels": stem.shape[0], "in_channels": stem.shape[1]}
    return {"type": kind, "depth": depth, **channels}


def from_video_layout(
    checkpoint: Mapping[str, Any], layout: str, prefix: str | None = None
) -> Conversion:
    """Convert the backbone in another code base's file to this package's names.

    BN counters (``num_batches_tracked``) that are missing in the file are set to 0.

    Args:
        checkpoint: Content of the file: weights by name, directly or under ``state_dict`` or
            ``model_state``.
        layout: One of :data:`VIDEO_LAYOUTS`.
        prefix: Prefix of the network's names; None detects it.

    Raises:
        ValueError: If the layout is unknown, the file contains no such network or several, or
            tensors are missing, have a different shape or have no counterpart. The message lists
            these tensors.
    """
    if layout not in _LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(_LAYOUTS)}, got {layout!r}")
    names, weights = _LAYOUTS[layout], stored_weights(checkpoint)
    prefix = _prefix(weights, f"{names.stem[0]}.weight", layout) if prefix is None else prefix
    dropped = [
        n for n in weights if not n.startswith(prefix) or n[len(prefix) :].startswith(names.head)
    ]
    inner = {n.removeprefix(prefix): weights[n] for n in weights.keys() - set(dropped)}
    stem = inner.get(f"{names.stem[0]}.weight")
    if stem is None or stem.ndim not in (4, 5):
        raise ValueError(f"the file contains no first convolution {prefix}{names.stem[0]}.weight")

    backbone = _nearest(stem, inner, names)
    own_names = _names_of(backbone["type"], backbone["depth"])
    table = {_their_name(own, names): own for own in own_names}
    unknown = [name for name in weights if name.removeprefix(prefix) in inner.keys() - table.keys()]
    missing = [
        name for name in table if name not in inner and not name.endswith("num_batches_tracked")
    ]
    if unknown or missing:
        faults = {"without a counterpart": unknown, "missing": [prefix + n for n in missing]}
        raise ValueError(
            f"the weights do not fit a {backbone['type']} of depth {backbone['depth']} in the "
            f"layout of {layout}: "
            + "; ".join(f"{what}: {', '.join(found)}" for what, found in faults.items() if found)
        )
    state = {own: inner[name].detach().clone() for name, own in table.items() if name in inner}
    if layout == "mmaction2":
        state = {name: _without_zero_taps(name, v, backbone) for name, v in state.items()}
    return Conversion(checked_weights(state, backbone), backbone, prefix, dropped)


def to_video_layout(state: dict[str, Tensor], layout: str) -> Conversion:
    """Rename a backbone of this package for another code base.

    Args:
        state: State dict of a model with ``backbone.``, or of a bare backbone.
        layout: One of :data:`VIDEO_LAYOUTS`.

    Raises:
        ValueError: If the layout is unknown or lacks the network. SlowFast has no depth 34, and its
            basic blocks (depth 18) have the output channels of bottlenecks.
    """
    if layout not in _LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(_LAYOUTS)}, got {layout!r}")
    names = _LAYOUTS[layout]
    prefix = "backbone." if any(name.startswith("backbone.") for name in state) else ""
    inner = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
    stem = inner.get("conv1.weight")
    dimensions = (4, 5) if layout == "mmaction2" else (5,)
    if stem is None or stem.ndim not in dimensions or stem.shape[2:] == (3, 3):
        kinds = "ResNet3dSlowPath" + " and ResNet2d" * (4 in dimensions)
        raise ValueError(f"the layout of {layout} is for weights of {kinds}")
    backbone = _nearest(stem, inner, None)
    if layout == "slowfast" and backbone["depth"] < 50:
        raise ValueError(
            f"SlowFast has no network of depth {backbone['depth']} like ours, because it builds "
            "res2 to res5 with 256 to 2048 channels at every depth. Only 50 and 101 can be written"
        )
    weights = checked_weights(inner, backbone)
    if layout == "mmaction2":
        # In mmaction2, the second convolution of a basic block covers three time steps, so pad our
        # weights with zeros.
        for name, weight in weights.items() if _is_basic_3d(backbone) else ():
            if _SECOND.fullmatch(name):
                weights[name] = torch.nn.functional.pad(weight, (0, 0, 0, 0, 1, 1))
    renamed = {names.wrapper + _their_name(name, names): v for name, v in weights.items()}
    dropped = [n for n in state if not n.startswith(prefix)]
    return Conversion(renamed, backbone, prefix, dropped)


def _prefix(weights: dict[str, Tensor], stem: str, layout: str) -> str:
    """Find the prefix of the first convolution, whose name also occurs in blocks."""
    whole = re.compile(rf"((?:.*\.)?)(?<!layer\d\.\d\.)(?<!layer\d\.\d\d\.){re.escape(stem)}")
    found = [match[1] for match in map(whole.fullmatch, weights) if match]
    if not found:
        raise ValueError(
            f"no weight is called {stem}, with or without a prefix, so this is not the layout of "
            f"{layout}. The file has {', '.join(list(weights)[:5])}"
        )
    # If the file contains both an online and a target encoder of the authors, use the online one.
    found = [p for p in found if p.removeprefix("module.") == "trunk.model."] or found
    if len(found) > 1:
        raise ValueError(f"the file contains several networks. Give one of the prefixes {found}")
    return found[0]


def _is_basic_3d(backbone: BackboneConfig) -> bool:
    return backbone["type"] == "ResNet3dSlowPath" and backbone["depth"] < 50


def _without_zero_taps(name: str, weight: Tensor, backbone: BackboneConfig) -> Tensor:
    """Convert (O, I, 3, 3, 3) to (O, I, 1, 3, 3) in mmaction2's second basic-block convolutions.

    A weight that mmaction2 itself has trained has no zeros in its outer taps, and is refused.
    """
    if not (_is_basic_3d(backbone) and _SECOND.fullmatch(name)):
        return weight
    if weight.ndim != 5 or weight.shape[2] != 3 or weight[:, :, ::2].any():
        raise ValueError(
            f"{name} covers three frames in mmaction2's network. In a ResNet3dSlowPath of depth "
            f"{backbone['depth']}, it covers one frame and cannot compute the same"
        )
    return weight[:, :, 1:2].clone()
