"""Computation in float64: where it is fast, and over large matrices without a second copy."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: Values of a block of rows, 32 MB in float64: small next to features, large for matrix products.
_BLOCK_VALUES = 2**22
#: Compute capabilities of NVIDIA's GPUs for data centres (P100, V100, A100, H100, B200), which
#: compute in float64 half as fast as in float32. All others are 32 to 64 times as slow.
_FAST_FLOAT64 = frozenset([(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)])


def float64_device(device: torch.device | str) -> torch.device:
    """Return a CPU or CUDA device itself, and the CPU for one that may have no float64 (mps)."""
    device = torch.device(device)
    return device if device.type in ("cpu", "cuda") else torch.device("cpu")


def has_fast_float64(device: torch.device) -> bool:
    """Return whether a CPU or CUDA device computes in float64 about half as fast as in float32."""
    if device.type != "cuda":
        return True
    return torch.cuda.get_device_capability(device) in _FAST_FLOAT64


def block_rows(columns: int) -> int:
    """Return how many rows of so many columns are in a block."""
    return max(1, _BLOCK_VALUES // max(1, columns))


def float64_blocks(x: Tensor) -> Iterator[Tensor]:
    """Yield the rows of a matrix (N, C) in order, some of them at a time, in float64."""
    for block in x.split(block_rows(x.shape[1])):
        yield block.double()
