"""Gaussian blur against a direct convolution and OpenCV."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from helpers import augmentation_oracle as oracle
from helpers.augmentation_oracle import clips, per_frame

from sce_video.models.augmentation import gaussian_blur


@pytest.mark.parametrize(
    ("h", "w"),
    [(24, 30), (23, 12), (12, 13), (8, 25), (5, 4), (1, 7)],
    ids=["large", "edge", "just mirrored", "low", "tiny", "one row"],
)
def test_blur_equals_a_direct_convolution(h: int, w: int) -> None:
    sigma = torch.tensor([0.1, 0.9, 2.0])
    x = torch.rand(3, 3, 2, h, w, generator=torch.Generator().manual_seed(0))
    got = gaussian_blur(x, sigma)
    torch.testing.assert_close(got, per_frame(oracle.blur, x, sigma), atol=1e-5, rtol=0)


def test_blur_equals_opencv() -> None:
    x = clips(2, h=40, w=32)
    got = gaussian_blur(x, torch.tensor([0.5, 1.7]))
    for i, sigma in enumerate((0.5, 1.7)):
        for t in range(x.shape[2]):
            frame = x[i, :, t].permute(1, 2, 0).numpy()
            want = cv2.GaussianBlur(frame, (23, 23), sigma, borderType=cv2.BORDER_REFLECT_101)
            np.testing.assert_allclose(got[i, :, t].permute(1, 2, 0).numpy(), want, atol=1e-5)


def test_blur_keeps_a_uniform_frame_and_the_range() -> None:
    x = torch.full((1, 3, 1, 16, 16), 0.3)
    torch.testing.assert_close(gaussian_blur(x, torch.tensor([2.0])), x)
    white = torch.ones(1, 3, 1, 16, 16)
    assert gaussian_blur(white, torch.tensor([1.3])).max() <= 1 + 1e-6


def test_blur_widens_an_impulse_by_sigma() -> None:
    x = torch.zeros(2, 1, 1, 31, 31)
    x[..., 15, 15] = 1.0
    got = gaussian_blur(x, torch.tensor([1.0, 2.0]))
    offsets = (torch.arange(31) - 15.0) ** 2
    spread = (got.sum(dim=-2).squeeze() * offsets).sum(dim=-1).sqrt()
    torch.testing.assert_close(spread, torch.tensor([1.0, 2.0]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("kernel_size", [0, 4, -3])
def test_an_even_kernel_is_refused(kernel_size: int) -> None:
    with pytest.raises(ValueError, match="kernel_size must be odd"):
        gaussian_blur(torch.zeros(1, 3, 1, 8, 8), torch.ones(1), kernel_size)
