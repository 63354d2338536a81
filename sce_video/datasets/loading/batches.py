"""Collation of samples into a batch in shared memory."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from sce_video.datasets.pipeline import PackedSample
from sce_video.registry import FUNCTIONS
from sce_video.utils.errors import UserError, message_from_worker
from sce_video.utils.tensors import RECEIVER, ReusedMemory, flags, shown


class SharedMemoryError(UserError, RuntimeError):
    """Error that is raised if the system has no shared memory left for a batch."""

    def __init__(self, message: str) -> None:
        super().__init__(message_from_worker(message, type(self)))


def shared_tensor(shape: Sequence[int], dtype: torch.dtype, what: str) -> Tensor:
    """Return an uninitialised tensor in shared memory. The error names ``what``, such as "a batch".

    Raises:
        SharedMemoryError: If shared memory or a limit of file sizes (``ulimit -f``) is too small.
    """
    first = torch.empty(0, dtype=dtype)
    size = math.prod(shape) * first.itemsize
    try:
        storage = first.untyped_storage()._new_shared(size)
    except RuntimeError as error:  # torch reserves the pages immediately, so it fails here
        reason = str(error).partition("\n")[0]
        worker = get_worker_info()
        needed = shared_memory_needed(size, 1 if worker is None else worker.num_workers)
        advice = (
            f"provide more (docker run --ipc=host, or --shm-size={needed}), or lower batch_size, "
            "num_workers or prefetch_factor"
        )
        if os.strerror(errno.EFBIG) in reason:
            advice = "raise the limit of file sizes (ulimit -f), which applies to shared memory"
        there = "the size of /dev/shm is unknown"
        with suppress(OSError):
            fs = os.statvfs("/dev/shm")
            free, total = (n * fs.f_frsize // 2**20 for n in (fs.f_bavail, fs.f_blocks))
            there = f"/dev/shm has {total} MiB, of which {free} are free"
        raise SharedMemoryError(
            f"not enough shared memory for {what} of {size / 2**20:.1f} MiB ({reason}; {there}): "
            f"{advice}"
        ) from error
    return first.set_(storage).view(tuple(shape))


def shared_memory_needed(batch: int, workers: int) -> str:
    """Return the shared memory that all processes of this machine need, in docker's form ``30g``.

    Each loader worker prepares two batches (``prefetch_factor``), and each process of a launcher
    has its own workers.

    Args:
        batch: Size of a batch in bytes.
        workers: Number of loader workers per process.
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return f"{math.ceil(2 * batch * workers * processes / 2**30)}g"


class BatchTensor(Tensor):
    """A tensor of a loader worker that is sent without being copied.

    Tensors that are computed from it are plain tensors, which are copied when they are sent.
    """

    memory: Tensor  # header and batch, uint8 (bytes,) in shared memory
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable, tuple]:
        flags(self.memory)[RECEIVER] = 1
        offset = self.data_ptr() - self.memory.data_ptr()
        return shown, (self.memory, RECEIVER, offset, tuple(self.shape), self.dtype)

    def is_shared(self) -> bool:
        """Return whether the memory is shared, which torch cannot detect."""
        return self.memory.is_shared()


def _new_block(size: int) -> Tensor:
    if get_worker_info() is None:
        return torch.empty(size, dtype=torch.uint8)
    return shared_tensor((size,), torch.uint8, "a batch")


_memory = ReusedMemory(_new_block)


def empty_batch(shape: Sequence[int], dtype: torch.dtype = torch.uint8) -> Tensor:
    """Return an uninitialised tensor for a batch, in a loader worker a :class:`BatchTensor`.

    The memory is used again when no tensor or array refers to it.

    Raises:
        SharedMemoryError: If shared memory is too small, such as a container's default of 64 MiB.
    """
    batch, block = _memory.empty(shape, dtype)
    if block is None or not block.is_shared():
        return batch
    shared = batch.as_subclass(BatchTensor)
    shared.memory = block
    return shared


def part_of(batch: Tensor, first: int, count: int) -> Tensor:
    """Return consecutive items of a tensor; a :class:`BatchTensor` if the tensor is one."""
    part = batch[first : first + count]
    if isinstance(batch, BatchTensor):
        part = part.as_subclass(BatchTensor)
        part.memory = batch.memory
    return part


Shapes = tuple[tuple[int, ...], ...]


