"""Shared memory, with an error that says what to do where there is too little."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from sce_video.datasets.errors import message_from_worker
from sce_video.utils.errors import UserError


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
