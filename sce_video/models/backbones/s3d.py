"""S3D and S3D-G: separable 3-D Inception with feature gating (torchvision's names)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sce_video.models.backbones.common import StagedBackbone, check_arguments, check_view
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import Channels, Features, Switch


@dataclass(frozen=True)
class InceptionWidths:
    """Numbers of channels in the branches of an Inception block; ``mid`` is inside a branch."""

    branch0: int
    branch1_mid: int
    branch1: int
    branch2_mid: int
    branch2: int
    branch3: int

    def scaled(self, base_channels: int) -> InceptionWidths:
        """Scale all widths for a stem with ``base_channels`` channels instead of 64."""
        # Use at least one channel, because the tiny networks in tests still need all branches.
        scaled = {n: max(1, width * base_channels // 64) for n, width in asdict(self).items()}
        return InceptionWidths(**scaled)


# Blocks of each stage for base_channels=64 (torchvision/models/video/s3d.py, as in Inception v1)
_BLOCKS = (
    (
        InceptionWidths(64, 96, 128, 16, 32, 32),
        InceptionWidths(128, 128, 192, 32, 96, 64),
    ),
    (
        InceptionWidths(192, 96, 208, 16, 48, 64),
        InceptionWidths(160, 112, 224, 24, 64, 64),
        InceptionWidths(128, 128, 256, 24, 64, 64),
        InceptionWidths(112, 144, 288, 32, 64, 64),
        InceptionWidths(256, 160, 320, 32, 128, 128),
    ),
    (
        InceptionWidths(256, 160, 320, 32, 128, 128),
        InceptionWidths(384, 192, 384, 48, 128, 128),
    ),
)


class SelfGating(nn.Module):
    """A sigmoid gate for each channel, which is computed from the clip's mean features."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the channels of (N, C, T, H, W) by their gates."""
        return x * torch.sigmoid(self.fc(x.mean(dim=(2, 3, 4))))[:, :, None, None, None]


class LastPool(nn.Module):
    """2x2x2 max-pooling with stride 2 that keeps a dimension of size 1.

    For fewer than 5 frames, torchvision's pooling has no output. For longer clips, both are equal.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, T, H, W) to (N, C, T/2, H/2, W/2), where each size is at least 1."""
        return F.max_pool3d(x, [min(2, size) for size in x.shape[2:]])


