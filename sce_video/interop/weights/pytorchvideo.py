"""Weights of ResNet3D (slow pathway) from pytorchvideo's layout to ours.

pytorchvideo, on which the authors' code builds, numbers the parts of a network::

    blocks.0.conv, blocks.0.norm                            stem
    blocks.S.res_blocks.I.branch1_conv, branch1_norm        projection shortcut, S = 1..4
    blocks.S.res_blocks.I.branch2.conv_a, norm_a, ...       convolutions a, b (and c at depth 50)
    blocks.5                                                 head

The authors' released encoder files hold this with or without ``trunk.model.`` before each name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sce_video.registry import MODELS

_STEM = "blocks.0.conv.weight"
_COUNTER = "num_batches_tracked"
_HEAD = re.compile(r"(blocks\.5|head)\.")
_BN = r"(?:weight|bias|running_mean|running_var|num_batches_tracked)"
_BLOCK = r"blocks\.([1-4])\.res_blocks\.(\d+)\."
# Name in pytorchvideo, and our name.
_RULES = [
    (re.compile(rf"{re.escape(_STEM)}"), r"conv1.weight"),
    (re.compile(rf"blocks\.0\.norm\.({_BN})"), r"bn1.\1"),
    (re.compile(rf"{_BLOCK}branch1_conv\.weight"), r"layer\1.\2.downsample.0.weight"),
    (re.compile(rf"{_BLOCK}branch1_norm\.({_BN})"), r"layer\1.\2.downsample.1.\3"),
    *(
        rule
        for number, letter in enumerate("abc", start=1)
        for rule in (
            (
                re.compile(rf"{_BLOCK}branch2\.conv_{letter}\.weight"),
                rf"layer\1.\2.conv{number}.weight",
            ),
            (
                re.compile(rf"{_BLOCK}branch2\.norm_{letter}\.({_BN})"),
                rf"layer\1.\2.bn{number}.\3",
            ),
        )
    ),
]
# (blocks in res2..res5, convolutions of a block) to depth.
_DEPTHS: dict[tuple[tuple[int, ...], int], int] = {
    ((2, 2, 2, 2), 2): 18,
    ((3, 4, 6, 3), 2): 34,
    ((3, 4, 6, 3), 3): 50,
    ((3, 4, 23, 3), 3): 101,
}


class Conversion(NamedTuple):
    """Weights of one of our backbones, and the architecture found from their shapes."""

    state_dict: dict[str, Tensor]
    backbone: dict[str, Any]  # the config that builds it
    prefix: str  # the prefix that was removed from the names
    dropped: list[str]  # names outside the backbone: heads, projectors, other branches


def from_pytorchvideo(checkpoint: dict[str, Any], prefix: str | None = None) -> Conversion:
    """Rename the weights of a slow-pathway network (``slow_r50``, the authors' encoders).

    BN counters (``num_batches_tracked``) that a file lacks are set to 0: only a BN without momentum
    uses them.

    Args:
        checkpoint: The content of the file: weights by name, directly or under ``state_dict``
            (lightning) or ``model_state`` (pytorchvideo's own files).
        prefix: What precedes ``blocks.0...`` in the names; None: it is detected. Give it for a file
            with several encoders, e.g. an online and a target one.

    Raises:
        ValueError: no network of this layout, several, an unknown depth, or keys that are missing,
            of another shape or without a counterpart; the message lists them.
    """
    weights = stored_weights(checkpoint)
    prefix = _find_prefix(weights) if prefix is None else prefix
    renamed, dropped, unknown = {}, [], []
    for name, value in weights.items():
        inner = name.removeprefix(prefix)
        own_name = _rename(inner)
        if not name.startswith(prefix) or _HEAD.match(inner):
            dropped.append(name)
        elif own_name is None:
            unknown.append(name)
        else:
            renamed[own_name] = value.detach().clone()
    if unknown:
        raise ValueError(f"keys without a counterpart in ResNet3dSlowPath: {listed(unknown)}")
    if "conv1.weight" not in renamed:
        raise ValueError(f"no weight is called {prefix}{_STEM}: is the prefix {prefix!r} right?")
    stem = renamed["conv1.weight"]
    backbone = {
        "type": "ResNet3dSlowPath",
        "depth": _depth(renamed),
        "base_channels": stem.shape[0],
        "in_channels": stem.shape[1],
    }
    return Conversion(checked_weights(renamed, backbone), backbone, prefix, dropped)


def stored_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors by name, directly or under ``state_dict`` or ``model_state``.

    Raises:
        ValueError: there are none.
    """
    for key in ("state_dict", "model_state"):
        if isinstance(checkpoint.get(key), dict):
            checkpoint = checkpoint[key]
    weights = {name: value for name, value in checkpoint.items() if isinstance(value, Tensor)}
    if not weights:
        raise ValueError(f"the file has no weights, only {listed(map(str, checkpoint))}")
    return weights


def _find_prefix(weights: Iterable[str]) -> str:
    """The prefix of ``blocks.0.conv.weight``; of several, that of the online branch."""
    names = list(weights)
    found = [name.removesuffix(_STEM) for name in names if re.search(rf"(^|\.){_STEM}$", name)]
    if len(found) > 1:
        online = [prefix for prefix in found if prefix.removeprefix("module.") == "trunk.model."]
        found = online or found
    if not found:
        raise ValueError(
            f"no weight is called {_STEM}, with or without a prefix: this is not pytorchvideo's "
            f"layout; the file has {listed(names[:5])}"
        )
    if len(found) > 1:
        raise ValueError(f"the file has several networks, give the prefix of one: {found}")
    return found[0]


def _rename(name: str) -> str | None:
    for pattern, own_name in _RULES:
        match = pattern.fullmatch(name)
        if match:
            return match.expand(own_name)
    return None


def _depth(names: Iterable[str]) -> int:
    """Depth, from the number of blocks of each stage and of convolutions of a block."""
    indices: list[set[int]] = [set(), set(), set(), set()]
    convolutions = 0
    for name in names:
        match = re.fullmatch(r"layer(\d)\.(\d+)\.conv(\d)\.weight", name)
        if match:
            stage, block, convolution = map(int, match.groups())
            indices[stage - 1].add(block)
            convolutions = max(convolutions, convolution)
    blocks = tuple(len(stage) for stage in indices)
    if (blocks, convolutions) not in _DEPTHS:
        raise ValueError(
            f"a network of {blocks} blocks of {convolutions} convolutions has none of the depths "
            f"{sorted(_DEPTHS.values())}"
        )
    return _DEPTHS[blocks, convolutions]


def checked_weights(weights: dict[str, Tensor], backbone: dict[str, Any]) -> dict[str, Tensor]:
    """The weights in the order of a backbone; BN counters that are missing become 0.

    Raises:
        ValueError: names or shapes differ from those of the network; all of them are listed.
    """
    with torch.device("meta"):  # no memory for weights
        wanted = MODELS.build(backbone).state_dict()
    ordered = {}
    missing, other_shape = [], []
    for name, like in wanted.items():
        if name not in weights and name.endswith(_COUNTER):
            ordered[name] = torch.zeros((), dtype=torch.long)
        elif name not in weights:
            missing.append(name)
        elif weights[name].shape != like.shape:
            shapes = f"{tuple(weights[name].shape)} instead of {tuple(like.shape)}"
            other_shape.append(f"{name} {shapes}")
        else:
            ordered[name] = weights[name]
    surplus = [name for name in weights if name not in wanted]
    faults = {"missing": missing, "of another shape": other_shape, "unexpected": surplus}
    if any(faults.values()):
        raise ValueError(
            f"not the network of {backbone['type']}: "
            + "; ".join(f"{what}: {listed(names)}" for what, names in faults.items() if names)
        )
    return ordered


def listed(names: Iterable[str]) -> str:
    """The names, for a message."""
    return ", ".join(names)
