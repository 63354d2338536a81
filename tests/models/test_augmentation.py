"""Application of random parameters to batches: plan, order and samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import augmentation_oracle as oracle
from helpers.augmentation_oracle import clips, per_frame
from mmengine.config import ConfigDict

from sce_video.models import augmentation
from sce_video.models.augmentation import (
    ViewAugmentation,
    ViewParameters,
    augment,
    build_view,
    draw_parameters,
    gaussian_blur,
    named_view,
)


def nothing(n: int) -> ViewParameters:
    """Return parameters for n samples that change nothing."""
    names = "jitter", "grey", "blur", "solarise", "flip"
    return ViewParameters(
        **dict.fromkeys(names, np.zeros(n, dtype=bool)),
        factors=np.tile(np.array([1, 1, 1, 0], dtype=np.float32), (n, 1)),
        order=np.tile(np.arange(4), (n, 1)),
        sigma=np.ones(n, dtype=np.float32),
    )


# Gaussian blur compared with a direct convolution and OpenCV.


@pytest.mark.parametrize(
    ("h", "w"), [(24, 30), (23, 12), (5, 4), (1, 7)], ids=["large", "edge", "tiny", "one row"]
)
def test_blur_equals_a_direct_convolution(h: int, w: int) -> None:
    sigma = torch.tensor([0.1, 0.9, 2.0])
    x = torch.rand(3, 3, 2, h, w, generator=torch.Generator().manual_seed(0))
    got = gaussian_blur(x, sigma)
    torch.testing.assert_close(got, per_frame(oracle.blur, x, sigma), atol=1e-5, rtol=0)


# Colour operations compared with the per-frame oracle (colorsys, numpy).


@pytest.mark.parametrize("column", range(4))
def test_colour_jitter_equals_the_oracle(column: int) -> None:
    name = augmentation.JITTER_PARTS[column]
    values = [-0.5, -0.2, -0.01, 0.1, 1 / 3, 0.5] if name == "hue" else [0.0, 0.2, 0.7, 1.3, 1.8]
    drawn = nothing(len(values))
    drawn.factors[:, column] = values
    x = clips(len(values))
    got = augment(x.clone(), replace(drawn, jitter=np.ones(len(values), dtype=bool)))
    want = per_frame(getattr(oracle, name), x, torch.tensor(values))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["grey", "solarise", "flip"])
def test_operations_without_value_equal_the_oracle(name: str) -> None:
    """Operations are applied only to the chosen samples."""
    x, chosen = clips(4), np.array([True, False, True, False])
    got = augment(x.clone(), replace(nothing(4), **{name: chosen}))
    want = per_frame(getattr(oracle, name), x)
    torch.testing.assert_close(got[::2], want[::2], atol=1e-6, rtol=0)
    assert torch.equal(got[1::2], x[1::2])


# Distributions of the augmentation parameters, and their dependence on seed and view.


DRAWS = 5_000
SIGMAS = 4.0  # with the fixed seeds below, the outcome never changes

# The paper's table tab:augmentations, copied by hand: flip, jitter, brightness, contrast,
# saturation, hue, grey, blur, solarise.
TABLE = {
    "weak": (0.5, 0.0, None, None, None, None, 0.0, 0.0, 0.0),
    "strong": (0.5, 0.8, 0.4, 0.4, 0.4, 0.1, 0.2, 0.5, 0.0),
    "strong-alpha": (0.5, 0.8, 0.4, 0.4, 0.2, 0.1, 0.2, 1.0, 0.0),
    "strong-beta": (0.5, 0.8, 0.4, 0.4, 0.2, 0.1, 0.2, 0.1, 0.2),
    "strong-gamma": (0.5, 0.8, 0.4, 0.4, 0.2, 0.1, 0.2, 0.5, 0.2),
}
COLUMNS = (
    "flip_prob jitter_prob brightness contrast saturation hue grey_prob blur_prob solarise_prob"
).split()


@pytest.fixture(scope="module")
def gamma() -> ViewParameters:
    return draw_parameters(named_view("strong-gamma", strength=1.0), range(DRAWS), view=1)


def assert_share(share: float, probability: float, draws: int = DRAWS) -> None:
    bound = SIGMAS * np.sqrt(probability * (1 - probability) / draws)
    assert abs(share - probability) <= bound, (share, probability, bound)


def assert_uniform(values: np.ndarray, low: float, high: float) -> None:
    assert low <= values.min() and values.max() <= high
    assert values.min() < low + 0.01 * (high - low) and values.max() > high - 0.01 * (high - low)
    counts, _ = np.histogram(values, bins=10, range=(low, high))
    for count in counts:
        assert_share(count / len(values), 0.1, len(values))


@pytest.mark.parametrize("name", TABLE)
def test_named_views_are_the_papers_table(name: str) -> None:
    view = named_view(name)
    for column, value in zip(COLUMNS, TABLE[name], strict=True):
        if value is not None:
            assert getattr(view, column) == pytest.approx(value), column
    assert view.blur_sigma == (0.1, 2.0)


@pytest.mark.parametrize("name", TABLE)
def test_each_decision_has_its_probability(name: str) -> None:
    flip, jitter, *_, grey, blur, solarise = TABLE[name]
    drawn = draw_parameters(named_view(name), range(DRAWS), view=0)
    decisions = (drawn.flip, drawn.jitter, drawn.grey, drawn.blur, drawn.solarise)
    for decision, probability in zip(decisions, (flip, jitter, grey, blur, solarise), strict=True):
        assert_share(decision.mean(), probability)


def test_factors_and_sigma_are_uniform_in_their_ranges(gamma: ViewParameters) -> None:
    assert_uniform(gamma.factors[:, 0], 0.2, 1.8)
    assert_uniform(gamma.factors[:, 1], 0.2, 1.8)
    assert_uniform(gamma.factors[:, 2], 0.6, 1.4)
    assert_uniform(gamma.factors[:, 3], -0.2, 0.2)
    assert_uniform(gamma.sigma, 0.1, 2.0)


def test_the_draw_depends_on_seed_and_view_only() -> None:
    view = named_view("strong", strength=1.0)
    together = draw_parameters(view, [11, 2**62 + 5, -3], view=1)
    for i, seed in enumerate((11, 2**62 + 5, -3)):
        alone = draw_parameters(view, [seed], view=1)
        np.testing.assert_array_equal(alone.factors[0], together.factors[i])
        np.testing.assert_array_equal(alone.order[0], together.order[i])
        assert alone.sigma[0] == together.sigma[i] and alone.flip[0] == together.flip[i]
    other = draw_parameters(view, [11, 2**62 + 5, -3], view=0)
    assert not np.isclose(other.factors, together.factors).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(grey_prob=float("nan")), "grey_prob must be a probability"),
        (dict(brightness=-0.1), "brightness must be 0 or more"),
        (dict(hue=0.6), "hue must be from 0 to 0.5"),
        (dict(blur_sigma=(2.0, 1.0)), "blur_sigma"),
        (dict(blur_sigma=(0.1, 12.0)), "blur_sigma"),
    ],
)
def test_bad_values_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ViewAugmentation(**arguments)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dict(name="strong-aplha"), "did you mean 'strong-alpha'"),
        (dict(name="strong", strength=3.0), "hue must be from 0 to 0.5"),
        (dict(name="strong", strength=-1.0), "strength must be 0 or more"),
        (dict(name="strong", gray_prob=0.2), "did you mean 'grey_prob'"),
        (dict(name="strong", strenght=1.0), "a view has no key 'strenght'"),
        (dict(brightness=0.4, strength=1.0), "Add name"),
    ],
)
def test_bad_configs_are_refused(config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_view(config)


def test_build_view_takes_names_values_both_and_objects() -> None:
    assert build_view(dict(name="strong-beta", strength=1.0)) == named_view("strong-beta", 1.0)
    assert build_view(dict(flip_prob=0.5)) == named_view("weak")
    without_blur = build_view(ConfigDict(name="strong", blur_prob=0.0, blur_sigma=[0.2, 1.0]))
    assert without_blur.blur_prob == 0.0 and without_blur.grey_prob == 0.2
    assert without_blur.blur_sigma == (0.2, 1.0)
    assert build_view(without_blur) is without_blur
    assert build_view({}) == ViewAugmentation()
