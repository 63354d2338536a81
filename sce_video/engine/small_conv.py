"""Convolutions whose bf16 gradient is wrong on CPUs, computed in float32 there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sce_video.engine.folded_conv import FoldedConv3d


class SmallConv3d(nn.Conv3d):
    """A ``Conv3d`` that leaves bf16 autocast on a CPU where its input is smaller than its kernel.

    oneDNN's bf16 gradient of the weights is then wrong: NaN, infinite, or finite and without
    relation to the right one, as it reads memory that nothing was written to; some sizes also
    corrupt the heap. Found for two frames and a kernel of three, for inputs of one pixel with a
    stride, and others (torch 2.6 to 2.13, AMD EPYC with avx512_bf16). float32 is right.
    """

    def forward(self, input: Tensor) -> Tensor:
        """As ``Conv3d``; the result is bf16 under autocast."""
        if _is_exposed(self, input):
            return _in_float32(super().forward, input)
        return super().forward(input)


class SmallConv2d(nn.Conv2d):
    """A ``Conv2d`` with the same care."""

    def forward(self, input: Tensor) -> Tensor:
        """As ``Conv2d``; the result is bf16 under autocast."""
        if _is_exposed(self, input):
            return _in_float32(super().forward, input)
        return super().forward(input)


class SmallFoldedConv3d(FoldedConv3d):
    """A ``FoldedConv3d`` with the same care."""

    def forward(self, input: Tensor) -> Tensor:
        """As ``FoldedConv3d``; the result is bf16 under autocast."""
        if _is_exposed(self, input):
            return _in_float32(super().forward, input)
        return super().forward(input)


_CLASSES: dict[type, type] = {
    nn.Conv3d: SmallConv3d,
    nn.Conv2d: SmallConv2d,
    FoldedConv3d: SmallFoldedConv3d,
}


def guard_small_convolutions(module: nn.Module) -> int:
    """Let the convolutions of a module leave bf16 where it is wrong; returns their number.

    Convolutions without padding are right. Names and values of the weights stay.
    """
    found = [part for part in module.modules() if type(part) in _CLASSES and _is_padded(part)]
    for part in found:
        part.__class__ = _CLASSES[type(part)]
    return len(found)


def too_small(conv: nn.Conv3d | nn.Conv2d, sizes: tuple[int, ...]) -> bool:
    """Whether an input of these sizes, (T, H, W) or (H, W), is one that oneDNN may get wrong.

    Wrong in bf16 alone, among a thousand combinations of kernels (3, 5, 7), sizes and strides, were
    some of those with fewer frames than the kernel, or a height or width below half of the kernel.
    """
    spans = [d * (k - 1) + 1 for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    small = [size <= span // 2 for size, span in zip(sizes, spans, strict=True)]
    if isinstance(conv, nn.Conv3d):
        small[0] = sizes[0] < spans[0]
    return any(small)


def _is_padded(conv: Any) -> bool:
    return isinstance(conv.padding, str) or any(conv.padding)


def _is_exposed(conv: nn.Conv3d | nn.Conv2d, input: Tensor) -> bool:
    on_cpu = input.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    in_bf16 = on_cpu and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return in_bf16 and too_small(conv, tuple(input.shape[2:]))


def _in_float32(convolution: Any, input: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        output = convolution(input.float())
    return output.to(torch.bfloat16)
