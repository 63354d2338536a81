"""What a training may use on this machine."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

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


def process_began() -> float:
    """Value of ``time.monotonic()`` when this process began; now where the system does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        age = 0.0
    return time.monotonic() - age


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
