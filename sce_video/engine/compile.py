"""Faster computation of the same backbones: torch.compile, and spatial convolutions in 2-D."""

from __future__ import annotations

from typing import Any

from torch import nn

from sce_video.engine.folded_conv import fold_spatial_convolutions


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
    found = _backbones(model)
    for backbone in found:
        try:
            backbone.compile(**options)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"compile={options}: {error}") from error
    return len(found)


def fold_backbones(model: nn.Module) -> int:
    """Let all backbones compute spatial convolutions in 2-D; returns the number of convolutions.

    Raises:
        ValueError: there is none, as in an image network or a transformer.
    """
    count = sum(fold_spatial_convolutions(backbone) for backbone in _backbones(model))
    if not count:
        raise ValueError(
            "conv_2d=True: the backbone has no three-dimensional convolution over space alone"
        )
    return count


def _backbones(model: nn.Module) -> list[nn.Module]:
    return [part for name, part in model.named_modules() if name.split(".")[-1] == "backbone"]
