"""Random unit directions, other ones for every optimiser step, equal on all ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.models.modules.step_generator import StepGenerator


class RandomDirections(StepGenerator):
    """Uniformly distributed unit vectors that are a function of the optimiser step alone.

    Args:
        count: M, number of directions.
        dim: D, their size.

    Buffers (in the checkpoint): ``step`` () int64, optimiser steps so far.

    Raises:
        ValueError: ``count`` or ``dim`` is below 1.
    """

    def __init__(self, count: int, dim: int) -> None:
        super().__init__()
        if count < 1 or dim < 1:
            raise ValueError(
                f"directions need a number and a size of at least 1, got {count} and {dim}"
            )
        self.count, self.dim = count, dim

    def forward(self) -> Tensor:
        """Directions (M, D) of the current step, float32, on the device of the module."""
        directions = torch.randn(self.count, self.dim, generator=self.generator())
        return F.normalize(directions, dim=1).to(self.step.device, non_blocking=True)
