"""The memory of a batch in the making: samples are written to their places in it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from sce_video.datasets.errors import message_from_worker

Shapes = tuple[tuple[int, ...], ...]


class SharedMemoryError(RuntimeError):
    """The system has no shared memory left for a batch."""

    def __init__(self, message: str) -> None:
        super().__init__(message_from_worker(message, type(self)))


def empty_batch(shape: Sequence[int], dtype: torch.dtype = torch.uint8) -> Tensor:
    """Memory for a batch; in a loader worker the shared memory that is shipped.

    Raises:
        SharedMemoryError: there is not enough of it, as in a container with its default of 64 MiB.
    """
    if get_worker_info() is None:
        return torch.empty(tuple(shape), dtype=dtype)
    first = torch.empty(0, dtype=dtype)
    size = math.prod(shape) * first.itemsize
    try:
        storage = first.untyped_storage()._new_shared(size)
    except RuntimeError as error:  # torch reserves the pages, so this is where it shows
        reason = str(error).partition("\n")[0]
        raise SharedMemoryError(
            f"no shared memory for a batch of {size / 2**20:.1f} MiB ({reason}; "
            f"{_shared_memory()}): give more of it (docker run --shm-size=16g, or --ipc=host), or "
            "lower batch_size, num_workers or prefetch_factor"
        ) from error
    return first.set_(storage).view(tuple(shape))


def _shared_memory() -> str:
    try:
        state = os.statvfs("/dev/shm")
    except OSError:
        return "it cannot be asked how much there is"
    free, whole = (blocks * state.f_frsize // 2**20 for blocks in (state.f_bavail, state.f_blocks))
    return f"/dev/shm has {whole} MiB, {free} of them free"


class SharedBatchBuffer:
    """One tensor per view for all samples of a batch, handed out sample by sample.

    ``PackClips`` writes the views of a sample to its place, and :func:`joined` finds, when the
    batch is collated, that nothing is left to copy.

    Args:
        size: Samples at most.
        shapes: Of the views, as those of the batch before; None hands out no places.
    """

    def __init__(self, size: int, shapes: Shapes | None) -> None:
        self._size = size
        self._batch = None
        if shapes is not None and size > 0:
            self._batch = [empty_batch((size, *shape)) for shape in shapes]
        self._taken = 0

    def next(self) -> list[Tensor] | None:
        """The place of the next sample, one tensor per view; the same one until it is taken."""
        if self._batch is None or self._taken >= self._size:
            return None
        place = [view[self._taken] for view in self._batch]
        for part, view in zip(place, self._batch, strict=True):
            part.batch, part.place = view, self._taken  # type: ignore[attr-defined]
        return place

    def take(self) -> None:
        """A sample is ready: the next one gets the place after it."""
        self._taken += 1

    def abandon(self) -> None:
        """Hand out no more places: somebody who was left behind may still write to this one."""
        self._batch = None


def shapes_of(sample: dict[str, Any]) -> Shapes | None:
    """Of the views of a sample, ``inputs``, if they are uint8 tensors."""
    views = sample["inputs"]
    if any(not isinstance(v, Tensor) or v.dtype != torch.uint8 for v in views):
        return None
    return tuple(tuple(view.shape) for view in views)


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """As ``torch.stack``; without a copy if the tensors are places of one batch, in their order.

    In a loader worker that batch, and else the copy, is what is shipped.
    """
    batch: Tensor | None = getattr(tensors[0], "batch", None)
    first: int = getattr(tensors[0], "place", 0)
    if batch is not None and all(
        getattr(tensor, "batch", None) is batch and getattr(tensor, "place", None) == first + number
        for number, tensor in enumerate(tensors)
    ):
        return batch[first : first + len(tensors)]
    shape = (len(tensors), *tensors[0].shape)
    return torch.stack(tuple(tensors), out=empty_batch(shape, tensors[0].dtype))
