"""Random unit directions, other ones for every optimiser step, equal on all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RandomDirections(nn.Module):
    """Uniformly distributed unit vectors that are a function of the optimiser step alone.

    So they are equal on all ranks and for all micro-batches of a step, a resumed run continues
    with the same ones, and no global random generator is used.

    Args:
        count: M, number of directions.
        dim: D, their size.

    Buffers (in the checkpoint): ``step`` () int64, optimiser steps so far.

    Raises:
        ValueError: ``count`` or ``dim`` is below 1.
    """

    step: Tensor

    def __init__(self, count: int, dim: int) -> None:
        super().__init__()
        if count < 1 or dim < 1:
            raise ValueError(
                f"directions need a number and a size of at least 1, got {count} and {dim}"
            )
        self.count, self.dim = count, dim
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        # The same number on the host: reading the buffer would synchronise host and device.
        self._step = 0

    def forward(self) -> Tensor:
        """Directions (M, D) of the current step, float32, on the device of the module."""
        # Drawn on the CPU, so that they do not depend on the device.
        generator = torch.Generator().manual_seed(self._step)
        directions = torch.randn(self.count, self.dim, generator=generator)
        return F.normalize(directions, dim=1).to(self.step.device, non_blocking=True)

    def advance(self) -> None:
        """Go to the directions of the next step."""
        self._step += 1
        self.step.fill_(self._step)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._step = int(self.step)
