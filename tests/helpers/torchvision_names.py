"""State dicts of torchvision's image networks, by rules from timm's names to torchvision's.

Source: torchvision 0.28, ``models/efficientnet.py``, ``mobilenetv3.py``, ``convnext.py`` and
``swin_transformer.py``.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

#: Parts of a network of convolutions before and after its blocks.
_ENDS = {
    "efficientnet": {
        "conv_stem": "features.0.0",
        "bn1": "features.0.1",
        "conv_head": "features.8.0",
        "bn2": "features.8.1",
        "classifier": "classifier.1",
    },
    "mobilenet": {
        "conv_stem": "features.0.0",
        "bn1": "features.0.1",
        "conv_head": "classifier.0",
        "classifier": "classifier.3",
    },
}
_SQUEEZE = {"conv_reduce": "fc1", "conv_expand": "fc2"}
#: Regular expressions, and the names in torchvision with the number of stages doubled.
_RULES = {
    "convnext": (
        (r"stem\.", "features.0."),
        (r"stages\.(\d)\.downsample\.", "features.{even}."),
        (r"stages\.(\d)\.blocks\.", "features.{odd}."),
        (r"\.gamma$", ".layer_scale"),
        (r"\.conv_dw\.", ".block.0."),
        (r"(\d\.\d)\.norm\.", r"{0}.block.2."),
        (r"\.mlp\.fc1\.", ".block.3."),
        (r"\.mlp\.fc2\.", ".block.5."),
        (r"head\.norm\.", "classifier.0."),
        (r"head\.fc\.", "classifier.2."),
    ),
    "swin": (
        (r"patch_embed\.proj\.", "features.0.0."),
        (r"patch_embed\.norm\.", "features.0.2."),
        (r"layers\.(\d)\.downsample\.", "features.{even}."),
        (r"layers\.(\d)\.blocks\.", "features.{odd}."),
        (r"\.mlp\.fc1\.", ".mlp.0."),
        (r"\.mlp\.fc2\.", ".mlp.3."),
        (r"head\.fc\.", "head."),
    ),
}


def as_torchvision(weights: dict[str, Tensor], family: str) -> dict[str, Tensor]:
    """Return weights of a network of timm under the names, and in the order, of torchvision.

    Args:
        weights: State dict of timm's network.
        family: "efficientnet", "mobilenet", "convnext", "swin", or "resnet", whose names are alike.
    """
    if family == "resnet":
        return weights
    if family in _ENDS:
        names = _names_of_blocks(list(weights), family)
        found = {names[name]: value for name, value in weights.items()}
        if family == "mobilenet":  # a linear layer there
            found["classifier.0.weight"] = found["classifier.0.weight"].flatten(1)
        return found
    found = {}
    for name, value in weights.items():
        name = _by_rules(name, _RULES[family])
        found[name] = value[:, None, None] if name.endswith(".layer_scale") else value
        if name.endswith("relative_position_bias_table"):
            index = torch.zeros(49 * 49, dtype=torch.int64)
            found[name.replace("bias_table", "index")] = index
    # Swin's norm is defined after the layer that reduces.
    for name in [name for name in found if name.endswith("reduction.weight")]:
        place = name.removesuffix("reduction.weight")
        norm = {key: found.pop(f"{place}norm.{key}") for key in ("weight", "bias")}
        later = list(found)[list(found).index(name) + 1 :]
        moved = {key: found.pop(key) for key in later}
        found |= {f"{place}norm.{key}": value for key, value in norm.items()} | moved
    return found


def _by_rules(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    """Replace parts of a name, one rule after the other."""
    for pattern, new in rules:
        match = re.search(pattern, name)
        if match is None:
            continue
        first = match[1] if match.groups() else ""
        stage = int(first) if first.isdigit() else 0
        text = new.format(first, even=2 * stage, odd=2 * stage + 1)
        name = name[: match.start()] + text + name[match.end() :]
    return name


def _names_of_blocks(names: list[str], family: str) -> dict[str, str]:
    """Return torchvision's names of a network of inverted residuals by those of timm.

    A block lists its layers in order: convolutions with their norms, and squeeze-and-excitation.
    """
    words = [name.split(".") for name in names]
    blocks = list(dict.fromkeys((w[1], w[2]) for w in words if w[0] == "blocks"))
    found = {}
    for name, (first, *rest) in zip(names, words, strict=True):
        if first != "blocks":
            found[name] = ".".join([_ENDS[family][first], *rest])
            continue
        stage, number, part, *rest = rest
        inside = dict.fromkeys(w[3] for w in words if w[:3] == ["blocks", stage, number])
        layers = [layer for layer in inside if not layer.startswith("bn")]
        place = f"features.{int(stage) + 1}.{number}"
        if family == "mobilenet":
            place = f"features.{blocks.index((stage, number)) + 1}"
        if part.startswith("bn"):
            convolutions = [layer for layer in layers if layer != "se"]
            index, last = layers.index(convolutions[int(part[2:]) - 1]), ["1", *rest]
        elif part == "se":
            index, last = layers.index(part), [_SQUEEZE[rest[0]], *rest[1:]]
        else:
            index, last = layers.index(part), ["0", *rest]
        inner = [] if layers == ["conv"] else ["block", str(index)]
        found[name] = ".".join([place, *inner, *last])
    return found
