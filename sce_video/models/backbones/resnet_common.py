"""What the 2-D and the 3-D ResNet share: depths, checks, initialisation, freezing."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

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


def he_initialise(network: nn.Module) -> None:
    """He initialisation (fan out) of convolutions; BN weights 1, biases 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, _BatchNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def freeze(modules: Iterable[nn.Module]) -> None:
    """Stop gradients and the update of BN statistics."""
    for module in modules:
        module.eval()
        module.requires_grad_(False)


def set_norms_to_eval(network: nn.Module) -> None:
    """Let every BN use its running statistics and keep them as they are."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