def _conv(
    in_channels: int, channels: int, kernel: tuple[int, int] = (1, 1), stride: int = 1
) -> nn.Sequential:
    """Return a convolution with kernel (time, space), BN and ReLU.

    The stride applies to the dimensions whose kernel is wider than 1.
    """
    temporal, spatial = kernel
    strides = (stride if temporal > 1 else 1, *(stride if spatial > 1 else 1,) * 2)
    size = (temporal, spatial, spatial)
    padding = (temporal // 2, spatial // 2, spatial // 2)
    conv = nn.Conv3d(in_channels, channels, size, strides, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm3d(channels, eps=1e-3), nn.ReLU(inplace=True))


def _separable(in_channels: int, channels: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a spatial convolution followed by a temporal one."""
    return nn.Sequential(
        _conv(in_channels, channels, (1, kernel), stride),
        _conv(channels, channels, (kernel, 1), stride),
    )


def _gate(layers: nn.Sequential, channels: int, gating: bool) -> nn.Sequential:
    """Append a gate if ``gating``. It has a name, so the other layers keep their numbers."""
    if gating:
        layers.add_module("gate", SelfGating(channels))
    return layers


class InceptionBlock(nn.Module):
    """Four parallel branches, optionally gated: 1x1x1, two separable 3x3x3, and pooling."""

    def __init__(self, in_channels: int, widths: InceptionWidths, gating: bool) -> None:
        super().__init__()
        w = widths
        self.out_channels = w.branch0 + w.branch1 + w.branch2 + w.branch3
        branch0 = _conv(in_channels, w.branch0)
        self.branch0 = _gate(branch0, w.branch0, gating)
        branch1 = nn.Sequential(
            _conv(in_channels, w.branch1_mid), _separable(w.branch1_mid, w.branch1, 3)
        )
        self.branch1 = _gate(branch1, w.branch1, gating)
        branch2 = nn.Sequential(
            _conv(in_channels, w.branch2_mid), _separable(w.branch2_mid, w.branch2, 3)
        )
        self.branch2 = _gate(branch2, w.branch2, gating)
        branch3 = nn.Sequential(nn.MaxPool3d(3, stride=1, padding=1), _conv(in_channels, w.branch3))
        self.branch3 = _gate(branch3, w.branch3, gating)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, T, H, W) to (N, out_channels, T, H, W)."""
        return torch.cat([getattr(self, f"branch{i}")(x) for i in range(4)], dim=1)


@MODELS.register_module()
class S3D(StagedBackbone):
    """S3D or S3D-G (Xie et al., arXiv 1712.04851) without its classifier.

    Names and shapes of the parameters equal those in ``torchvision.models.video.s3d``
    (torchvision/models/video/s3d.py) without ``classifier``, so its file loads after
    ``tools/convert/from_layout.py``. It has 7,910,048 parameters, or 9,135,056 with gating.
    :class:`~sce_video.models.backbones.common.StagedBackbone` describes the other arguments. The
    stages are the groups of layers that begin with a pooling layer.

    Gates follow the second convolution and every branch of every block, as in the authors' code
    (tensorflow/models, research/slim/nets/s3dg.py: ``gating_startat="Conv2d_2c_3x3"``), with a bias
    as in the PyTorch ports (antoine77340/S3D_HowTo100M, s3dg.py). The BN has torchvision's ``eps``
    of 0.001 and PyTorch's momentum of 0.1. With torchvision's momentum of 0.001, the statistics
    after a short training would still be close to their initial values.

    Args:
        base_channels: Number of channels of the stem. All other widths are proportional to it.
        gating: Whether to add the gates of S3D-G.

    Raises:
        ValueError: If an argument is out of range.
    """

    least_frames = 5  # required by LastPool

    def __init__(
        self,
        base_channels: Channels = 64,
        in_channels: Features = 3,
        gating: Switch = False,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        channels_last: bool = False,
        with_cp: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(with_cp, init_cfg)
        check_arguments(base_channels, frozen_stages)
        second = 3 * base_channels
        layers: list[nn.Module] = [
            _separable(in_channels, base_channels, 7, stride=2),
            nn.MaxPool3d((1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1)),
            _conv(base_channels, base_channels),
            _gate(_separable(base_channels, second, 3), second, gating),
        ]
        pools = (
            nn.MaxPool3d((1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1)),
            nn.MaxPool3d(3, stride=2, padding=1),
            LastPool(),
        )
        self.out_channels = second
        for pool, blocks in zip(pools, _BLOCKS, strict=True):
            layers.append(pool)
            for widths in blocks:
                block = InceptionBlock(self.out_channels, widths.scaled(base_channels), gating)
                layers.append(block)
                self.out_channels = block.out_channels
        self.features = nn.Sequential(*layers)
        self.finish(frozen_stages, norm_eval, False, channels_last)

    def stem_layers(self) -> list[nn.Module]:
        """Return the first convolution."""
        return [self.features[0]]

    def stages(self) -> list[nn.Sequential]:
        """Return the layers from each pooling layer to the next."""
        starts = [i for i, m in enumerate(self.features) if isinstance(m, nn.MaxPool3d | LastPool)]
        ends = [*starts[1:], len(self.features)]
        layers = list(self.features)
        return [nn.Sequential(*layers[i:j]) for i, j in zip(starts, ends, strict=True)]

    def forward(self, view: Tensor) -> Tensor:
        """Map (N, 3, T, H, W) to (N, C, T/8, H/32, W/32), where each size is at least 1.

        Each halving rounds up, except the last one, which rounds down.
        """
        check_view(view)
        return self.run_stages(view)
