"""Memory of batches, used again as soon as nothing refers to the batch any more.

In a loader worker it is shared memory: the batch is sent without a copy, and its memory used again
once it is gone in both processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from sce_video.datasets.loading.shared_memory import shared_tensor
from sce_video.utils.reused_memory import RECEIVER, ReusedMemory, allocate, flags, shown


class BatchTensor(Tensor):
    """A tensor of a loader worker that is sent without a copy.

    Everything computed from it is a plain tensor; such a view of it is copied when it is sent.

    Attributes:
        memory: Header and batch, (bytes,) uint8 in shared memory.
    """

    memory: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable, tuple]:
        flags(self.memory)[RECEIVER] = 1
        offset = self.data_ptr() - self.memory.data_ptr()
        return _received, (self.memory, offset, tuple(self.shape), self.dtype)

    def is_shared(self) -> bool:
        """True; torch does not know it, since it sees an array."""
        return self.memory.is_shared()


def _received(memory: Tensor, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A batch in the process that gets it."""
    return shown(memory, RECEIVER, offset, shape, dtype)


def _new_block(size: int) -> Tensor:
    if get_worker_info() is None:
        return allocate(size)
    return shared_tensor((size,), torch.uint8, "a batch")


_memory = ReusedMemory(_new_block)


def empty_batch(shape: Sequence[int], dtype: torch.dtype = torch.uint8) -> Tensor:
    """An uninitialised tensor for a batch; in a loader worker a :class:`BatchTensor`.

    Its memory is used for another batch once no tensor and no array shows a part of it.

    Raises:
        SharedMemoryError: Too little shared memory, as in a container with its default of 64 MiB.
    """
    batch, block = _memory.empty(shape, dtype)
    if block is None or not block.is_shared():
        return batch
    return _in(block, batch)


def part_of(batch: Tensor, first: int, count: int) -> Tensor:
    """Some consecutive items of a tensor; those of a :class:`BatchTensor` are one, too."""
    part = batch[first : first + count]
    return _in(batch.memory, part) if isinstance(batch, BatchTensor) else part


def _in(block: Tensor, tensor: Tensor) -> BatchTensor:
    batch = tensor.as_subclass(BatchTensor)
    batch.memory = block
    return batch
