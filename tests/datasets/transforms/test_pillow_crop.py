"""Resize and centre crop as torchvision's of PIL images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sce_video.datasets.transforms import PillowResizeCenterCrop


def smooth(height: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    coarse = torch.from_numpy(rng.uniform(0, 255, (1, 3, height // 4, width // 4)))
    image = F.interpolate(coarse, size=(height, width), mode="bilinear")
    return image[0].permute(1, 2, 0).round().to(torch.uint8).numpy()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(97, 64), (48, 63), (20, 28)])
def test_pixels_are_those_of_an_antialiased_resize(size, interpolation):
    """torch's own antialiased interpolation, cropped at torchvision's offset, within 1 of 255."""
    image = smooth(*size)
    step = PillowResizeCenterCrop(size=32, crop=28, interpolation=interpolation)
    (view,) = step({"views": [image[None]]})["views"]
    assert view.shape == (1, 28, 28, 3) and view.dtype == np.uint8
    short = min(size)
    height, width = (int(32 * side / short) for side in size)
    whole = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    resized = F.interpolate(whole, size=(height, width), mode=interpolation, antialias=True)
    top, left = round((height - 28) / 2), round((width - 28) / 2)
    expected = resized[0, :, top : top + 28, left : left + 28].permute(1, 2, 0).clamp(0, 255)
    difference = np.abs(view[0].astype(float) - expected.numpy())
    assert difference.max() <= 1.5 and difference.mean() < 0.5


@pytest.mark.parametrize(
    ("size", "top", "left"),
    [((9, 12), 0, 2), ((11, 8), 2, 0), ((13, 8), 2, 0)],  # 1.5 to 2, 2.5 to 2: half to even
)
def test_offsets_are_rounded_half_to_even(size, top, left):
    image = np.arange(size[0] * size[1] * 3, dtype=np.uint8).reshape(1, *size, 3)
    crop = min(size) if size != (9, 12) else 8
    (view,) = PillowResizeCenterCrop(min(size), crop)({"views": [image]})["views"]
    expected = image[:, top : top + crop, left : left + crop]
    np.testing.assert_array_equal(view, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(size=20, crop=21), "1 <= crop <= size, got crop 21 and size 20"),
        (dict(size=20, crop=0), "1 <= crop"),
        (dict(size=20, crop=20, interpolation="area"), "bilinear, bicubic, got 'area'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        PillowResizeCenterCrop(**settings)
