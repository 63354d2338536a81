"""Weights of torchvision's video networks and ResNets, to the backbones of the same names.

timm's ``resnet18`` to ``resnet101`` have torchvision's names and are read as well.

The names inside the networks are the same as ours; what differs is around them: a head (``fc.`` or
``classifier.``), a prefix, the architecture to find. ``r3d_18`` and ``mc3_18`` of torchvision are
networks that we do not have.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from sce_video.models.checkpoint_conversion import (
    Conversion,
    checked_weights,
    listed,
    stored_weights,
)

#: Of every network: dimensions of its convolutions, the first one, the one that has
#: ``base_channels``, and the prefix of its head.
_NETWORKS = {
    "R2Plus1d": (5, "stem.0.weight", "stem.3.weight", "fc."),
    "S3D": (5, "features.0.0.0.weight", "features.0.1.0.weight", "classifier."),
    "ResNet2d": (4, "conv1.weight", "layer1.0.conv1.weight", "fc."),
}
#: Depth from the blocks of the third stage, and whether a block is a bottleneck.
_DEPTHS = {(2, False): 18, (6, False): 34, (6, True): 50, (23, True): 101}


def from_torchvision(checkpoint: dict[str, Any], prefix: str | None = None) -> Conversion:
    """The backbone of ``r2plus1d_18``, ``s3d`` or ``resnet18`` to ``resnet101`` in torchvision.

    BN counters (``num_batches_tracked``) that a file lacks are set to 0.

    Args:
        checkpoint: The content of the file: weights by name, directly or under ``state_dict`` or
            ``model_state``.
        prefix: What precedes the names of the network; None: it is detected. Give it for a file
            with several networks.

    Raises:
        ValueError: none of these networks, several, or keys that are missing, of another shape or
            without a counterpart; the message lists them.
    """
    weights = stored_weights(checkpoint)
    prefix, kind = _find_network(weights, prefix)
    head = prefix + _NETWORKS[kind][-1]
    kept, dropped = {}, []
    for name, value in weights.items():
        if name.startswith(prefix) and not name.startswith(head):
            kept[name.removeprefix(prefix)] = value.detach().clone()
        else:
            dropped.append(name)
    backbone = _architecture(kind, kept)
    return Conversion(checked_weights(kept, backbone), backbone, prefix, dropped)


def _find_network(weights: dict[str, Tensor], prefix: str | None) -> tuple[str, str]:
    """Prefix and type of the network in a file."""
    found = []
    for kind, (dimensions, first, second, _) in _NETWORKS.items():
        for name in weights:
            start = name.removesuffix(first)
            whole = name.endswith(first) and (not start or start.endswith("."))
            if whole and start + second in weights and weights[name].ndim == dimensions:
                found.append((start, kind))
    if prefix is not None:
        found = [(start, kind) for start, kind in found if start == prefix]
    if not found:
        where = "with or without a prefix" if prefix is None else f"after the prefix {prefix!r}"
        raise ValueError(
            f"no first convolution of torchvision's r2plus1d_18, s3d or resnet, {where}: "
            f"the file has {listed(list(weights)[:5])}"
        )
    if len(found) > 1:
        raise ValueError(
            f"the file has several networks, give the prefix of one: {[p for p, _ in found]}"
        )
    return found[0]


def _architecture(kind: str, weights: dict[str, Tensor]) -> dict[str, Any]:
    """The config that builds the network."""
    _, first, second, _ = _NETWORKS[kind]
    widths = {"base_channels": len(weights[second]), "in_channels": weights[first].shape[1]}
    if kind == "S3D":
        return {"type": kind, **widths}
    blocks = {m[1] for m in map(re.compile(r"layer3\.(\d+)\.").match, weights) if m}
    bottleneck = any(".conv3." in name for name in weights)
    if (len(blocks), bottleneck) not in _DEPTHS:
        raise ValueError(
            f"a network of {len(blocks)} blocks in its third stage has none of the depths "
            f"{sorted(_DEPTHS.values())}"
        )
    config = {"type": kind, "depth": _DEPTHS[len(blocks), bottleneck], **widths}
    if kind == "ResNet2d" and weights[first].shape[2:] == (3, 3):
        config["stem"] = "small"  # CIFAR's, with torchvision's names
    return config
