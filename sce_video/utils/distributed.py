"""Distributed runs: gathered samples, work on rank 0, and errors that reach all ranks."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from mmengine.dist import (
    all_gather,
    all_gather_object,
    all_reduce,
    broadcast_object_list,
    get_rank,
    get_world_size,
    is_distributed,
    is_main_process,
)
from mmengine.model import is_model_wrapper
from torch import Tensor, distributed, nn

from sce_video.utils.cores import usable_cores
from sce_video.utils.errors import UserError

_Result = TypeVar("_Result")
_Value = TypeVar("_Value")
#: Maximum time for which ranks wait while one rank computes metrics, or writes or uploads a
#: checkpoint. With NCCL's default limit of ten minutes, the training would end in the meantime.
PATIENCE = timedelta(hours=24)
#: Result of :func:`waiting_group` for each default process group
_waiting_groups: dict[Any, Any] = {}


def unwrap_model(model: nn.Module) -> Any:
    """Return the model inside a wrapper such as DistributedDataParallel, if there is one."""
    return cast(nn.Module, model.module) if is_model_wrapper(model) else model


def _gather_interleaved(x: Tensor) -> Tensor:
    return torch.stack(all_gather(x.contiguous()), dim=1).flatten(0, 1)


class _GatherSamples(torch.autograd.Function):
    """:func:`_gather_interleaved`, whose gradient is the sum of the gradients on all ranks."""

    # This replaces torch.distributed.nn.functional.all_gather, which is deprecated. With gloo, its
    # gradient is wrong if the gathered rows are interleaved (torch 2.13).

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _gather_interleaved(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)  # all_reduce changes it
        all_reduce(gradient)
        return gradient[get_rank() :: get_world_size()]


def gather_samples(x: Tensor, *, gradient: bool = False) -> Tensor:
    """Return the rows (N, ...) of all ranks in the order of the global batch.

    Rank r of W has the samples r, r+W, ... of the global batch (``ResumableSampler``). The gathered
    rows are interleaved in this order, so they do not depend on the number of ranks.
    :func:`global_positions` returns the positions of a rank's own rows. All ranks must call this
    function with tensors of the same shape.

    Args:
        x: (n, ...), rows of this rank.
        gradient: Whether the rows keep their gradient. In the backward pass, a rank then receives
            the sum of the gradients of all ranks' losses for its rows. If the loss is a mean over
            each rank's samples, DistributedDataParallel, which averages the gradients of the
            parameters, computes the same gradients as one rank with the global batch.
    """
    if get_world_size() == 1:
        return x if gradient else x.detach()
    return _GatherSamples.apply(x) if gradient else _gather_interleaved(x.detach())


def global_positions(samples: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the positions (n,) of this rank's rows in :func:`gather_samples`, int64."""
    return get_rank() + get_world_size() * torch.arange(samples, device=device)


class _SumOverRanks(torch.autograd.Function):
    """Sum of a tensor over all ranks, whose gradient is the sum of the gradients on all ranks."""

    # This replaces torch.distributed.nn.functional.all_reduce, which is deprecated (torch 2.13).

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)  # all_reduce changes it
        all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return cast(Tensor, _SumOverRanks.apply(gradient))


def sum_over_ranks(x: Tensor) -> Tensor:
    """Return the sum of a tensor over all ranks, through which gradients flow to each of them.

    All ranks must call this function with tensors of the same shape.
    """
    return x if get_world_size() == 1 else cast(Tensor, _SumOverRanks.apply(x))


def waiting_group() -> Any:
    """Return a group of all ranks in which a rank may keep the others waiting for hours.

    The group uses gloo, because NCCL's watchdog would end a pending operation.

    Returns:
        The process group, or None if there is only one process.
    """
    if not is_distributed():
        return None
    world = distributed.group.WORLD
    if world not in _waiting_groups:
        _waiting_groups[world] = distributed.new_group(backend="gloo", timeout=PATIENCE)
    return _waiting_groups[world]


