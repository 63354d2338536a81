"""Memory of batches, used again as soon as nothing refers to the batch any more.

The system hands out new memory page by page, cleared: for a batch of views that takes as long as
resizing the frames that are written to it. So the memory of a batch is kept and used again, once
all tensors and arrays that show a part of it are gone. In a loader worker it is shared memory:
the batch is sent without a copy, and used again once it is gone in both processes.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from sce_video.datasets.loading.shared_memory import shared_tensor

#: Bytes before the batch in its memory. The first two tell who still uses it.
_HEADER = 64
_MAKER, _RECEIVER = 0, 1


class BatchTensor(Tensor):
    """A tensor of a loader worker that is sent without a copy.

    Everything computed from it is a plain tensor; such a view of it is copied when it is sent.

    Attributes:
        memory: Header and batch, (bytes,) uint8 in shared memory.
    """

    memory: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable, tuple]:
        _flags(self.memory)[_RECEIVER] = 1
        offset = self.data_ptr() - self.memory.data_ptr()
        return _received, (self.memory, offset, tuple(self.shape), self.dtype)

    def is_shared(self) -> bool:
        """True; torch does not know it, since it sees an array."""
        return self.memory.is_shared()


class BatchMemory:
    """The memory of the batches of a process; safe to use from several threads."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []  # the one that was used last at the end
        self._pid = os.getpid()
        self._lock = Lock()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """See :func:`empty_batch`."""
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(tuple(shape), dtype=dtype)
        with self._lock:
            block = self._free_block(size)
            _flags(block)[_MAKER] = 1
        batch = _view(block, _MAKER, _HEADER, shape, dtype)
        if block.is_shared():
            batch = batch.as_subclass(BatchTensor)
            batch.memory = block
        return batch

    def _free_block(self, size: int) -> Tensor:
        """Memory for a batch of some bytes that is not in use; new memory if there is none."""
        if self._pid != os.getpid():  # after a fork the blocks are those of the other process
            self._blocks, self._pid = [], os.getpid()
        free = [block for block in self._blocks if not _flags(block)[: _RECEIVER + 1].any()]
        fitting = [block for block in free if size <= len(block) - _HEADER <= 2 * size]
        if fitting:
            found = fitting[-1]
        else:
            self._forget(free, size)
            found = _new_block(_HEADER + size)
        self._blocks = [block for block in self._blocks if block is not found] + [found]
        return found

    def _forget(self, free: list[Tensor], kept: int) -> None:
        """Give free blocks back to the system, but for the latest of at most ``kept`` bytes."""
        held = 0
        for block in reversed(free):
            held += len(block) - _HEADER
            if held > kept:
                self._blocks = [other for other in self._blocks if other is not block]


_memory = BatchMemory()


def empty_batch(shape: Sequence[int], dtype: torch.dtype = torch.uint8) -> Tensor:
    """An uninitialised tensor for a batch; in a loader worker a :class:`BatchTensor`.

    Its memory is used for another batch once no tensor and no array shows a part of it.

    Raises:
        SharedMemoryError: Too little shared memory, as in a container with its default of 64 MiB.
    """
    return _memory.empty(shape, dtype)


def part_of(batch: Tensor, first: int, count: int) -> Tensor:
    """Some consecutive items of a tensor; those of a :class:`BatchTensor` are one, too."""
    part = batch[first : first + count]
    if isinstance(batch, BatchTensor):
        part = part.as_subclass(BatchTensor)
        part.memory = batch.memory
    return part


def _new_block(size: int) -> Tensor:
    if get_worker_info() is None:
        block = torch.empty(size, dtype=torch.uint8)
    else:
        block = shared_tensor((size,), torch.uint8, "a batch")
    _flags(block)[:] = 0
    return block


def _flags(block: Tensor) -> np.ndarray:
    """The header: whether the process that made the batch, and the one that got it, use it."""
    return block.numpy()[:_HEADER]


def _view(
    block: Tensor, user: int, offset: int, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """A part of a block as a tensor; the user's flag is cleared when no view of it is left.

    The storage of the tensor holds an array, and an array tells when it ends.
    """
    end = offset + math.prod(shape) * dtype.itemsize
    array = block.numpy()[offset:end]
    weakref.finalize(array, _clear, block, user, os.getpid()).atexit = False
    return torch.from_numpy(array).view(dtype).view(tuple(shape))


def _clear(block: Tensor, user: int, pid: int) -> None:
    if os.getpid() == pid:  # not where a forked process drops its copy
        _flags(block)[user] = 0


def _received(memory: Tensor, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A batch in the process that gets it."""
    return _view(memory, _RECEIVER, offset, shape, dtype)
