"""Prototypes: trained unit vectors that embeddings are assigned to (SwAV)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sce_video.models.losses.cosine import full_precision


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

    def forward(self, embeddings: Tensor) -> Tensor:
        """Similarities (N, K) of l2-normalised embeddings (N, D), in fp32 under autocast too."""
        with torch.autocast(self.weight.device.type, enabled=False):
            return full_precision(embeddings) @ full_precision(self.weight).T

    def check_samples(self, num_samples: int, batch_size: int, queue_size: int) -> list[str]:
        """Warn of fewer samples in batch and queue than prototypes; ValueError: fewer in all."""
        count = len(self.weight)
        if num_samples < count:
            few = f"{num_samples} training samples are fewer than the {count} prototypes"
            raise ValueError(f"{few}: lower model.num_prototypes, to a fraction of the samples")
        warning = (
            f"a batch of {batch_size} and a queue of {queue_size} are less than a sample for each "
            f"of {count} prototypes: raise model.queue_size or lower model.num_prototypes"
        )
        return [warning] if batch_size + queue_size < count else []

    @torch.no_grad()
    def normalise(self) -> None:
        """Make the prototypes unit vectors again."""
        self.weight.copy_(F.normalize(self.weight, dim=1))
