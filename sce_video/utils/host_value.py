"""A scalar that the host computes from a tensor of the device, when it is read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class HostValue:
    """A logged value whose computation would make the host wait for the device.

    It takes the place of a scalar tensor among the values that a method logs. Reading it waits for
    the device, so the engine does it only when it logs.

    Args:
        tensor: On the device.
        compute: Takes the tensor on the CPU.
    """

    def __init__(self, tensor: Tensor, compute: Callable[[Tensor], Tensor]) -> None:
        self._tensor = tensor.detach()
        self._compute = compute

    @torch.no_grad()
    def item(self) -> float:
        """The value; waits for the device."""
        return float(self._compute(self._tensor.cpu()))

    def numel(self) -> int:
        """1, as of a scalar tensor."""
        return 1

    def mean(self) -> HostValue:
        """Itself: it is one value."""
        return self

    def detach(self) -> HostValue:
        """Itself: it has no gradient."""
        return self
