"""Several ranks: the model inside its wrapper, work for rank 0, errors raised on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from mmengine.dist import all_gather_object, broadcast_object_list, is_main_process
from mmengine.model import is_model_wrapper
from torch import nn

_Result = TypeVar("_Result")


def unwrap_model(model: nn.Module) -> Any:
    """The module inside a DistributedDataParallel or similar wrapper, else the model itself."""
    return cast(nn.Module, model.module) if is_model_wrapper(model) else model


def run_on_main_rank(function: Callable[[], _Result]) -> _Result:
    """Call a function on rank 0; all ranks return its result.

    Called by all ranks. An exception of the function is raised on all of them, so that no rank
    waits for one that has stopped.

    Args:
        function: Without arguments; its result and its exceptions must be picklable.
    """
    answer: list[Any] = [None, None]
    if is_main_process():
        try:
            answer[0] = function()
        except Exception as error:  # sent to the other ranks, then raised
            answer[1] = error
    broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


class OtherRankError(RuntimeError):
    """Another rank has failed; the message has its error."""


@contextmanager
def all_or_none(what: str) -> Iterator[None]:
    """If the block fails on one rank, all ranks raise.

    Args:
        what: The work, for the message: "extracting features".

    Raises:
        OtherRankError: another rank failed.
    """
    error = None
    try:
        yield
    except Exception as caught:  # the other ranks wait: tell them, then raise
        error = caught
    messages = all_gather_object(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    failed = [f"rank {rank}: {text}" for rank, text in enumerate(messages) if text]
    if failed:
        raise OtherRankError(f"{what} failed on {'; '.join(failed)}")
