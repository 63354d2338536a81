"""Convolutions over space alone, computed as two-dimensional ones with T folded into N."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class FoldedConv3d(nn.Conv3d):
    """A ``Conv3d`` with a kernel 1 x k x k that computes ``T * N`` images; the same weights.

    Libraries have more and faster kernels for images. In ``channels_last_3d`` memory the folding is
    a view; otherwise it copies.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, T, H, W) to (N, C', T, H', W')."""
        n, _, t = input.shape[:3]
        images = input.transpose(1, 2).flatten(0, 1)
        assert not isinstance(self.padding, str)
        stride, padding, dilation = self.stride[1:], self.padding[1:], self.dilation[1:]
        weight = self.weight.squeeze(2)
        images = F.conv2d(images, weight, self.bias, stride, padding, dilation, self.groups)
        return images.unflatten(0, (n, t)).transpose(1, 2)


def fold_spatial_convolutions(module: nn.Module) -> int:
    """Let the convolutions of a module that are spatial alone fold T into N; returns their number.

    Names and values of the weights stay.
    """
    found = [part for part in module.modules() if type(part) is nn.Conv3d and _is_spatial(part)]
    for part in found:
        part.__class__ = FoldedConv3d
    return len(found)


def _is_spatial(conv: nn.Conv3d) -> bool:
    kernel, stride, padding = conv.kernel_size[0], conv.stride[0], conv.padding
    plain = not isinstance(padding, str) and padding[0] == 0 and conv.padding_mode == "zeros"
    return kernel == 1 and stride == 1 and plain
