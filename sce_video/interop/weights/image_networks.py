"""Conversion of image networks from and to the weight layouts of other code bases.

``ResNet2d`` uses torchvision's names. The others differ in prefixes and in the names of layers:

================ ==========================================================================
layout           names
================ ==========================================================================
torchvision      ``conv1``, ``bn1``, ``layer1.0.conv1``, ..., ``layer1.0.downsample.0``
timm             the same (``resnet18`` to ``resnet101``; not the "d" and other variants)
mmdet            the same; ``layer4`` is the shared head of a C4 detector
eztorch          ``trunk.`` + torchvision's, next to the model's heads, target network and queue
detectron2       ``stem.conv1``, ``stem.conv1.norm``, ``res2.0.conv1``, ..., ``res2.0.shortcut``
================ ==========================================================================

eztorch is the code of the paper's authors (juliendenize/eztorch). Their older release
(CEA-LIST/SCE) uses the same names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sce_video.interop.weights.video_networks import (
    BackboneConfig,
    Conversion,
    checked_weights,
    stored_weights,
)

#: For each network: the number of dimensions of a convolution weight, the name of the first
#: convolution, the name of the one with ``base_channels``, and the head's prefix.
_NETWORKS = {
    "R2Plus1d": (5, "stem.0.weight", "stem.3.weight", "fc."),
    "S3D": (5, "features.0.0.0.weight", "features.0.1.0.weight", "classifier."),
    "ResNet2d": (4, "conv1.weight", "layer1.0.conv1.weight", "fc."),
}
#: Depth of a network by the number of blocks in its third stage and whether they are bottlenecks.
_DEPTHS = {(2, False): 18, (6, False): 34, (6, True): 50, (23, True): 101}


def from_torchvision(checkpoint: Mapping[str, Any], prefix: str | None = None) -> Conversion:
    """Convert torchvision's ``r2plus1d_18``, ``s3d`` or ``resnet18`` to ``resnet101``.

    BN counters (``num_batches_tracked``) that are missing in the file are set to 0.

    Args:
        checkpoint: Content of the file: weights by name, directly or under ``state_dict`` or
            ``model_state``.
        prefix: Prefix of the network's names; None detects it. It is needed for a file with several
            networks.

    Raises:
        ValueError: If the file contains none of these networks or several of them, or a weight is
            missing, has a different shape or has no counterpart. The message lists these weights.
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
    """Find the prefix and type of the network in a file."""
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
            "the file contains no first convolution of torchvision's r2plus1d_18, s3d or resnet "
            f"({where}). It contains {', '.join(list(weights)[:5])}"
        )
    if len(found) > 1:
        raise ValueError(
            f"the file contains several networks. Give one of the prefixes {[p for p, _ in found]}"
        )
    return found[0]


def _architecture(kind: str, weights: dict[str, Tensor]) -> BackboneConfig:
    """Return the config that builds the network."""
    _, first, second, _ = _NETWORKS[kind]
    widths = {"base_channels": len(weights[second]), "in_channels": weights[first].shape[1]}
    if kind == "S3D":
        return {"type": kind, **widths}
    blocks = {m[1] for m in map(re.compile(r"layer3\.(\d+)\.").match, weights) if m}
    bottleneck = any(".conv3." in name for name in weights)
    if (len(blocks), bottleneck) not in _DEPTHS:
        raise ValueError(
            f"a network with {len(blocks)} blocks in its third stage does not have one of the "
            f"depths {sorted(_DEPTHS.values())}"
        )
    config = {"type": kind, "depth": _DEPTHS[len(blocks), bottleneck], **widths}
    if kind == "ResNet2d" and weights[first].shape[2:] == (3, 3):
        config["stem"] = "small"  # CIFAR stem, whose names are the same as torchvision's
    return config


#: Name prefixes in the authors' model and in this package. The queue is converted separately.
_PARTS = {
    "trunk.": "backbone.",
    "projector.": "projector.",
    "predictor.": "predictor.",
    "momentum_trunk.": "target.backbone.",
    "momentum_projector.": "target.projector.",
}
#: Replacements that give detectron2's names if they are applied in this order.
_DETECTRON2 = [
    (re.compile(r"^(conv1|bn1)\."), r"stem.\1."),
    *((re.compile(rf"^layer{stage}\."), f"res{stage + 1}.") for stage in range(1, 5)),
    (re.compile(r"\bbn(\d)\."), r"conv\1.norm."),
    (re.compile(r"\bdownsample\.0\."), "shortcut."),
    (re.compile(r"\bdownsample\.1\."), "shortcut.norm."),
]
#: Name prefixes of this package that have a counterpart in the authors' files.
EZTORCH_PARTS = (*_PARTS.values(), "queue.keys", "queue.pointer")
LAYOUTS = ("torchvision", "timm", "mmdet", "eztorch", "detectron2")


