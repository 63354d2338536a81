"""The target branch: an exponential moving average of the online encoder and projector."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from sce_video.models.modules.batch_shuffle import BatchShuffle
from sce_video.models.modules.pooling import represent


class TargetEncoder(nn.Module):
    """Copy of backbone and projector, updated by target <- m*target + (1-m)*online.

    Parameters are averaged (paper, section 3.1); buffers are not: the target's BN layers run in
    training mode and keep the statistics of their own forward passes.

    Args:
        backbone: The online backbone, copied.
        projector: The online projector, copied.
        shuffle_bn_splits: Shuffle-BN with this many groups of samples on each rank, see
            :class:`~sce_video.models.modules.batch_shuffle.BatchShuffle`; None for none.

    Raises:
        ValueError: ``shuffle_bn_splits`` is below 1.
    """

    def __init__(
        self, backbone: nn.Module, projector: nn.Module, shuffle_bn_splits: int | None = None
    ) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone)
        self.projector = copy.deepcopy(projector)
        self.shuffle = None if shuffle_bn_splits is None else BatchShuffle(shuffle_bn_splits)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, view: Tensor) -> Tensor:
        """Embeddings (N, D) of a view (N, 3, T, H, W), not normalised and without gradient."""
        return self._encode(view) if self.shuffle is None else self.shuffle(self._encode, view)

    def _encode(self, view: Tensor) -> Tensor:
        return self.projector(represent(self.backbone, view))

    @torch.no_grad()
    def copy_from(self, backbone: nn.Module, projector: nn.Module) -> None:
        """Load the online parameters and buffers, so that both branches are equal."""
        self.backbone.load_state_dict(backbone.state_dict())
        self.projector.load_state_dict(projector.state_dict())

    @torch.no_grad()
    def update(self, backbone: nn.Module, projector: nn.Module, momentum: float) -> None:
        """target <- momentum*target + (1-momentum)*online, for all parameters; one step is over.

        Raises:
            ValueError: ``momentum`` is not from 0 to 1.
        """
        check_momentum(momentum)
        target: list[Tensor] = [*self.backbone.parameters(), *self.projector.parameters()]
        online: list[Tensor] = [*backbone.parameters(), *projector.parameters()]
        torch._foreach_lerp_(target, online, 1.0 - momentum)  # one kernel launch for many tensors
        if self.shuffle is not None:
            self.shuffle.advance()


def check_momentum(momentum: float) -> None:
    """Raise ValueError unless the momentum of a moving average is from 0 to 1."""
    if not 0.0 <= momentum <= 1.0:
        raise ValueError(f"momentum must be from 0 to 1, got {momentum}")
