"""A state dict of a torchvision image network, recognised by its names and shapes.

ResNets of depth 18 to 101 become a ``ResNet2d``, which has torchvision's names. Every other network
becomes the equivalent timm network. Both packages define these networks in the same order, so their
weights correspond one by one. Names of parameters and all shapes are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sce_video.engine.weights import bounded_network
from sce_video.inference.encoders.frame_networks import ImageNetwork, image_input, timm_backbone
from sce_video.inference.encoders.timm_files import RESNETS, resnet
from sce_video.inference.encoders.transformers_files import EncoderError, ProcessorSettings
from sce_video.models.backbones.timm_encoder import build_network

#: Mean and standard deviation of ImageNet. Only the largest EfficientNet V2 does not use them.
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)
#: Tables that can be computed from the window size, and BN counters.
_COMPUTED = ("relative_position_index", "num_batches_tracked")
#: Last parts of weight names that differ: torchvision's part, and timm's.
_RENAMED = {"layer_scale": "gamma"}
#: Swin's layer that merges patches. In timm, its norm is defined before it.
_REDUCTION = re.compile(r"features\.\d+\.reduction\.weight")


@dataclass(frozen=True)
class Published:
    """A torchvision network, with the input settings of its default weights.

    Source: torchvision 0.28, ``models/*.py``, classes ``*_Weights``.

    Attributes:
        architecture: Name of the same network in timm.
        tensors: Number of weights without the last layer of the classifier.
        first: Channels of the first convolution.
        classifier: Name of the last layer of the classifier.
        short_side: Short side of the resized image, pixels.
        crop_size: Side of its central crop, pixels.
        interpolation: "bilinear" or "bicubic", antialiased.
        model_args: Arguments of timm's network that differ from its defaults.
        mean: Mean of frames in 0..1, per channel.
        std: Standard deviation of frames in 0..1, per channel.
    """

    architecture: str
    tensors: int
    first: int
    classifier: str
    short_side: int
    crop_size: int = 224
    interpolation: str = "bilinear"
    model_args: dict = field(default_factory=dict)
    mean: tuple[float, ...] = _MEAN
    std: tuple[float, ...] = _STD

    @property
    def settings(self) -> ProcessorSettings:
        """Input settings of the network."""
        return image_input(
            mean=self.mean,
            std=self.std,
            short_side=self.short_side,
            crop_size=self.crop_size,
            interpolation=self.interpolation,
        )


_WIDE_EPS = {"bn_eps": 1e-3}
_BICUBIC = "bicubic"
_HALF = (0.5, 0.5, 0.5)
_LAST = "classifier.1"
NETWORKS = (
    Published("resnet18", 100, 64, "fc", 256),
    Published("resnet34", 180, 64, "fc", 256),
    Published("resnet50", 265, 64, "fc", 232),
    Published("resnet101", 520, 64, "fc", 232),
    Published("resnet152", 775, 64, "fc", 232),
    Published("resnext50_32x4d", 265, 64, "fc", 232),
    Published("resnext101_32x8d", 520, 64, "fc", 232),
    Published("resnext101_64x4d", 520, 64, "fc", 232),
    Published("wide_resnet50_2", 265, 64, "fc", 232),
    Published("wide_resnet101_2", 520, 64, "fc", 232),
    Published("efficientnet_b0", 309, 32, _LAST, 256, 224, _BICUBIC),
    Published("efficientnet_b1", 437, 32, _LAST, 255, 240),
    Published("efficientnet_b2", 437, 32, _LAST, 288, 288, _BICUBIC),
    Published("efficientnet_b3", 494, 40, _LAST, 320, 300, _BICUBIC),
    Published("efficientnet_b4", 608, 48, _LAST, 384, 380, _BICUBIC),
    Published("efficientnet_b5", 736, 48, _LAST, 456, 456, _BICUBIC, _WIDE_EPS),
    Published("efficientnet_b6", 850, 56, _LAST, 528, 528, _BICUBIC, _WIDE_EPS),
    Published("efficientnet_b7", 1035, 64, _LAST, 600, 600, _BICUBIC, _WIDE_EPS),
    Published("efficientnetv2_s", 670, 24, _LAST, 384, 384, model_args=_WIDE_EPS),
    Published("efficientnetv2_m", 961, 24, _LAST, 480, 480, model_args=_WIDE_EPS),
    Published("efficientnetv2_l", 1329, 32, _LAST, 480, 480, _BICUBIC, _WIDE_EPS, _HALF, _HALF),
    Published("convnext_tiny", 180, 96, "classifier.2", 236),
    Published("convnext_small", 342, 96, "classifier.2", 230),
    Published("convnext_base", 342, 128, "classifier.2", 232),
    Published("convnext_large", 342, 192, "classifier.2", 232),
    Published("mobilenetv3_large_100", 264, 16, "classifier.3", 232, model_args=_WIDE_EPS),
    Published("mobilenetv3_small_100", 208, 16, "classifier.3", 256, model_args=_WIDE_EPS),
    Published("swin_tiny_patch4_window7_224", 171, 96, "head", 232, 224, _BICUBIC),
    Published("swin_small_patch4_window7_224", 327, 96, "head", 246, 224, _BICUBIC),
    Published("swin_base_patch4_window7_224", 327, 128, "head", 238, 224, _BICUBIC),
)
#: Possible names of the first weight in these networks.
_FIRST = ("conv1.weight", "features.0.0.weight")


def is_published(weights: Mapping[str, Any]) -> bool:
    """Return whether a state dict has the names and the size of a torchvision network."""
    return next(_candidates(weights), None) is not None


def _candidates(weights: Mapping[str, Any]) -> Iterator[Published]:
    """Yield the networks that match the number of weights and the channels of the first one."""
    first = next((weights[name] for name in _FIRST if name in weights), None)
    if not torch.is_tensor(first) or first.ndim != 4 or first.shape[1] != 3:
        return
    for published in NETWORKS:
        kept, _ = _without_classifier(weights, published.classifier)
        if len(kept) != published.tensors:
            continue
        if published.classifier != "fc":
            fits = "conv1.weight" not in weights and len(first) == published.first
        else:
            is_plain = published.architecture.startswith("resnet")
            fits = "conv1.weight" in weights and _is_plain_resnet(weights) == is_plain
        if fits:
            yield published


def torchvision_network(weights: Mapping[str, Any], source: str) -> ImageNetwork | None:
    """Return the torchvision network in a state dict; None for any other network.

    Args:
        weights: Content of the file.
        source: File, for messages.

    Raises:
        EncoderError: If the weights belong to a torchvision network but do not fit.
        MissingPackageError: If timm is needed and not installed.
    """
    tensors = {str(name): value for name, value in weights.items() if torch.is_tensor(value)}
    for published in _candidates(tensors):
        if published.architecture in RESNETS:
            return resnet(published.architecture, tensors, published.settings, source)
        kept, unused = _without_classifier(tensors, published.classifier)
        found = _same_in_timm(published, kept, tensors)
        if found is not None:
            backbone = timm_backbone(published.architecture, published.model_args)
            return ImageNetwork.of_timm(backbone, found, published.settings, unused)
    return None


def _is_plain_resnet(weights: Mapping[str, Any]) -> bool:
    """Return whether weights belong to a ResNet for large images, not wide and not a ResNeXt."""
    names = "conv1.weight", "layer1.0.conv2.weight"
    if not all(name in weights and torch.is_tensor(weights[name]) for name in names):
        return False
    stem, block = (weights[name] for name in names)
    return block.shape[:2] == (len(stem), len(stem)) and stem.shape[2:] == (7, 7)


def _without_classifier(
    weights: Mapping[str, Any], classifier: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights that a network without its last layer has, and the names of the rest."""
    unused = [name for name in weights if name.startswith(f"{classifier}.")]
    kept = {
        name: value
        for name, value in weights.items()
        if name not in unused and not name.endswith(_COMPUTED)
    }
    return kept, unused


def _same_in_timm(
    published: Published, kept: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """Return weights under timm's names; None if their names or shapes differ.

    Args:
        published: Network whose number of weights is the same.
        kept: Result of :func:`_without_classifier`.
        weights: Content of the file, whose size bounds the network.
    """
    try:
        with torch.device("meta"), bounded_network(dict(weights)):
            own = build_network(published.architecture, published.model_args).state_dict()
    except ValueError as error:
        raise EncoderError(f"{published.architecture}: {error}") from error
    places = [name for name in own if not name.endswith(_COMPUTED)]
    if len(places) != len(kept):
        return None
    found = {}
    for place, (name, value) in zip(places, _in_order(kept), strict=True):
        part = name.rpartition(".")[2]
        alike = own[place].squeeze().shape == value.squeeze().shape
        if not alike or _RENAMED.get(part, part) != place.rpartition(".")[2]:
            return None
        found[place] = value.float().reshape(own[place].shape).contiguous()
    zero = torch.zeros((), dtype=torch.int64)
    return {name: found.get(name, zero) for name in own}


def _in_order(weights: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Return the weights in the order in which timm defines them."""
    names = list(weights)
    for index in [i for i, name in enumerate(names) if _REDUCTION.fullmatch(name)]:
        reduction, *norm = names[index : index + 3]
        names[index : index + 3] = [*norm, reduction]
    return [(name, weights[name]) for name in names]
