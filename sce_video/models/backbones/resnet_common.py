"""What the 2-D and the 3-D ResNet share: depths, initialisation, freezing, forward pass."""

from __future__ import annotations

from typing import Self

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sce_video.models.modules.pooling import average_pool

# Depth -> blocks in res2, res3, res4, res5 (He et al. 2016, table 1).
STAGE_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def check_arguments(depth: int, base_channels: int, frozen_stages: int) -> None:
    """Raise ValueError for an unknown depth, no channels or a stage that does not exist."""
    if depth not in STAGE_BLOCKS:
        raise ValueError(f"depth must be one of {sorted(STAGE_BLOCKS)}, got {depth}")
    if base_channels < 1:
        raise ValueError(f"base_channels must be at least 1, got {base_channels}")
    if not -1 <= frozen_stages <= 4:
        raise ValueError(f"frozen_stages must be from -1 to 4, got {frozen_stages}")


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


class ResNetBase(BaseModule):
    """Initialisation, freezing and pooling; a subclass builds ``conv1, bn1, layer1 .. layer4``.

    It calls :meth:`finish` when they are built. Its blocks have ``last_norm``, the BN before the
    sum.
    """

    def finish(
        self,
        frozen_stages: int,
        norm_eval: bool,
        zero_init_residual: bool,
        channels_last: bool,
    ) -> None:
        """Initialise the weights, set their memory format, freeze; keeps the options."""
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.zero_init_residual = zero_init_residual
        self.channels_last = channels_last
        self.reset_parameters()
        if channels_last:
            self.to(memory_format=self._memory_format())
        self._freeze()

    def reset_parameters(self) -> None:
        """He initialisation (fan out) of convolutions; BN to 1, or 0 where a block ends."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, _BatchNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
        if self.zero_init_residual:
            for module in self.modules():
                if isinstance(last_norm := getattr(module, "last_norm", None), _BatchNorm):
                    nn.init.zeros_(last_norm.weight)

    def _memory_format(self) -> torch.memory_format:
        is_3d = isinstance(self.conv1, nn.Conv3d)
        return torch.channels_last_3d if is_3d else torch.channels_last

    def stages(self) -> list[nn.Sequential]:
        """res2 to res5."""
        return [getattr(self, f"layer{i}") for i in range(1, 5)]

    def _freeze(self) -> None:
        """Stop gradients and BN statistics of the frozen part."""
        if self.frozen_stages >= 0:
            for module in (self.conv1, self.bn1, *self.stages()[: self.frozen_stages]):
                module.eval()
                module.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Training mode, except for what is frozen."""
        super().train(mode)
        self._freeze()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def features(self, x: Tensor) -> Tensor:
        """Stem and stages, in the memory format of the weights."""
        if self.channels_last:
            x = x.contiguous(memory_format=self._memory_format())
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in self.stages():
            x = stage(x)
        return x

    def pool(self, features: Tensor) -> Tensor:
        """Representation (N, C): features (N, C, T, H, W) averaged over time and space."""
        return average_pool(features)
