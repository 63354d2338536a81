"""Weights of torchvision's video networks and ResNets, to the backbones of the same names.

The names inside the networks are the same as ours; what differs is around them: a head (``fc.`` or
``classifier.``), a prefix, the architecture to find. ``r3d_18`` and ``mc3_18`` of torchvision are
networks that we do not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from sce_video.models.checkpoint_conversion import (
    Conversion,
    checked_weights,
    listed,
    stored_weights,
)

#: The first convolution of a network, whose name tells which it is, and the parts of its head.
_NETWORKS = {
    "R2Plus1d": ("stem.0.weight", "fc."),
    "S3D": ("features.0.0.0.weight", "classifier."),
    "ResNet2d": ("conv1.weight", "fc."),
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
    stem, head = _NETWORKS[kind]
    inner = {name.removeprefix(prefix): v for name, v in weights.items() if name.startswith(prefix)}
    dropped = [
        name
        for name in weights
        if not name.startswith(prefix) or name.removeprefix(prefix).startswith(head)
    ]
    kept = {name: v.detach().clone() for name, v in inner.items() if not name.startswith(head)}
    backbone = _architecture(kind, kept, kept[stem])
    return Conversion(checked_weights(kept, backbone), backbone, prefix, dropped)


def _find_network(weights: dict[str, Tensor], prefix: str | None) -> tuple[str, str]:
    """Prefix and type of the network in a file."""
    found = [
        (name.removesuffix(stem), kind)
        for name in weights
        for kind, (stem, _) in _NETWORKS.items()
        if re.search(rf"(^|\.){re.escape(stem)}$", name)
        and _has_dimensions(kind, weights, name, name.removesuffix(stem))
    ]
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


def _has_dimensions(kind: str, weights: dict[str, Tensor], name: str, prefix: str) -> bool:
    """Whether a first convolution is that of the network, and not of one with the same name."""
    if kind == "ResNet2d":  # layer1.0.conv1.weight ends with the name of a first convolution, too
        return weights[name].ndim == 4 and f"{prefix}layer1.0.conv1.weight" in weights
    return weights[name].ndim == 5 and (kind == "S3D" or f"{prefix}stem.3.weight" in weights)


def _architecture(kind: str, names: Iterable[str], stem: Tensor) -> dict[str, Any]:
    """The config that builds the network."""
    names = list(names)
    if kind == "S3D":
        base, gating = stem.shape[0], any(".gate." in name for name in names)
        return {
            "type": kind, "base_channels": base, "in_channels": stem.shape[1], "gating": gating,
        }  # fmt: skip
    blocks = {m[1] for m in map(re.compile(r"layer3\.(\d+)\.").match, names) if m}
    bottleneck = any(".conv3." in name for name in names)
    if (len(blocks), bottleneck) not in _DEPTHS:
        raise ValueError(
            f"a network of {len(blocks)} blocks in its third stage has none of the depths "
            f"{sorted(_DEPTHS.values())}"
        )
    base = stem.shape[0]
    return {
        "type": kind,
        "depth": _DEPTHS[len(blocks), bottleneck],
        "base_channels": base,
        "in_channels": stem.shape[1],
    }
