"""Colour operations against the per-frame oracle (colorsys, numpy)."""

from __future__ import annotations

import pytest
import torch
from helpers import augmentation_oracle as oracle
from helpers.augmentation_oracle import clips, per_frame

from sce_video.models import augmentation


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_blends_equal_the_oracle(name: str) -> None:
    factors = torch.tensor([0.0, 0.2, 0.7, 1.0, 1.3, 1.8])
    x = clips(len(factors))
    got = getattr(augmentation, f"adjust_{name}")(x, factors)
    torch.testing.assert_close(got, per_frame(getattr(oracle, name), x, factors), atol=1e-5, rtol=0)


def test_hue_equals_colorsys() -> None:
    shifts = torch.tensor([-0.5, -0.2, -0.01, 0.0, 0.1, 1 / 3, 0.5])
    x = clips(len(shifts))
    got = augmentation.adjust_hue(x, shifts)
    torch.testing.assert_close(got, per_frame(oracle.hue, x, shifts), atol=1e-5, rtol=0)


def test_hue_of_a_third_of_a_circle_rotates_the_channels() -> None:
    x = clips(1)
    got = augmentation.adjust_hue(x, torch.tensor([1 / 3]))
    torch.testing.assert_close(got, x[:, [2, 0, 1]], atol=1e-5, rtol=0)


def test_hue_is_finite_and_in_range_on_tiny_chroma() -> None:
    x = clips(1)
    x[:, 0] = x[:, 1]
    x[:, 2] = x[:, 1] + 1e-39  # a denormal chroma
    got = augmentation.adjust_hue(x, torch.tensor([0.3]))
    torch.testing.assert_close(got, x, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["grey", "solarise", "flip"])
def test_operations_without_value_equal_the_oracle(name: str) -> None:
    function = {
        "grey": augmentation.to_grey,
        "solarise": augmentation.solarise,
        "flip": augmentation.flip_horizontal,
    }[name]
    x = clips(3)
    torch.testing.assert_close(function(x), per_frame(getattr(oracle, name), x), atol=1e-6, rtol=0)


def test_solarise_inverts_from_its_threshold_on() -> None:
    x = torch.tensor([0.0, 0.4999, 0.5, 0.75, 1.0]).view(1, 1, 1, 1, 5)
    want = torch.tensor([0.0, 0.4999, 0.5, 0.25, 0.0]).view_as(x)
    torch.testing.assert_close(augmentation.solarise(x), want)
    want_low = torch.tensor([0.0, 0.5001, 0.5, 0.25, 0.0]).view_as(x)
    torch.testing.assert_close(augmentation.solarise(x, threshold=0.4), want_low)


def test_contrast_blends_with_the_mean_of_each_frame_not_of_the_clip() -> None:
    x = torch.zeros(1, 3, 2, 4, 4)
    x[:, :, 1] = 1.0  # a black and a white frame
    got = augmentation.adjust_contrast(x, torch.tensor([0.0]))
    # Each becomes its own mean: with the clip's mean both would be 0.5.
    torch.testing.assert_close(got[:, :, 0], torch.zeros(1, 3, 4, 4))
    torch.testing.assert_close(got[:, :, 1], torch.full((1, 3, 4, 4), 0.9999))


def test_functions_do_not_change_their_input() -> None:
    x = clips(2)
    before = x.clone()
    value = torch.tensor([0.3, 0.4])
    for name in ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue"):
        getattr(augmentation, name)(x, value)
    augmentation.gaussian_blur(x, value)
    for name in ("to_grey", "rgb_to_grey", "solarise", "flip_horizontal"):
        getattr(augmentation, name)(x)
    assert torch.equal(x, before)
