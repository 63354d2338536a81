"""Run the transforms of a data pipeline and close the files they open."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

Transform = Callable[[dict[str, Any]], dict[str, Any]]

_STACK = "exit_stack"


def run_pipeline(pipeline: Iterable[Transform], results: dict[str, Any]) -> dict[str, Any]:
    """Apply transforms in order; returns what the last one returns.

    Files opened by a transform (see :func:`keep_open`) stay open until the last transform has
    returned or one has raised; then all of them are closed.

    Args:
        pipeline: Built transforms.
        results: What the first transform reads; not modified.
    """
    with ExitStack() as stack:
        results = {**results, _STACK: stack}
        for transform in pipeline:
            results = transform(results)
        results.pop(_STACK, None)  # a transform that builds a new dict has left it out
        return results


def keep_open(results: dict[str, Any], opened: AbstractContextManager) -> None:
    """Let :func:`run_pipeline` close a file at its end.

    Without effect on ``results`` that :func:`run_pipeline` did not make: whoever calls transforms
    one by one closes what they open.
    """
    stack = results.get(_STACK)
    if stack is not None:
        stack.enter_context(opened)
