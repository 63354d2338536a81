"""Large tensors: reused memory, asynchronous copies, deferred numbers, and float64 in blocks.

Memory is reused as soon as nothing refers to its tensor any more. Otherwise, malloc would return
blocks of more than 32 MB to the system immediately, and the system would provide new memory page by
page and clear it. For a batch of views, this takes as long as resizing its frames.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from sce_video.utils.private_parts import set_cudnn_benchmark

#: Number of bytes before a tensor in its memory. The first two show who still uses the tensor.
HEADER = 64
#: Header entry that shows whether the process that made the tensor still uses it
MAKER = 0
#: Header entry that shows whether the process that received the tensor still uses it
RECEIVER = 1


class ReusedMemory:
    """Thread-safe memory for the tensors of a process, which is allocated by ``new``."""

    def __init__(self, new: Callable[[int], Tensor]) -> None:
        self._new = new
        self._blocks: list[Tensor] = []  # most recently used block last
        self._pid = os.getpid()
        self._lock = Lock()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Return an uninitialised tensor, and its block of memory, or None if it is empty."""
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(tuple(shape), dtype=dtype), None
        with self._lock:
            block = self._free_block(size)
            flags(block)[MAKER] = 1
        return shown(block, MAKER, HEADER, shape, dtype), block

    def _free_block(self, size: int) -> Tensor:
        """Return an unused block for ``size`` bytes, or a new one if there is none."""
        if self._pid != os.getpid():  # after a fork, the blocks belong to the parent process
            self._blocks, self._pid = [], os.getpid()
        free = [block for block in self._blocks if not flags(block)[: RECEIVER + 1].any()]
        fitting = [block for block in free if size <= len(block) - HEADER <= 2 * size]
        if fitting:
            found = fitting[-1]
        else:
            # Keep the most recently used free blocks up to this size in total, and release the
            # others.
            held = 0
            for block in reversed(free):
                held += len(block) - HEADER
                if held > size:
                    self._blocks = [other for other in self._blocks if other is not block]
            found = self._new(HEADER + size)
            flags(found)[:] = 0
        self._blocks = [block for block in self._blocks if block is not found] + [found]
        return found


def flags(block: Tensor) -> np.ndarray:
    """Return the header (HEADER,) uint8 of a block. MAKER and RECEIVER are nonzero while in use."""
    return block.numpy()[:HEADER]


def shown(
    block: Tensor, user: int, offset: int, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Return a part of a block as a tensor. The user's flag is cleared after its last view."""
    end = offset + math.prod(shape) * dtype.itemsize
    array = block.numpy()[offset:end]

    def clear(pid: int) -> None:
        if os.getpid() == pid:  # a forked process that drops its copy must not clear the flag
            flags(block)[user] = 0

    weakref.finalize(array, clear, os.getpid()).atexit = False
    return torch.from_numpy(array).view(dtype).view(tuple(shape))


_memory = ReusedMemory(lambda size: torch.empty(size, dtype=torch.uint8))


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised CPU tensor, which reuses the memory of an earlier one if possible."""
    return _memory.empty(shape, dtype)[0]


@dataclass(frozen=True)
class DeferredNumber:
    """A number to log, whose computation would make the host wait for the device.

    The engine reads the number only when it writes the log, so other steps do not wait.
    """

    tensor: Tensor  # on the device and without gradient
    compute: Callable[[Tensor], Tensor]  # maps a copy of the tensor on the CPU to a scalar

    @torch.no_grad()
    def read(self) -> float:
        """Wait for the device, and compute the number."""
        return float(self.compute(self.tensor.cpu()))


#: Value in the result of a method's ``loss()``: a scalar tensor, or a number to be computed later
LoggedValue = Tensor | DeferredNumber


@contextmanager
def cudnn_benchmark(on: bool) -> Iterator[None]:
    """Set whether cuDNN tries its algorithms for each new shape inside the block."""
    before = torch.backends.cudnn.benchmark
    set_cudnn_benchmark(on)
    try:
        yield
    finally:
        set_cudnn_benchmark(before)


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device as a tensor. Copies to a GPU are asynchronous."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


#: Number of values in a block of rows, which takes 32 MB in float64. Blocks are small compared with
#: features, but large enough for efficient matrix products.
_BLOCK_VALUES = 2**22
#: Compute capabilities of NVIDIA's data-centre GPUs (P100, V100, A100, H100, B200). They are half
#: as fast in float64 as in float32, whereas all other GPUs are 32 to 64 times as slow.
_FAST_FLOAT64 = frozenset([(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)])


def float64_device(device: torch.device | str) -> torch.device:
    """Return the device, or the CPU if the device may not support float64 (for example mps)."""
    device = torch.device(device)
    return device if device.type in ("cpu", "cuda") else torch.device("cpu")


def has_fast_float64(device: torch.device) -> bool:
    """Return whether float64 is about half as fast as float32 on a CPU or CUDA device."""
    if device.type != "cuda":
        return True
    return torch.cuda.get_device_capability(device) in _FAST_FLOAT64


def block_rows(columns: int) -> int:
    """Return how many rows with this number of columns form a block."""
    return max(1, _BLOCK_VALUES // max(1, columns))


def float64_blocks(x: Tensor) -> Iterator[Tensor]:
    """Yield the rows of a matrix (N, C) in order, as blocks in float64."""
    for block in x.split(block_rows(x.shape[1])):
        yield block.double()
