"""How many threads torch computes with on a CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cores_for_workers(num_workers: int) -> Iterator[None]:
    """Leave the loader workers their cores while torch computes on a CPU.

    torch takes a thread per core, and these wait for each other in a busy loop: where a thread
    shares its core with a loader worker, all others wait for it. On two cores with one worker a
    step takes 1.75 times as long with two threads as with one (docs/performance.md).

    Nothing is changed with a GPU, nor where ``OMP_NUM_THREADS`` states the number.

    Args:
        num_workers: Loader workers of this process.
    """
    if torch.cuda.is_available() or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, len(os.sched_getaffinity(0)) - num_workers)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
