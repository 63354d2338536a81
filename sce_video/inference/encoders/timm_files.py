"""A network in timm's layout: a folder with ``config.json`` and weights, as on timm's hub.

Source of the layout: huggingface/pytorch-image-models, ``timm/models/_hub.py``,
``save_config_for_hf`` and ``load_model_config_from_hf``. Both files are untrusted data. The name of
the architecture must be in timm's registry, and only arguments that are sizes are accepted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.engine.weights import bounded_network, checked_backbone
from sce_video.inference.encoders.frame_networks import ImageNetwork, image_input, timm_backbone
from sce_video.inference.encoders.transformers_files import (
    EncoderError,
    ProcessorSettings,
    read_weights,
)
from sce_video.inference.network_input import ModelSettings
from sce_video.models.backbones.timm_encoder import build_network, check_architecture
from sce_video.models.backbones.timm_package import timm
from sce_video.registry import MODELS
from sce_video.utils.files import read_json
from sce_video.utils.records import at
from sce_video.utils.run_files import MODEL_CONFIG

#: Networks that timm and torchvision define identically, with the depth of our ``ResNet2d``. They
#: can be built without timm.
RESNETS = {"resnet18": 18, "resnet34": 34, "resnet50": 50, "resnet101": 101}
#: Values that timm uses for missing entries in ``pretrained_cfg``.
_TIMM_DEFAULTS = {"crop_pct": 0.875, "crop_mode": "center", "interpolation": "bilinear"}
#: Supported values of entries in ``pretrained_cfg``.
_KNOWN = {"interpolation": ("bilinear", "bicubic"), "crop_mode": ("center", "squash")}
#: timm's entries for a network's input and output. They follow from the weights or are ignored.
_ENDS = ("in_chans", "num_classes", "global_pool")


def timm_config(folder: Path) -> Mapping[str, Any] | None:
    """Return the content of a folder's ``config.json``; None if it is not in timm's layout."""
    path = folder / MODEL_CONFIG
    stored = read_json(path) if path.is_file() else None
    layout = {"architecture", "pretrained_cfg"}
    return stored if isinstance(stored, dict) and layout <= stored.keys() else None


def timm_network(folder: Path, stored: Mapping[str, Any]) -> ImageNetwork:
    """Return the network in a folder of timm's layout.

    Args:
        folder: Folder with the weights.
        stored: Result of :func:`timm_config`.

    Raises:
        EncoderError: If the network or its input is unknown, or the weights do not fit.
        FileNotFoundError: If there are no weights.
        MissingPackageError: If timm is needed and not installed.
    """
    path = folder / MODEL_CONFIG
    given, architecture = stored["pretrained_cfg"], stored["architecture"]
    settings = _input(given, path)
    weights = read_weights(folder)
    model_args = at(stored, "model_args") or {}
    only_ends = isinstance(model_args, dict) and not {*model_args} - {*_ENDS}
    if isinstance(architecture, str) and architecture in RESNETS and only_ends:
        return resnet(architecture, weights, settings, str(folder))
    try:
        check_architecture(architecture)
        model_args = _shaping_args(architecture, model_args, given)
        backbone = checked_backbone(timm_backbone(architecture, model_args))
        with torch.device("meta"), bounded_network(weights):
            network = build_network(architecture, model_args)
            classifier = build_network(architecture, model_args, num_classes=2)
    except ValueError as error:
        raise EncoderError(f"{path}: {error}") from error
    ends = classifier.state_dict().keys() - network.state_dict().keys()
    own, unused = own_weights(network, weights, ends, str(folder))
    return ImageNetwork.of_timm(backbone, own, settings, unused)


def resnet(
    architecture: str, weights: Mapping[str, Tensor], settings: ProcessorSettings, source: str
) -> ImageNetwork:
    """Return a ResNet with timm's and torchvision's weight names as a ``ResNet2d``.

    Args:
        architecture: One of :data:`RESNETS`.
        weights: State dict, with or without ``fc``.
        settings: Input settings of the network.
        source: File or folder, for messages.

    Raises:
        EncoderError: If the weights do not fit.
    """
    width = len(weights["bn1.weight"]) if "bn1.weight" in weights else 64
    backbone = {"type": "ResNet2d", "depth": RESNETS[architecture], "base_channels": width}
    with torch.device("meta"), bounded_network(dict(weights)):
        network = MODELS.build(checked_backbone(backbone))
    own, unused = own_weights(network, weights, {"fc.weight", "fc.bias"}, source)
    return ImageNetwork(architecture, backbone, own, settings, unused)


def own_weights(
    network: nn.Module, weights: Mapping[str, Tensor], classifier: Set[str], source: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Return a network's weights in float32, and the names of its classifier's weights.

    Networks of older layouts are renamed by the function with which timm reads them.

    Args:
        network: Network without a classifier, which may be on the "meta" device.
        weights: Content of the file.
        classifier: Names of the classifier's weights.
        source: File or folder, for messages.

    Raises:
        EncoderError: If weights are missing, have another shape, or belong to no layer.
    """
    own = network.state_dict()
    found = dict(weights)
    required = {name for name in own if not name.endswith("num_batches_tracked")}
    if not required <= found.keys():
        found = _renamed(network, found, source)
    name = type(network).__name__
    if missing := sorted(required - found.keys()):
        raise EncoderError(
            f"{source} lacks {len(missing)} weights of timm's {name}, the first is {missing[0]}. "
            "The architecture in its config is wrong, or the file does not contain a timm network"
        )
    for key, value in own.items():
        if key in found and found[key].shape != value.shape:
            raise EncoderError(
                f"{source}: {key} has the shape {tuple(found[key].shape)} instead of "
                f"{tuple(value.shape)}. Check the architecture and model_args in its config"
            )
    unused = [key for key in found if key not in own]
    if stray := [key for key in unused if key not in classifier]:
        raise EncoderError(
            f"{source} contains {len(stray)} weights that timm's {name} does not have, the first "
            f"is {stray[0]}. Check the architecture and model_args in its config"
        )
    zero = torch.zeros((), dtype=torch.int64)  # default for a counter that some files lack
    values = {key: found.get(key, zero) for key in own}
    plain = {k: v.float() if v.is_floating_point() else v for k, v in values.items()}
    return {key: value.contiguous() for key, value in plain.items()}, unused


