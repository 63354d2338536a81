"""Convolutions that torch computes wrongly in bf16 on CPUs: float32 there, bf16 elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sce_video.engine.compile import fold_spatial_convolutions, guard_small_convolutions, too_small


def gradients(conv, x, dtype):
    conv.zero_grad()
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = conv(x)
    assert y.dtype == dtype
    y.float().square().sum().backward()
    return y.detach().float(), x.grad, conv.weight.grad


#: Kernel, padding, stride and (T, H, W) that torch 2.13 gets wrong with avx512_bf16.
WRONG = [
    ((3, 3, 3), (1, 1, 1), (1, 2, 2), (2, 8, 8)),
    ((3, 1, 1), (1, 0, 0), (1, 1, 1), (2, 8, 8)),
    ((5, 1, 1), (2, 0, 0), (1, 1, 1), (3, 8, 8)),
    ((7, 1, 1), (3, 0, 0), (1, 1, 1), (4, 8, 8)),
    ((1, 3, 3), (0, 1, 1), (1, 2, 2), (4, 8, 1)),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_gradients_are_those_of_float32(wrong):
    kernel, padding, stride, size = wrong
    torch.manual_seed(0)
    conv = nn.Conv3d(16, 16, kernel, stride, padding, bias=False)
    assert guard_small_convolutions(nn.Sequential(conv)) == 1
    for _ in range(3):
        freed = [torch.full((2**n,), float("nan")) for n in range(8, 20)]
        del freed  # what is read without having been written is NaN
        x = torch.randn(2, 16, *size)
        expected = gradients(conv, x, torch.float32)
        for found, right in zip(gradients(conv, x, torch.bfloat16), expected, strict=True):
            assert float((found - right).norm() / right.norm()) < 0.02


@pytest.mark.parametrize(
    ("kernel", "stride", "sizes", "small"),
    [
        ((3, 3, 3), (1, 2, 2), (2, 8, 8), True),
        ((3, 3, 3), (1, 2, 2), (3, 2, 2), False),
        ((3, 1, 1), (2, 1, 1), (2, 8, 8), True),
        ((3, 3, 3), (1, 1, 1), (4, 1, 8), True),
        ((1, 3, 3), (1, 1, 1), (1, 4, 4), False),
        ((1, 7, 7), (1, 2, 2), (8, 3, 16), True),
        ((1, 1, 1), (1, 2, 2), (1, 1, 1), False),
    ],
)
def test_which_are_small(kernel, stride, sizes, small):
    conv = nn.Conv3d(2, 2, kernel, stride, tuple(k // 2 for k in kernel))
    assert too_small(conv, sizes) is small
    if kernel[0] == 1:
        flat = nn.Conv2d(2, 2, kernel[1:], stride[1:], tuple(k // 2 for k in kernel[1:]))
        assert too_small(flat, sizes[1:]) is small


def test_others_are_as_before():
    """Without padding, large inputs, folded ones, no autocast; names of weights stay."""
    network = nn.Sequential(
        nn.Conv3d(2, 4, (1, 3, 3), padding=(0, 1, 1)),
        nn.Conv3d(4, 4, (3, 1, 1)),
        nn.Conv2d(4, 4, 3),
    )
    names = list(network.state_dict())
    fold_spatial_convolutions(network)
    assert guard_small_convolutions(network) == 1, "the others have no padding"
    assert list(network.state_dict()) == names
    x = torch.rand(2, 2, 3, 6, 6)
    plain = nn.Conv3d(2, 4, (1, 3, 3), padding=(0, 1, 1))
    plain.load_state_dict(network[0].state_dict())
    torch.testing.assert_close(network[0](x), plain(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert network[0](x).dtype == torch.bfloat16
        torch.testing.assert_close(network[0](x), plain(x))
        one = x[..., :1]  # one pixel wide
        torch.testing.assert_close(network[0](one), plain(one), rtol=0.02, atol=0.02)
