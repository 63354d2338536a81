"""torch.compile for the backbones of a model."""

from __future__ import annotations

from typing import Any

from torch import nn


def compile_backbones(model: nn.Module, options: Any) -> int:
    """Compile every module named ``backbone``, in place; returns their number.

    Args:
        model: The bare model.
        options: True, or a dict of torch.compile's arguments.

    Raises:
        ValueError: another value, or arguments that torch.compile refuses.
    """
    if options is not True and not isinstance(options, dict):
        raise ValueError(
            "compile is True, False or a dict of torch.compile's arguments, e.g. "
            f"compile.mode=max-autotune; got {options!r}"
        )
    options = {} if options is True else dict(options)
    found = [part for name, part in model.named_modules() if name.split(".")[-1] == "backbone"]
    for backbone in found:
        try:
            backbone.compile(**options)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"compile={options}: {error}") from error
    return len(found)