def from_eztorch(checkpoint: Mapping[str, Any], prefix: str | None = None) -> Conversion:
    """Convert the authors' model to a state dict for ``SCE``, or for parts of it without a queue.

    ``backbone`` of the conversion is the config of the online encoder. The queue ``(D, K)`` becomes
    ``queue.keys`` (K, D). The target network's BN statistics are kept.

    Args:
        checkpoint: Content of the file: weights by name, directly or under ``state_dict``.
        prefix: Prefix of all names. None detects the wrappers' prefixes ``model.`` and ``module.``.

    Raises:
        ValueError: If there is no ``trunk.``, the trunk is not a torchvision ResNet, or queue and
            pointer have the wrong shapes.
    """
    weights = stored_weights(checkpoint)
    if prefix is None:
        starts = ("", "model.", "module.")
        prefix = next((s for s in starts if f"{s}trunk.conv1.weight" in weights), "")
    inner = {name.removeprefix(prefix): value for name, value in weights.items()}
    if "trunk.conv1.weight" not in inner:
        raise ValueError(
            f"no weight is called {prefix}trunk.conv1.weight, so this is not an image model of "
            f"eztorch. The file has {', '.join(list(weights)[:5])}. An extracted trunk has "
            "torchvision's names. For 3-D trunks, use tools/convert/from_pytorchvideo.py"
        )
    state: dict[str, Tensor] = {}
    backbone: BackboneConfig = {}
    for part, own in _PARTS.items():
        found = {n.removeprefix(part): v for n, v in inner.items() if n.startswith(part)}
        if found and part.endswith("trunk."):  # from_torchvision checks all of an encoder's names
            trunk = from_torchvision(found, "")
            # Keep the first config, which belongs to the online encoder.
            found, backbone = trunk.state_dict, backbone or trunk.backbone
        state |= {own + name: value for name, value in found.items()}
    if "queue" in inner:
        keys, pointer = inner["queue"], inner.get("queue_ptr")
        if keys.ndim != 2 or pointer is None or pointer.numel() != 1:
            raise ValueError(
                f"the queue must be (D, K) with one queue_ptr, got shape {tuple(keys.shape)} and "
                f"{'no pointer' if pointer is None else tuple(pointer.shape)}"
            )
        state |= {"queue.keys": keys.T.contiguous(), "queue.pointer": pointer.reshape(())}
    known = (*_PARTS, "queue")
    dropped = [
        name
        for name in weights
        if not name.removeprefix(prefix).startswith(known) or ".fc." in name
    ]
    copies = {name: value.detach().clone() for name, value in state.items()}
    return Conversion(copies, backbone, prefix, dropped)


def to_layout(state: dict[str, Tensor], layout: str) -> dict[str, Tensor]:
    """Rename weights of this package for another code base.

    Args:
        state: State dict of a model with ``backbone.``, or of a bare ``ResNet2d``. Heads, target
            network and queue are written only in eztorch's layout.
        layout: One of :data:`LAYOUTS`.

    Raises:
        ValueError: If the layout is unknown, or the network is not a ``ResNet2d`` or has a form
            that the layout does not support.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    prefix = "backbone." if any(name.startswith("backbone.") for name in state) else ""
    conversion = from_torchvision(state, prefix)
    backbone = conversion.state_dict
    kind = {key: conversion.backbone.get(key) for key in ("type", "stem", "depth")}
    if kind["type"] != "ResNet2d":
        raise ValueError(
            f"only weights of ResNet2d can be converted, but these belong to {kind['type']}"
        )
    if layout == "eztorch":
        renamed = {f"trunk.{name}": value for name, value in backbone.items()}
        for part, own in list(_PARTS.items())[1:]:
            found = {n.removeprefix(own): v for n, v in state.items() if n.startswith(own)}
            renamed |= {part + name: value for name, value in found.items()}
        if "queue.keys" in state:
            renamed["queue"] = state["queue.keys"].T.contiguous()
            renamed["queue_ptr"] = state["queue.pointer"].reshape(1)
        return renamed
    if kind["stem"] == "small" and layout in ("mmdet", "detectron2"):
        raise ValueError(f"{layout} has no ResNet with the stem of small images")
    if layout == "detectron2":
        renamed = {}
        for name, value in backbone.items():
            for pattern, replacement in _DETECTRON2:
                name = pattern.sub(replacement, name)
            renamed[name] = value
        return renamed
    return backbone
