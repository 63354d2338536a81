"""Prototypes: trained unit vectors that embeddings are assigned to (SwAV)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sce_video.models.losses.embeddings import full_precision


class Prototypes(nn.Module):
    """K trained vectors of size D, l2-normalised.

    :meth:`normalise` belongs after each optimiser step: then they are unit vectors in every forward
    pass, and their gradient is that of facebookresearch/swav, not projected on the sphere.

    Args:
        dim: D.
        count: K, at least 2.

    Raises:
        ValueError: ``count`` is below 2.
    """

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        if count < 2:
            raise ValueError(f"num_prototypes must be at least 2, got {count}")
        self.weight = nn.Parameter(torch.randn(count, dim))
        self.normalise()

    def forward(self, embeddings: Tensor, frozen: Tensor | bool = False) -> Tensor:
        """Similarities (N, K) of embeddings (N, D), in fp32 under autocast too.

        Args:
            embeddings: (N, D), l2-normalised.
            frozen: Whether the prototypes get a gradient of zeros; a tensor () on the device of the
                weights is not read by the host.
        """
        if isinstance(frozen, bool):  # made on the device, not copied to it
            frozen = torch.full((), frozen, device=self.weight.device)
        # DistributedDataParallel expects a gradient of every parameter: zeros, not none.
        weight = torch.where(frozen, self.weight.detach(), self.weight)
        with torch.autocast(weight.device.type, enabled=False):
            return full_precision(embeddings) @ full_precision(weight).T

    @torch.no_grad()
    def normalise(self) -> None:
        """Make the prototypes unit vectors again."""
        self.weight.copy_(F.normalize(self.weight, dim=1))
