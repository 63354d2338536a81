"""Batches to the device while the device is still busy with the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

import torch

_Item = TypeVar("_Item")


def copied_ahead(
    batches: Iterable[dict[str, Any]], device: torch.device
) -> Iterator[dict[str, Any]]:
    """Batches whose views are copied to a GPU on a stream of their own, one batch ahead.

    The copy of a batch is queued before the step of the one before it, because mmengine waits for
    the GPU at the end of every step, when it takes the loss. Needs pinned memory to run beside the
    step, and the memory of two more batches of uint8 views. What decides on random draws (``seed``)
    stays on the CPU, where it is read.

    Args:
        batches: As :func:`sce_video.collate_views` makes them.
        device: Where the network is; on a CPU the batches pass through untouched.
    """
    if device.type != "cuda":
        yield from batches
        return
    stream = _copy_stream(device)
    copies = (_copy(batch, device, stream) for batch in batches)
    for batch, arrived in one_ahead(copies):
        current = torch.cuda.current_stream(device)
        current.wait_event(arrived)
        for view in batch["inputs"]:
            view.record_stream(current)  # else its memory could be given away too early
        yield batch


@lru_cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all epochs: the allocator keeps the memory of each stream apart."""
    return torch.cuda.Stream(device)


def _copy(
    batch: dict[str, Any], device: torch.device, stream: torch.cuda.Stream
) -> tuple[dict[str, Any], torch.cuda.Event]:
    """A batch whose views are on their way, and the event of their arrival."""
    with torch.cuda.stream(stream):
        views = [view.to(device, non_blocking=True) for view in batch["inputs"]]
        arrived = stream.record_event()
    return {**batch, "inputs": views}, arrived


def one_ahead(items: Iterable[_Item]) -> Iterator[_Item]:
    """Each item, once the one after it has been taken."""
    waiting: list[_Item] = []
    for item in items:
        waiting.append(item)
        if len(waiting) == 2:
            yield waiting.pop(0)
    yield from waiting
