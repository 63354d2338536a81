"""What a training may use on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Machine:
    """Cores and GPU of one process.

    Attributes:
        cores: CPU cores that this process may use.
        gpu: Name of the GPU; None if there is none.
        gpu_memory: Its memory, GiB; 0 without a GPU.
        bfloat16: Whether the GPU computes in bfloat16.
    """

    cores: int
    gpu: str | None = None
    gpu_memory: float = 0.0
    bfloat16: bool = False

    def describe(self) -> str:
        """One sentence for the user."""
        if self.gpu is None:
            return f"{self.cores} CPU cores, no GPU"
        return f"{self.cores} CPU cores, {self.gpu} with {self.gpu_memory:.0f} GiB"


def this_machine() -> Machine:
    """The cores that this process may use, and the first GPU."""
    cores = len(os.sched_getaffinity(0))
    if not torch.cuda.is_available():
        return Machine(cores)
    properties = torch.cuda.get_device_properties(0)
    return Machine(
        cores,
        properties.name,
        properties.total_memory / 2**30,
        torch.cuda.is_bf16_supported(),
    )
