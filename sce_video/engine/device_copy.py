"""Batches to the device while the device is still busy with the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch


def copied_ahead(
    batches: Iterable[dict[str, Any]], device: torch.device
) -> Iterator[dict[str, Any]]:
    """Batches whose views are copied to a GPU on a stream of their own.

    Kernels are only queued when a step returns, so the next batch is taken from the loader, and its
    copy runs, while the GPU still computes. Needs pinned memory to run beside it. What decides on
    random draws (``seed``) stays on the CPU, where it is read.

    Args:
        batches: As :func:`sce_video.collate_views` makes them.
        device: Where the network is; on a CPU the batches pass through untouched.
    """
    if device.type != "cuda":
        yield from batches
        return
    stream = torch.cuda.Stream(device)
    for batch in batches:
        with torch.cuda.stream(stream):
            views = [view.to(device, non_blocking=True) for view in batch["inputs"]]
        current = torch.cuda.current_stream(device)
        current.wait_stream(stream)
        for view in views:
            view.record_stream(current)  # else its memory could be given away too early
        yield {**batch, "inputs": views}
