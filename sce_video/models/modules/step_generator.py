"""Random numbers that are a function of the optimiser step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class StepGenerator(nn.Module):
    """A parent of modules that draw random numbers, other ones for every optimiser step.

    The numbers are equal on all ranks and for all micro-batches of a step, a resumed run continues
    with the same ones, and no global random generator is used.

    Buffers (in the checkpoint): ``step`` () int64, optimiser steps so far.
    """

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        # The same number on the host: reading the buffer would synchronise host and device.
        self._step = 0

    @property
    def done(self) -> int:
        """Optimiser steps so far, without a look at the device."""
        return self._step

    def generator(self) -> torch.Generator:
        """A generator of the current step, on the CPU: the device does not change the numbers."""
        return torch.Generator().manual_seed(self._step)

    def advance(self) -> None:
        """Go to the next step."""
        self._step += 1
        self.step.fill_(self._step)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._step = int(self.step)


def take_earlier_name(
    module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any
) -> None:
    """Read ``step`` of an earlier checkpoint of a module as the count of its ``steps``."""
    if f"{prefix}step" in state_dict:
        state_dict[f"{prefix}steps.step"] = state_dict.pop(f"{prefix}step")


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
