"""Weights of image networks to and from the layouts of other code bases.

``ResNet2d`` has torchvision's names. The others differ in prefixes and in the names of parts:

================ ==========================================================================
layout           names
================ ==========================================================================
torchvision      ``conv1``, ``bn1``, ``layer1.0.conv1``, ..., ``layer1.0.downsample.0``
timm             the same (``resnet18`` to ``resnet101``; not the "d" and other variants)
mmdet            the same; ``layer4`` is the shared head of a C4 detector
eztorch          ``trunk.`` + torchvision's; heads, target and queue of the whole model beside it
detectron2       ``stem.conv1``, ``stem.conv1.norm``, ``res2.0.conv1``, ..., ``res2.0.shortcut``
================ ==========================================================================

eztorch is the authors' code (juliendenize/eztorch); their older release (CEA-LIST/SCE) has the same
names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from sce_video.models.checkpoint_conversion import Conversion, listed, stored_weights
from sce_video.models.torchvision_conversion import from_torchvision

#: Parts of the authors' model and ours; the queue has its own rule.
_PARTS = {
    "trunk.": "backbone.",
    "projector.": "projector.",
    "predictor.": "predictor.",
    "momentum_trunk.": "target.backbone.",
    "momentum_projector.": "target.projector.",
}
#: Replaced in this order.
_DETECTRON2 = [
    (re.compile(r"^(conv1|bn1)\."), r"stem.\1."),
    *((re.compile(rf"^layer{stage}\."), f"res{stage + 1}.") for stage in range(1, 5)),
    (re.compile(r"\bbn(\d)\."), r"conv\1.norm."),
    (re.compile(r"\bdownsample\.0\."), "shortcut."),
    (re.compile(r"\bdownsample\.1\."), "shortcut.norm."),
]
#: Beginnings of our names that the authors' files have a counterpart of.
EZTORCH_PARTS = (*_PARTS.values(), "queue.keys", "queue.pointer")
LAYOUTS = ("torchvision", "timm", "mmdet", "eztorch", "detectron2")


def from_eztorch(checkpoint: dict[str, Any], prefix: str | None = None) -> Conversion:
    """A model of the authors, as a state dict of ``SCE`` or, without a queue, of its parts.

    ``backbone`` of the conversion is the config of the online encoder. The queue ``(D, K)`` becomes
    ``queue.keys`` (K, D). The target's BN statistics are kept.

    Args:
        checkpoint: The content of the file: weights by name, directly or under ``state_dict``.
        prefix: Prefix of all names; None: none, or that of a wrapper, ``model.`` or ``module.``.

    Raises:
        ValueError: no ``trunk.``, a trunk that is no ResNet of torchvision, or queue and pointer
            of other shapes.
    """
    weights = stored_weights(checkpoint)
    if prefix is None:
        starts = ("", "model.", "module.")
        prefix = next((s for s in starts if f"{s}trunk.conv1.weight" in weights), "")
    inner = {name.removeprefix(prefix): value for name, value in weights.items()}
    if "trunk.conv1.weight" not in inner:
        raise ValueError(
            f"no weight is called {prefix}trunk.conv1.weight: no image model of eztorch; the file "
            f"has {listed(list(weights)[:5])}. A trunk that was extracted from one has "
            "torchvision's names; 3-D trunks: tools/convert/from_pytorchvideo.py"
        )
    trunks = {part: _trunk(inner, part) for part in _PARTS if part.endswith("trunk.")}
    state = {
        _PARTS[part] + name: value
        for part, trunk in trunks.items()
        if trunk is not None
        for name, value in trunk.state_dict.items()
    }
    for part, own in _PARTS.items():
        if part not in trunks:
            state |= {own + n.removeprefix(part): v for n, v in inner.items() if n.startswith(part)}
    state |= _queue(inner)
    known = (*_PARTS, "queue")
    dropped = [
        name
        for name in weights
        if not name.removeprefix(prefix).startswith(known) or ".fc." in name
    ]
    online = trunks["trunk."]
    assert online is not None
    copies = {name: value.detach().clone() for name, value in state.items()}
    return Conversion(copies, online.backbone, prefix, dropped)


def _trunk(weights: dict[str, Tensor], part: str) -> Conversion | None:
    """The encoder of one branch, checked name by name; None if the file has none."""
    found = {
        name.removeprefix(part): value for name, value in weights.items() if name.startswith(part)
    }
    return from_torchvision(found, "") if found else None


def _queue(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """``queue`` (D, K) and ``queue_ptr`` (1,) as ``queue.keys`` (K, D) and ``queue.pointer`` ()."""
    if "queue" not in weights:
        return {}
    keys, pointer = weights["queue"], weights.get("queue_ptr")
    if keys.ndim != 2 or pointer is None or pointer.numel() != 1:
        raise ValueError(
            f"the queue must be (D, K) with one queue_ptr, got shape {tuple(keys.shape)} and "
            f"{'no pointer' if pointer is None else tuple(pointer.shape)}"
        )
    return {"queue.keys": keys.T.contiguous(), "queue.pointer": pointer.reshape(())}


def to_layout(state: dict[str, Tensor], layout: str) -> dict[str, Tensor]:
    """Our weights under the names of another code base.

    Args:
        state: State dict of a model with ``backbone.``, or of a bare ``ResNet2d``. Heads, target
            and queue are written in eztorch's layout and left out of the others.
        layout: One of :data:`LAYOUTS`.

    Raises:
        ValueError: an unknown layout, no ``ResNet2d``, or one that the layout does not have.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    prefix = "backbone." if any(name.startswith("backbone.") for name in state) else ""
    conversion = from_torchvision(state, prefix)
    backbone = conversion.state_dict
    kind = {key: conversion.backbone.get(key) for key in ("type", "stem", "depth")}
    if kind["type"] != "ResNet2d":
        raise ValueError(f"only weights of ResNet2d are converted, these are of {kind['type']}")
    if layout == "eztorch":
        return {f"trunk.{name}": value for name, value in backbone.items()} | _eztorch_rest(state)
    if kind["stem"] == "small" and layout in ("mmdet", "detectron2"):
        raise ValueError(f"{layout} has no ResNet with the stem of small images")
    if layout == "detectron2":
        return {_detectron2_name(name): value for name, value in backbone.items()}
    return backbone


def _eztorch_rest(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Heads, target and queue under the authors' names; other entries are left out."""
    rest: dict[str, Tensor] = {}
    for part, own in _PARTS.items():
        if part != "trunk.":
            rest |= {part + n.removeprefix(own): v for n, v in state.items() if n.startswith(own)}
    if "queue.keys" in state:
        rest["queue"] = state["queue.keys"].T.contiguous()
        rest["queue_ptr"] = state["queue.pointer"].reshape(1)
    return rest


def _detectron2_name(name: str) -> str:
    for pattern, replacement in _DETECTRON2:
        name = pattern.sub(replacement, name)
    return name


def detector_file(weights: Iterable[tuple[str, Tensor]]) -> dict[str, Any]:
    """The content of a weights file for detectron2, whose loader matches names by their ends."""
    return {"model": dict(weights), "__author__": "sce_video", "matching_heuristics": True}
