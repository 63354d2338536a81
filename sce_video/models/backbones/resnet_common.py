"""What the 2-D and the 3-D ResNet share: depths, and the forward pass of a block and a stem."""

from __future__ import annotations

from torch import Tensor, nn

from sce_video.models.backbones.staged_backbone import StagedBackbone, check_staged

# Depth -> blocks in res2, res3, res4, res5 (He et al. 2016, table 1).
STAGE_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def check_arguments(depth: int, base_channels: int, frozen_stages: int) -> None:
    """Raise ValueError for an unknown depth, no channels or a stage that does not exist."""
    if depth not in STAGE_BLOCKS:
        raise ValueError(f"depth must be one of {sorted(STAGE_BLOCKS)}, got {depth}")
    check_staged(base_channels, frozen_stages)


class BasicBlockBase(nn.Module):
    """Forward pass of two convolutions, their BN and the shortcut ``downsample``."""

    expansion = 1
    conv1: nn.Module
    bn1: nn.Module
    conv2: nn.Module
    bn2: nn.Module
    relu: nn.Module
    downsample: nn.Module

    @property
    def last_norm(self) -> nn.Module:
        """The normalisation before the sum."""
        return self.bn2

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        return self.relu(x + shortcut)


class BottleneckBase(nn.Module):
    """Forward pass of three convolutions, their BN and the shortcut ``downsample``."""

    expansion = 4
    conv1: nn.Module
    bn1: nn.Module
    conv2: nn.Module
    bn2: nn.Module
    conv3: nn.Module
    bn3: nn.Module
    relu: nn.Module
    downsample: nn.Module

    @property
    def last_norm(self) -> nn.Module:
        """The normalisation before the sum."""
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        return self.relu(x + shortcut)


class ResNetBase(StagedBackbone):
    """A subclass builds ``conv1, bn1, relu, maxpool`` and the stages ``layer1 .. layer4``."""

    def stem_layers(self) -> list[nn.Module]:
        """The layers before res2."""
        return [self.conv1, self.bn1, self.relu, self.maxpool]

    def stages(self) -> list[nn.Sequential]:
        """res2 to res5."""
        return [getattr(self, f"layer{i}") for i in range(1, 5)]
