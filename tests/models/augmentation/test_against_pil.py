"""Augmentation against Pillow, whose operations torchvision's transforms of images apply.

Pillow computes in 8 bits and cuts off or rounds after every step; bounds are in units of 1/255.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.photographs import photograph_like
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy.ndimage import gaussian_filter

from sce_video.models import augmentation
from sce_video.models.augmentation import gaussian_blur

SIZES = [32, 64, 96, 224]
#: Sigma: bounds of the mean and the largest difference from Pillow's blur, away from the edge.
#: Both kernels are sampled at whole pixels: at 0.4 the Gaussian's is the narrower one.
SIGMAS = {0.1: (0.01, 0.1), 0.4: (2.5, 13), 0.8: (1.2, 7), 1.3: (0.7, 4), 2.0: (0.6, 3)}
FACTORS = [0.6, 0.85, 1.2, 1.4]  # of the paper's colour jitter, 0.4


def as_views(image: np.ndarray) -> torch.Tensor:
    """(H, W, 3) uint8 as one view (1, 3, 1, H, W), 0..1."""
    return torch.from_numpy(image).permute(2, 0, 1)[None, :, None].float() / 255


def difference(found: torch.Tensor, expected: Image.Image | np.ndarray) -> np.ndarray:
    """Absolute, (H, W, 3), in units of 1/255."""
    pixels = found[0, :, 0].permute(1, 2, 0).double().numpy() * 255
    return np.abs(pixels - np.asarray(expected, dtype=np.float64))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_blur_equals_a_gaussian(size: int, sigma: float) -> None:
    """scipy's ``mirror`` does not repeat the pixel of the edge; the weights sum to 1."""
    image = photograph_like(size, size)
    expected = gaussian_filter(
        image.astype(np.float64) / 255, (sigma, sigma, 0), mode="mirror", radius=(11, 11, 0)
    )
    found = gaussian_blur(as_views(image), torch.tensor([sigma]))
    assert difference(found, 255 * expected).max() <= 255 * 1e-5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_blur_is_near_that_of_pil(size: int, sigma: float) -> None:
    """Pillow blurs three times by boxes of the same total variance, and repeats the edge."""
    image = photograph_like(size, size)
    expected = Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius=sigma))
    found = gaussian_blur(as_views(image), torch.tensor([sigma]))
    apart = difference(found, expected)
    inside = apart[7:-7, 7:-7]
    mean, largest = SIGMAS[sigma]
    assert inside.mean() <= mean and inside.max() <= largest
    assert apart.mean() <= 2.5
    if sigma > 0.1:  # below, both change nothing
        unblurred = difference(as_views(image), expected)[7:-7, 7:-7]
        assert inside.mean() < 0.55 * unblurred.mean()


@pytest.mark.parametrize(
    ("name", "enhance", "bound"),
    [
        ("brightness", ImageEnhance.Brightness, 1.01),
        ("contrast", ImageEnhance.Contrast, 1.5),
        ("saturation", ImageEnhance.Color, 1.5),
    ],
)
@pytest.mark.parametrize("factor", FACTORS)
def test_blends_are_those_of_pil(name: str, enhance: Callable, bound: float, factor: float) -> None:
    image = photograph_like(64, 80)
    expected = enhance(Image.fromarray(image)).enhance(factor)
    found = getattr(augmentation, f"adjust_{name}")(as_views(image), torch.tensor([factor]))
    apart = difference(found, expected)
    assert apart.max() <= bound and apart.mean() <= 0.75


@pytest.mark.parametrize("shift", [-0.1, -0.04, 0.05, 0.1])
def test_hue_is_near_that_of_pil(shift: float) -> None:
    """torchvision shifts the 8-bit hue of Pillow: 256 steps around the circle."""
    image = photograph_like(64, 80)
    hue, saturation, value = Image.fromarray(image).convert("HSV").split()
    turned = np.asarray(hue) + np.array(shift * 255).astype(np.int16).astype(np.uint8)
    expected = Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")
    found = augmentation.adjust_hue(as_views(image), torch.tensor([shift]))
    apart = difference(found, expected)
    assert apart.mean() <= 1 and apart.max() <= 12


def test_grey_is_that_of_pil() -> None:
    image = photograph_like(64, 80)
    expected = Image.fromarray(image).convert("L").convert("RGB")
    assert difference(augmentation.to_grey(as_views(image)), expected).max() <= 0.53


def test_solarise_is_that_of_pil() -> None:
    """The threshold 0.5 lies between the values 127 and 128."""
    image = photograph_like(64, 80)
    assert {127, 128} <= set(np.unique(image))
    expected = ImageOps.solarize(Image.fromarray(image), threshold=128)
    assert difference(augmentation.solarise(as_views(image)), expected).max() <= 1e-4