class SharedBatchBuffer:
    """One tensor per view for a batch, with a slot for each sample.

    ``PackClips`` writes the views of a sample to the next slot, so that :func:`stack_slots` copies
    nothing. There are ``size`` slots for views with the ``shapes`` of the previous batch. If
    ``shapes`` is None, there are no slots.
    """

    def __init__(self, size: int = 1, shapes: Shapes | None = None) -> None:
        self._size = size if shapes is not None else 0
        self._batch = [empty_batch((self._size, *shape)) for shape in shapes or ()]
        self._filled = 0

    def next_slot(self) -> list[Tensor] | None:
        """Return the first free slot, one tensor per view. :meth:`fill` moves on to the next."""
        if self._filled >= self._size:
            return None
        slot = [view[self._filled] for view in self._batch]
        for part, view in zip(slot, self._batch, strict=True):
            part.batch, part.slot = view, self._filled  # type: ignore[attr-defined]
        return slot

    def fill(self) -> None:
        """Mark the current slot as filled."""
        self._filled += 1

    def abandon(self) -> None:
        """Stop returning slots, because a thread that timed out may still write to one."""
        self._size = 0


def shapes_of(sample: PackedSample) -> Shapes | None:
    """Return the shapes of a sample's views (``inputs``) if they are uint8 tensors, else None."""
    views = sample["inputs"] or []
    if any(not isinstance(v, Tensor) or v.dtype != torch.uint8 for v in views):
        return None
    return tuple(tuple(view.shape) for view in views)


def stack_slots(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors, without a copy if they are consecutive slots of one buffer.

    In a loader worker, the result lies in shared memory in both cases.
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


@FUNCTIONS.register_module()
def collate_views(samples: list[PackedSample]) -> dict[str, Any]:
    """Stack samples view by view; samples of :class:`PackVideo` are returned as a list.

    Args:
        samples: Samples of a :class:`~sce_video.datasets.VideoDataset`. ``inputs`` of a skipped
            sample is None.

    Returns:
        A dict with ``inputs``, V uint8 tensors (N, T, H, W, 3), empty if every sample was skipped,
        or ``videos``, N dicts of ``frames, positions, offsets, crop_size``. It also contains
        ``label``, ``index``, ``seed`` and, if samples have it, ``clip``, each (N,) int64. Further
        entries are ``failures``, a flat list of (path, error), and ``differences``, sums over the
        samples (:class:`~sce_video.datasets.transforms.DecodeClips`).

    Raises:
        ValueError: If samples differ in the number of views or in the shape of a view.
    """
    batch: dict[str, Any]
    kept = [sample for sample in samples if "frames" in sample or sample["inputs"] is not None]
    if kept and "frames" in kept[0]:
        names = ("frames", "positions", "offsets", "crop_size")
        batch = {"videos": [{name: s[name] for name in names} for s in kept]}  # type: ignore[literal-required]
    else:
        inputs = [sample["inputs"] or [] for sample in kept]
        counts = [len(views) for views in inputs]
        if len({*counts}) > 1:
            raise ValueError(f"the samples of a batch have different numbers of views: {counts}")
        views = list(zip(*inputs, strict=True))
        for number, view in enumerate(views):
            shapes = sorted({tuple(tensor.shape) for tensor in view})
            if len(shapes) > 1:
                raise ValueError(
                    f"view {number} has different shapes in one batch, {shapes}. End the pipeline "
                    "with a crop of fixed size"
                )
        batch = {"inputs": [stack_slots(view) for view in views]}
    numbers = ("label", "index", "seed", *(["clip"] if kept and "clip" in kept[0] else ()))
    for name in numbers:
        values = [sample[name] for sample in kept]  # type: ignore[literal-required]
        batch[name] = torch.tensor(values, dtype=torch.int64)
    batch["failures"] = [failure for sample in samples for failure in sample.get("failures", ())]
    counted = [sample["differences"] for sample in kept if "differences" in sample]
    if counted:
        batch["differences"] = tuple(map(sum, zip(*counted, strict=True)))
    return batch


@FUNCTIONS.register_module()
def collate_boxes(samples: list[PackedSample]) -> dict[str, Any]:
    """Stack samples of :class:`~sce_video.datasets.AVADataset` like :func:`collate_views`.

    The result also contains ``boxes``, N tensors (n_i, 4), and ``actions``, N tensors (n_i, 80).
    For testing, batch_size must be 1, because frames of different videos differ in shape.
    """
    kept = [sample for sample in samples if sample["inputs"] is not None]
    boxes = [sample["boxes"] for sample in kept]
    actions = [sample["actions"] for sample in kept]
    return {**collate_views(samples), "boxes": boxes, "actions": actions}
