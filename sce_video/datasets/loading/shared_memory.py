"""Shared memory, with an error that says what to do where there is too little."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from sce_video.datasets.readers.errors import message_from_worker
from sce_video.utils.errors import UserError
from sce_video.utils.tensors import RECEIVER, ReusedMemory, allocate, flags, shown


class SharedMemoryError(UserError, RuntimeError):
    """The system has no shared memory left for a batch."""

    def __init__(self, message: str) -> None:
        super().__init__(message_from_worker(message, type(self)))


def shared_tensor(shape: Sequence[int], dtype: torch.dtype, what: str) -> Tensor:
    """An uninitialised tensor in shared memory.

    Args:
        shape: Of the tensor.
        dtype: Of the tensor.
        what: It is for, in the message: "a batch".

    Raises:
        SharedMemoryError: Too little shared memory, or a limit of file sizes (``ulimit -f``).
    """
    first = torch.empty(0, dtype=dtype)
    size = math.prod(shape) * first.itemsize
    try:
        storage = first.untyped_storage()._new_shared(size)
    except RuntimeError as error:  # torch reserves the pages here, so this is where it fails
        reason = str(error).partition("\n")[0]
        if os.strerror(errno.EFBIG) in reason:
            advice = "raise the limit of file sizes (ulimit -f), which applies to shared memory"
        else:
            advice = (
                "provide more (docker run --shm-size=16g, or --ipc=host), or lower batch_size, "
                "num_workers or prefetch_factor"
            )
        raise SharedMemoryError(
            f"no shared memory for {what} of {size / 2**20:.1f} MiB ({reason}; "
            f"{_shared_memory()}): {advice}"
        ) from error
    return first.set_(storage).view(tuple(shape))


def _shared_memory() -> str:
    try:
        state = os.statvfs("/dev/shm")
    except OSError:
        return "the size of /dev/shm is unknown"
    free, total = (blocks * state.f_frsize // 2**20 for blocks in (state.f_bavail, state.f_blocks))
    return f"/dev/shm has {total} MiB, {free} of them free"


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


__all__ = ["SharedBatchBuffer", "SharedMemoryError", "empty_batch", "shapes_of", "stack_slots"]

Shapes = tuple[tuple[int, ...], ...]


class SharedBatchBuffer:
    """One tensor per view for all samples of a batch, of which each sample fills one slot.

    ``PackClips`` writes the views of a sample to the next slot, so that :func:`stack_slots` has
    nothing left to copy when the batch is collated.

    Args:
        size: Number of slots, the largest number of samples.
        shapes: Shapes of the views, taken from the batch before; None for a buffer without slots.
    """

    def __init__(self, size: int, shapes: Shapes | None) -> None:
        self._size = size
        self._batch = None
        if shapes is not None and size > 0:
            self._batch = [empty_batch((size, *shape)) for shape in shapes]
        self._filled = 0

    def next_slot(self) -> list[Tensor] | None:
        """The first free slot, one tensor per view; the same one until :meth:`fill` is called."""
        if self._batch is None or self._filled >= self._size:
            return None
        slot = [view[self._filled] for view in self._batch]
        for part, view in zip(slot, self._batch, strict=True):
            part.batch, part.slot = view, self._filled  # type: ignore[attr-defined]
        return slot

    def fill(self) -> None:
        """Mark the current slot as filled."""
        self._filled += 1

    def abandon(self) -> None:
        """Return no more slots: a thread that timed out may still write to the current one."""
        self._batch = None


def shapes_of(sample: dict[str, Any]) -> Shapes | None:
    """Shapes of the views of a sample (``inputs``) if they are uint8 tensors, else None."""
    views = sample["inputs"]
    if any(not isinstance(v, Tensor) or v.dtype != torch.uint8 for v in views):
        return None
    return tuple(tuple(view.shape) for view in views)


def stack_slots(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.stack(tensors)``, without a copy if they are consecutive slots of one buffer.

    In a loader worker the result lies in shared memory either way.
    """
    batch: Tensor | None = getattr(tensors[0], "batch", None)
    first: int = getattr(tensors[0], "slot", 0)
    if batch is not None and all(
        getattr(tensor, "batch", None) is batch and getattr(tensor, "slot", None) == first + number
        for number, tensor in enumerate(tensors)
    ):
        return part_of(batch, first, len(tensors))
    shape = (len(tensors), *tensors[0].shape)
    return torch.stack(tuple(tensors), out=empty_batch(shape, tensors[0].dtype))
