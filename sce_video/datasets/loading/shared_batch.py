"""Shared batch buffer: samples are written directly into the tensors of their batch."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from sce_video.datasets.errors import message_from_worker
from sce_video.utils.errors import UserError

Shapes = tuple[tuple[int, ...], ...]


class SharedMemoryError(UserError, RuntimeError):
    """The system has no shared memory left for a batch."""

    def __init__(self, message: str) -> None:
        super().__init__(message_from_worker(message, type(self)))


def empty_batch(shape: Sequence[int], dtype: torch.dtype = torch.uint8) -> Tensor:
    """An uninitialised tensor for a batch; in a loader worker it lies in shared memory.

    Raises:
        SharedMemoryError: Too little shared memory, as in a container with its default of 64 MiB.
    """
    if get_worker_info() is None:
        return torch.empty(tuple(shape), dtype=dtype)
    return shared_tensor(shape, dtype, "a batch")


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
        return batch[first : first + len(tensors)]
    shape = (len(tensors), *tensors[0].shape)
    return torch.stack(tuple(tensors), out=empty_batch(shape, tensors[0].dtype))
