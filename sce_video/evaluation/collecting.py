"""Rows of a whole data set: batch by batch, over all ranks, each sample once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from mmengine.dist import all_gather, all_gather_object, get_world_size
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sce_video.datasets import report_worker_crashes
from sce_video.evaluation.row_functions import RowFunction
from sce_video.evaluation.rows import Rows
from sce_video.utils.distributed import all_or_none, unwrap_model

_LOG_SECONDS = 30.0


@dataclass
class PartialRows:
    """Rows of some batches, in the order in which they were computed.

    Attributes:
        values: Matrices of rows.
        central: Matrices of rows of the central view; empty if not kept.
        counts: Rows of each sample; None where each has one.
        labels, indices: Of each sample.
        failures: Files that could not be decoded, with the error.
        num_views: Views of a sample.
    """

    values: list[Tensor] = field(default_factory=list)
    central: list[Tensor] = field(default_factory=list)
    counts: list[int] | None = None
    labels: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    num_views: int = 0

    def add(self, other: PartialRows) -> None:
        """Append the rows of another part."""
        self.values += other.values
        self.central += other.central
        if other.counts is not None:
            self.counts = [*(self.counts or []), *other.counts]
        self.labels += other.labels
        self.indices += other.indices
        self.failures += other.failures
        self.num_views = max(self.num_views, other.num_views)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[Any]:
    """Eval mode without gradients; afterwards every module has the mode it had.

    Module by module, since a frozen layer may be in eval mode within a network in training.
    Yields the module inside a DistributedDataParallel wrapper: an eval forward needs no other
    rank, and each may have another number of batches.
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
    function: RowFunction,
    device: torch.device | str | None = None,
    log: Callable[[str], None] | None = None,
) -> Rows:
    """Apply a function to all batches of a data set, in eval mode.

    With several ranks each works on the share that its sampler gives it, and all get the rows of
    the whole data set. Every sample counts once: what a padding sampler repeats is dropped.

    Args:
        model: Bare or wrapped; its mode is restored.
        dataloader: Batches as :func:`sce_video.collate_views` makes them.
        function: See :data:`~sce_video.evaluation.row_functions.RowFunction`.
        device: Move the model there first; None leaves it where it is.
        log: Called with a line of progress every half minute.

    Raises:
        RuntimeError: a rank failed (its error is raised on all ranks), or samples are missing
            although no failure was reported, as with a sampler or loader that drops the last ones.
        ValueError: the data set is empty.
    """
    if device is not None:
        model.to(device)
    if len(dataloader.dataset) == 0:  # type: ignore[arg-type]
        raise ValueError("the data set to evaluate is empty")
    share = PartialRows()
    with all_or_none("evaluating the data set"), evaluating(model) as inner:
        for part in batch_rows(inner, dataloader, function, log):
            share.add(part)
    return complete(_gather(share), dataloader.dataset)


def batch_rows(
    model: Any,
    dataloader: DataLoader,
    function: RowFunction,
    log: Callable[[str], None] | None = None,
) -> Iterator[PartialRows]:
    """The rows of one batch after the other, of this rank alone.

    Args:
        model: In eval mode, without a wrapper.
        dataloader: See :func:`collect_rows`.
        function: See :data:`~sce_video.evaluation.row_functions.RowFunction`.
        log: Called with a line of progress every half minute.
    """
    videos = 0
    started = last = time.monotonic()
    for done, batch in enumerate(_batches(dataloader), start=1):
        part = PartialRows()
        part.failures = [(str(path), str(why)) for path, why in batch.get("failures", [])]
        if len(batch["index"]) > 0:  # else all samples of the batch were skipped
            values, part.num_views, central, part.counts = function(model, batch)
            part.values = [values] if len(values) else []
            part.central = [central] if central is not None else []
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


def _gather(share: PartialRows) -> PartialRows:
    """The shares of all ranks, one after the other, on all ranks."""
    if get_world_size() == 1:
        return share
    meta = all_gather_object(
        PartialRows(
            counts=share.counts,
            labels=share.labels,
            indices=share.indices,
            failures=share.failures,
            num_views=share.num_views,
        )
    )
    merged = PartialRows()
    for part in meta:
        merged.add(part)
    merged.values = _gather_matrix(share.values)
    merged.central = _gather_matrix(share.central)
    return merged


def _gather_matrix(parts: list[Tensor]) -> list[Tensor]:
    """The rows of all ranks, a matrix each.

    As one tensor of equal size per rank: pickled values would need several times the memory.
    """
    own = torch.cat(parts) if parts else torch.empty(0, 0)
    shapes = all_gather_object(tuple(own.shape))
    rows, width = (max(shape[i] for shape in shapes) for i in (0, 1))
    padded = torch.zeros(rows, width)
    padded[: len(own), : own.shape[1]] = own
    gathered = all_gather(padded)
    return [part[: shape[0]] for part, shape in zip(gathered, shapes, strict=True) if shape[0]]


def complete(partial: PartialRows, dataset: Any) -> Rows:
    """Rows ordered by index, each sample once, once all samples are there or reported.

    Raises:
        RuntimeError: some samples are neither there nor reported as unreadable.
    """
    first: dict[int, int] = {}
    for slot, index in enumerate(partial.indices):
        first.setdefault(index, slot)
    indices = sorted(first)
    failures = list(dict.fromkeys(partial.failures))
    _check_complete(indices, failures, dataset)
    order = torch.tensor([first[i] for i in indices], dtype=torch.long)
    counts, slots = None, order
    if partial.counts is not None:
        ends = list(itertools.accumulate(partial.counts))
        ranges = [range(ends[i] - partial.counts[i], ends[i]) for i in order.tolist()]
        counts = torch.tensor([len(one) for one in ranges], dtype=torch.long)
        slots = torch.tensor([row for one in ranges for row in one], dtype=torch.long)
    values = torch.cat(partial.values) if partial.values else torch.empty(0, 0)
    return Rows(
        values=values[slots],
        labels=torch.tensor(partial.labels, dtype=torch.long)[order],
        indices=torch.tensor(indices, dtype=torch.long),
        paths=sample_paths(dataset, indices),
        failures=failures,
        num_views=partial.num_views,
        central=torch.cat(partial.central)[slots] if partial.central else None,
        counts=counts,
        columns=dataset.row_columns(indices) if hasattr(dataset, "row_columns") else {},
    )


def _check_complete(indices: list[int], failures: list[tuple[str, str]], dataset: Any) -> None:
    """Several samples may be of one unreadable file, so the missing ones are looked up by path."""
    missing = sorted(set(range(len(dataset))) - set(indices))
    unreadable = {path for path, _ in failures}
    if hasattr(dataset, "path"):
        lost = sum(str(dataset.path(i)) not in unreadable for i in missing)
    else:
        lost = len(missing) - len(unreadable)
    if lost > 0 or not indices:
        raise RuntimeError(
            f"{len(indices)} of {len(dataset)} videos were evaluated and {len(failures)} reported "
            "as unreadable: the rest is missing. Is drop_last set, or does the sampler leave some "
            "out?"
        )


def sample_paths(dataset: Any, indices: list[int]) -> list[str]:
    """``dataset.path(i)`` of the samples; of a data set without such a method, their numbers."""
    if hasattr(dataset, "path"):
        return [str(dataset.path(i)) for i in indices]
    return [f"#{i}" for i in indices]
