"""Rows of numbers for every video of a data set, each video once, over all processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.dist import all_gather, all_gather_object, get_world_size
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sce_video.datasets import report_worker_crashes
from sce_video.utils.distributed import all_or_none, unwrap_model

_LOG_SECONDS = 30.0
#: From the bare model and a batch to (n, C) rows on the CPU and the number of views of a video.
BatchFunction = Callable[[Any, dict[str, Any]], tuple[Tensor, int]]


@dataclass
class VideoRows:
    """One row for every video that could be decoded.

    Attributes:
        values: (N, C) float32, on the CPU.
        labels: N labels, -1 for none.
        indices: N positions in the data set; ascending and unique once collected.
        failures: Files that could not be decoded, with the error.
        num_views: Views of a video.
    """

    values: Tensor
    labels: list[int]
    indices: list[int]
    failures: list[tuple[str, str]]
    num_views: int


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Eval mode without gradients; afterwards every module has the mode it had.

    Module by module, since a frozen layer may stand in eval mode within a network in training.
    Yields the module inside a DistributedDataParallel wrapper: an eval forward needs no other
    process, and each may have another number of batches.
    """
    modes = [(module, module.training) for module in model.modules()]
    inner = unwrap_model(model)
    model.eval()
    try:
        with torch.no_grad():
            yield inner
    finally:
        for module, training in modes:
            module.training = training


def collect_rows(
    model: nn.Module,
    dataloader: DataLoader,
    function: BatchFunction,
    device: torch.device | str | None = None,
    log: Callable[[str], None] | None = None,
) -> VideoRows:
    """Apply a function to all batches of a data set, in eval mode.

    With several processes each works on the share that its sampler gives it, and all get the
    whole. Every video is counted once: what a padding sampler repeats is dropped.

    Args:
        model: Bare or wrapped; its mode is restored.
        dataloader: Batches as :func:`sce_video.collate_views` makes them.
        function: See :data:`BatchFunction`.
        device: Move the model there first; None leaves it where it is.
        log: Called with a line of progress every half minute.

    Raises:
        RuntimeError: a process failed (its error is named on all), or videos are missing although
            no failure was reported, as with a sampler or loader that drops the last ones.
        ValueError: the data set is empty.
    """
    if device is not None:
        model.to(device)
    total = len(dataloader.dataset)  # type: ignore[arg-type]
    if total == 0:
        raise ValueError("the data set to embed is empty")
    share = VideoRows(torch.empty(0, 0), [], [], [], 0)
    with all_or_none("working through the data set"), evaluating(model) as inner:
        values = []
        for part in batch_rows(inner, dataloader, function, log):
            append_rows(share, part)
            if part.indices:
                values.append(part.values)
        if values:
            share.values = torch.cat(values)
    return assemble(_gather(share), total)


def batch_rows(
    model: Any,
    dataloader: DataLoader,
    function: BatchFunction,
    log: Callable[[str], None] | None = None,
) -> Iterator[VideoRows]:
    """The rows of one batch after the other, of this process alone.

    Args:
        model: In eval mode, without a wrapper.
        dataloader: See :func:`collect_rows`.
        function: See :data:`BatchFunction`.
        log: Called with a line of progress every half minute.
    """
    videos = 0
    started = last = time.monotonic()
    for done, batch in enumerate(_batches(dataloader), start=1):
        part = VideoRows(torch.empty(0, 0), [], [], [], 0)
        part.failures = [(str(path), str(why)) for path, why in batch.get("failures", [])]
        if len(batch["index"]) > 0:  # else all videos of the batch were skipped
            part.values, part.num_views = function(model, batch)
            part.labels = [int(label) for label in batch["label"]]
            part.indices = [int(index) for index in batch["index"]]
        videos += len(part.indices)
        yield part
        if log is not None and time.monotonic() - last > _LOG_SECONDS:
            last = time.monotonic()
            rate = videos * get_world_size() / (last - started)
            log(f"{done}/{len(dataloader)} batches, {rate:.1f} videos/s")


def _batches(dataloader: DataLoader) -> Iterator[dict[str, Any]]:
    with report_worker_crashes(dataloader):
        yield from dataloader


def append_rows(rows: VideoRows, part: VideoRows) -> None:
    """Add all of ``part`` to ``rows`` except the values, which the caller joins at the end."""
    rows.labels += part.labels
    rows.indices += part.indices
    rows.failures += part.failures
    rows.num_views = max(rows.num_views, part.num_views)


def _gather(share: VideoRows) -> VideoRows:
    """The shares of all processes, one after the other, on all processes."""
    if get_world_size() == 1:
        return share
    meta = all_gather_object(
        (tuple(share.values.shape), share.labels, share.indices, share.failures, share.num_views)
    )
    # As one tensor of equal size per process: pickled values would need several times the memory.
    most, width = (max(shape[i] for shape, *_ in meta) for i in (0, 1))
    padded = torch.zeros(most, width)
    padded[: len(share.values), : share.values.shape[1]] = share.values
    merged = VideoRows(torch.empty(0, 0), [], [], [], 0)
    values = []
    for (shape, *rest), part in zip(meta, all_gather(padded), strict=True):
        values.append(part[: shape[0]])
        append_rows(merged, VideoRows(torch.empty(0, 0), *rest))
    merged.values = torch.cat(values)
    return merged


def assemble(rows: VideoRows, total: int) -> VideoRows:
    """Order by index, each video once; check that all ``total`` videos are there or reported.

    Raises:
        RuntimeError: some are neither.
    """
    first: dict[int, int] = {}
    for row, index in enumerate(rows.indices):
        first.setdefault(index, row)
    indices = sorted(first)
    failures = list(dict.fromkeys(rows.failures))
    lost = total - len(indices) - len({path for path, _ in failures})
    if lost > 0 or not indices:
        raise RuntimeError(
            f"{len(indices)} of {total} videos were embedded and {len(failures)} reported as "
            "unreadable: the rest is missing. Is drop_last set, or does the sampler leave some out?"
        )
    order = [first[i] for i in indices]
    return VideoRows(
        values=rows.values[torch.tensor(order, dtype=torch.long)],
        labels=[rows.labels[row] for row in order],
        indices=indices,
        failures=failures,
        num_views=rows.num_views,
    )


def video_paths(dataset: Any, indices: list[int]) -> list[str]:
    """``dataset.path(i)`` of the videos; of a data set without such a method, their numbers."""
    if hasattr(dataset, "path"):
        return [str(dataset.path(i)) for i in indices]
    return [f"#{i}" for i in indices]
