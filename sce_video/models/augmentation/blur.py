"""Gaussian blur on batches of views, one sigma per sample."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Kernel size per axis for every frame size, as in the authors' code (juliendenize/eztorch,
# eztorch/configs/transform/contrastive).
BLUR_KERNEL = 23


def gaussian_kernel(sigma: Tensor, radius: int) -> Tensor:
    """Weights (N, 2 * radius + 1) for sigma (N,) in pixels; each row sums to 1."""
    taps = torch.arange(-radius, radius + 1, device=sigma.device, dtype=sigma.dtype)
    weights = (taps / sigma[:, None]).square_().mul_(-0.5).exp_()
    return weights.div_(weights.sum(dim=1, keepdim=True))


def gaussian_blur(x: Tensor, sigma: Tensor, kernel_size: int = BLUR_KERNEL) -> Tensor:
    """Blur every frame of (N, C, T, H, W) with its sample's sigma (N,) in pixels.

    Two passes, along W and along H, with reflect padding (the edge pixel is not repeated). Reflect
    padding is at most size - 1 pixels: where the radius ``kernel_size // 2`` is larger, that axis
    gets the largest possible kernel, ``2 * size - 1`` taps; an axis of one pixel is not blurred.

    Raises:
        ValueError: ``kernel_size`` is even or not positive.
    """
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"kernel_size must be odd and positive, got {kernel_size}")
    N, C, T, H, W = x.shape
    # Every frame and channel is a channel of its own of one depthwise 2-D convolution.
    planes = x.reshape(1, N * C * T, H, W)
    radius = min(kernel_size // 2, W - 1)
    weights = gaussian_kernel(sigma, radius).repeat_interleave(C * T, dim=0)
    planes = F.pad(planes, (radius, radius, 0, 0), mode="reflect")
    planes = F.conv2d(planes, weights[:, None, None, :], groups=N * C * T)
    radius = min(kernel_size // 2, H - 1)
    weights = gaussian_kernel(sigma, radius).repeat_interleave(C * T, dim=0)
    planes = F.pad(planes, (0, 0, radius, radius), mode="reflect")
    planes = F.conv2d(planes, weights[:, None, :, None], groups=N * C * T)
    return planes.view(N, C, T, H, W)
