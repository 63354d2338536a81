"""The target branch: a moving average of online modules."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class TargetEncoder(nn.Module):
    """Encoder and projector that follow the online ones: target <- m*target + (1-m)*online.

    Parameters are averaged (paper, eq. of section 3.1); buffers are not: the target's BN layers
    keep the statistics of their own forward passes.

    Args:
        backbone: The online backbone, copied.
        projector: The online projector, copied.
    """

    def __init__(self, backbone: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone)
        self.projector = copy.deepcopy(projector)
        self.requires_grad_(False)

    def _parameters_of(self, backbone: nn.Module, projector: nn.Module) -> list[Tensor]:
        return [*backbone.parameters(), *projector.parameters()]

    @torch.no_grad()
    def copy_from(self, backbone: nn.Module, projector: nn.Module) -> None:
        """Become an exact copy, buffers included."""
        self.backbone.load_state_dict(backbone.state_dict())
        self.projector.load_state_dict(projector.state_dict())

    @torch.no_grad()
    def update(self, backbone: nn.Module, projector: nn.Module, momentum: float) -> None:
        """target <- momentum*target + (1-momentum)*online, for all parameters at once."""
        if not 0.0 <= momentum <= 1.0:
            raise ValueError(f"momentum must be from 0 to 1, got {momentum}")
        target = self._parameters_of(self.backbone, self.projector)
        online = self._parameters_of(backbone, projector)
        torch._foreach_lerp_(target, online, 1.0 - momentum)
