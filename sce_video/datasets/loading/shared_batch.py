"""Shared batch buffer: samples are written directly into the tensors of their batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sce_video.datasets.loading.batch_memory import empty_batch, part_of
from sce_video.datasets.loading.shared_memory import SharedMemoryError

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
