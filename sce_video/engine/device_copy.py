"""Copies of batches to the GPU that overlap with the step of the batch before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

import torch

_Item = TypeVar("_Item")
#: Steps that the host may be ahead of the GPU: more would only hold the memory of more batches.
_STEPS_AHEAD = 2


def copied_ahead(
    batches: Iterable[dict[str, Any]], device: torch.device
) -> Iterator[dict[str, Any]]:
    """Batches whose views are copied to a GPU on a separate stream, one batch ahead.

    The copy of a batch is queued before the step of the previous one, so that it overlaps with that
    step. It needs pinned memory for this, and memory for the uint8 views of four batches: the host,
    which reads nothing from the GPU between two lines of the log, is kept at most two steps ahead
    of it. ``seed``, from which random draws follow, stays on the CPU, where it is read.

    Args:
        batches: As made by :func:`sce_video.collate_views`.
        device: Device of the network; on a CPU the batches are yielded unchanged.
    """
    if device.type != "cuda":
        yield from batches
        return
    stream = _copy_stream(device)
    copies = (_copy(batch, device, stream) for batch in batches)
    begun: deque[torch.cuda.Event] = deque()
    for batch, arrived in one_ahead(copies):
        current = torch.cuda.current_stream(device)
        current.wait_event(arrived)
        for view in batch["inputs"]:
            view.record_stream(current)  # else the allocator could reuse its memory too early
        step = torch.cuda.Event(blocking=True)  # the waiting host sleeps
        step.record(current)
        begun.append(step)
        yield batch
        if len(begun) > _STEPS_AHEAD:
            begun.popleft().synchronize()


@lru_cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all epochs: the allocator caches memory per stream."""
    return torch.cuda.Stream(device)


def _copy(
    batch: dict[str, Any], device: torch.device, stream: torch.cuda.Stream
) -> tuple[dict[str, Any], torch.cuda.Event]:
    """A batch whose views are being copied, and the event of the end of the copy."""
    with torch.cuda.stream(stream):
        views = [view.to(device, non_blocking=True) for view in batch["inputs"]]
        arrived = stream.record_event()
    return {**batch, "inputs": views}, arrived


def one_ahead(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield each item after the next one has been fetched."""
    waiting: list[_Item] = []
    for item in items:
        waiting.append(item)
        if len(waiting) == 2:
            yield waiting.pop(0)
    yield from waiting