def gather_objects(value: _Value) -> list[_Value]:
    """Return the picklable values of all ranks in their order. All ranks must call this."""
    return cast(list[_Value], all_gather_object(value, group=waiting_group()))


def objects_on_main_rank(value: _Value) -> list[_Value] | None:
    """Return the picklable values of all ranks on rank 0, and None on the others.

    The values are in the order of the ranks. All ranks must call this.
    """
    if not is_distributed():
        return [value]
    values: list[Any] | None = [None] * get_world_size() if is_main_process() else None
    distributed.gather_object(value, values, dst=0, group=waiting_group())
    return values


def rows_on_main_rank(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the rows of all ranks on rank 0, and None on the others, which never hold all rows.

    All ranks must call this.

    Args:
        parts: Rows (n, C) of this rank in any number of matrices on the CPU. Data type and C must
            be the same on all ranks.

    Returns:
        Rows (N, C) in the order of the ranks and of their parts, or (0, 0) if there are none.
    """
    shapes = objects_on_main_rank([tuple(part.shape) for part in parts])
    if shapes is None:
        for part in parts:
            distributed.send(part.contiguous(), 0, group=waiting_group())
        return None
    counts = [count for of_rank in shapes for count, _ in of_rank]
    width = max((size for of_rank in shapes for _, size in of_rank), default=0)
    rows = torch.empty(sum(counts), width, dtype=parts[0].dtype if parts else None)
    places = iter(rows.split(counts) if counts else ())
    for part, place in zip(parts, places, strict=False):  # the rows of rank 0 come first
        place.copy_(part)
    for rank, of_rank in enumerate(shapes[1:], start=1):
        for _ in of_rank:
            distributed.recv(next(places), rank, group=waiting_group())
    return rows


def wait_for_all_ranks() -> None:
    """Wait until all ranks have called this."""
    if is_distributed():
        distributed.barrier(waiting_group())


def run_on_main_rank(function: Callable[[], _Result]) -> _Result:
    """Call a function on rank 0, and return its result or raise its exception on all ranks.

    All ranks must call this. The result and exceptions must be picklable. In the meantime, rank 0
    has a thread for each core, because the others wait, and torchrun gives each only one thread.
    """
    answer: list[Any] = [None, None]
    if is_main_process():
        threads = torch.get_num_threads()
        try:
            if get_world_size() > 1:
                torch.set_num_threads(max(threads, usable_cores()))
            answer[0] = function()
        except Exception as error:  # send it to the other ranks, then raise it on all ranks
            answer[1] = error
        finally:
            torch.set_num_threads(threads)
    broadcast_object_list(answer, src=0, group=waiting_group())
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


class OtherRankError(UserError, RuntimeError):
    """Error that is raised because another rank failed. The message contains that rank's error."""


@contextmanager
def all_or_none(what: str) -> Iterator[None]:
    """Raise an error on all ranks if the block fails on one of them.

    All ranks must enter the context. Use it around work that each rank does alone, because
    collective operations inside the block may still hang. ``what`` names the work, for example
    "extracting features".

    Raises:
        OtherRankError: If another rank failed and this rank did not.
    """
    error = None
    try:
        yield
    except Exception as caught:  # first tell the other ranks, which wait in all_gather
        error = caught
    messages = gather_objects(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    failed = [f"rank {rank}: {text}" for rank, text in enumerate(messages) if text]
    if failed:
        raise OtherRankError(f"{what} failed on {'; '.join(failed)}")


def leave_process_group(status: int = 0) -> None:
    """Wait for all ranks and leave the process group at the end of a distributed program.

    With gloo, this exits the process with ``status``, because gloo's threads occasionally abort a
    process that ends in the usual way, which a launcher would report as a failed training run.
    """
    if not is_distributed():
        return
    wait_for_all_ranks()
    if distributed.get_backend() == "gloo":
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    distributed.destroy_process_group()