def _renamed(network: nn.Module, weights: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Rename weights for the installed timm with the network's own function."""
    module = sys.modules.get(type(network).__module__)
    rename = getattr(module, "checkpoint_filter_fn", None)
    if rename is None:
        return weights
    try:
        return rename(weights, network)
    except Exception as error:  # rename may raise any error for unexpected files
        raise EncoderError(f"timm cannot read the weights in {source}: {error}") from error


def _shaping_args(
    architecture: str, model_args: Any, given: Mapping[str, Any]
) -> dict[str, object]:
    """Return the arguments that shape the network, with the image size if it is fixed."""
    if not isinstance(model_args, dict):
        raise ValueError(f"model_args must be a dict, got {model_args!r:.80}")
    kept = dict(model_args)
    channels = kept.pop("in_chans", 3)
    kept.pop("num_classes", None)
    if channels != 3:
        raise ValueError(f"in_chans is {channels!r:.40}, but frames have 3 channels")
    usual = timm().get_pretrained_cfg(architecture, allow_unregistered=True)
    size = list(given["input_size"][1:])
    fixed = at(given, "fixed_input_size") is True
    if fixed and usual and list(usual.input_size[1:]) != size:
        kept.setdefault("img_size", size)  # timm does the same
    return kept


def _input(given: Any, path: Path) -> ProcessorSettings:
    """Return the input settings in ``pretrained_cfg``.

    Raises:
        EncoderError: If there are none, or a step is unknown.
    """
    try:
        given = {**_TIMM_DEFAULTS, **given}
        channels, height, width = given["input_size"]
        if height != width or channels != 3 or type(height) is not int:
            raise ValueError(f"input_size must be (3, side, side), got {given['input_size']}")
        for name, known in _KNOWN.items():
            if given[name] not in known:
                raise ValueError(f"{name} must be {' or '.join(known)}, got {given[name]!r:.40}")
        if not all(0 < value < math.inf for value in map(float, given["std"])):
            raise ValueError(f"std must be above 0, got {given['std']!r:.80}")
        found = image_input(
            mean=tuple(map(float, given["mean"])),
            std=tuple(map(float, given["std"])),
            short_side=math.floor(height / given["crop_pct"]),
            crop_size=height,
            interpolation=given["interpolation"],
            square=given["crop_mode"] == "squash",
        )
        # Build ModelSettings only for its checks of the types and limits of these values.
        ModelSettings({}, found.mean, found.std, 1.0, 1, found.short_side, found.crop_size)
        return found
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise EncoderError(
            f"pretrained_cfg in {path} does not state a supported input (mean, std, input_size, "
            f"crop_pct): {error}"
        ) from error
