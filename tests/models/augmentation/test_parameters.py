"""Distributions of the augmentation parameters, and their dependence on seed and view."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from mmengine.config import ConfigDict

from sce_video.models.augmentation import (
    ViewAugmentation,
    ViewParameters,
    build_view,
    draw_parameters,
    named_view,
)

DRAWS = 20_000
SIGMAS = 4.0  # with the fixed seeds below the outcome never changes

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
    "flip_prob",
    "jitter_prob",
    "brightness",
    "contrast",
    "saturation",
    "hue",
    "grey_prob",
    "blur_prob",
    "solarise_prob",
)


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


@pytest.mark.parametrize("name", ["strong-alpha", "strong-beta", "strong-gamma"])
def test_strength_one_is_the_best_video_setting(name: str) -> None:
    view = named_view(name, strength=1.0)
    colour = (view.brightness, view.contrast, view.saturation, view.hue)
    assert colour == pytest.approx((0.8, 0.8, 0.4, 0.2))
    table = named_view(name)
    for column in ("flip_prob", "jitter_prob", "grey_prob", "blur_prob", "solarise_prob"):
        assert getattr(view, column) == getattr(table, column)


def test_strength_zero_has_no_colour() -> None:
    view = named_view("strong", strength=0.0)
    assert (view.brightness, view.contrast, view.saturation, view.hue) == (0, 0, 0, 0)


@pytest.mark.parametrize("name", TABLE)
def test_each_decision_has_its_probability(name: str) -> None:
    flip, jitter, *_, grey, blur, solarise = TABLE[name]
    drawn = draw_parameters(named_view(name), range(DRAWS), view=0)
    for decision, probability in (
        (drawn.flip, flip),
        (drawn.jitter, jitter),
        (drawn.grey, grey),
        (drawn.blur, blur),
        (drawn.solarise, solarise),
    ):
        assert_share(decision.mean(), probability)


def test_decisions_are_independent_of_each_other(gamma: ViewParameters) -> None:
    decisions = {k: getattr(gamma, k) for k in ("jitter", "grey", "blur", "solarise", "flip")}
    for (_, a), (_, b) in itertools.combinations(decisions.items(), 2):
        assert_share((a & b).mean(), a.mean() * b.mean())


def test_factors_and_sigma_are_uniform_in_their_ranges(gamma: ViewParameters) -> None:
    assert_uniform(gamma.factors[:, 0], 0.2, 1.8)
    assert_uniform(gamma.factors[:, 1], 0.2, 1.8)
    assert_uniform(gamma.factors[:, 2], 0.6, 1.4)
    assert_uniform(gamma.factors[:, 3], -0.2, 0.2)
    assert_uniform(gamma.sigma, 0.1, 2.0)


def test_factors_do_not_depend_on_the_decisions(gamma: ViewParameters) -> None:
    """Drawn for every sample, applied or not."""
    assert_uniform(gamma.factors[~gamma.jitter, 0], 0.2, 1.8)
    assert_uniform(gamma.sigma[~gamma.blur], 0.1, 2.0)


def test_a_factor_is_never_negative() -> None:
    drawn = draw_parameters(ViewAugmentation(brightness=3.0, jitter_prob=1.0), range(2000), 0)
    assert_uniform(drawn.factors[:, 0], 0.0, 4.0)


def test_all_orders_are_equally_likely(gamma: ViewParameters) -> None:
    orders, counts = np.unique(gamma.order, axis=0, return_counts=True)
    assert {tuple(o) for o in orders} == set(itertools.permutations(range(4)))
    for count in counts:
        assert_share(count / DRAWS, 1 / 24)


def test_the_order_is_independent_of_the_values(gamma: ViewParameters) -> None:
    positions = np.argsort(gamma.order, axis=1)  # (N, 4): position of each operation
    values = np.column_stack([gamma.factors, gamma.sigma])
    for position in positions.T:
        for value in values.T:
            assert abs(np.corrcoef(position, value)[0, 1]) < SIGMAS / np.sqrt(DRAWS)


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


def test_distributions_share_their_draws() -> None:
    """Fixed number and order of draws: the weaker augmentation flips the same samples."""
    strong = draw_parameters(named_view("strong"), range(500), view=0)
    weak = draw_parameters(named_view("weak"), range(500), view=0)
    np.testing.assert_array_equal(strong.flip, weak.flip)
    np.testing.assert_array_equal(strong.sigma, weak.sigma)


def test_views_do_not_repeat_the_stream_of_the_plain_seed() -> None:
    """The dataset may seed a generator with the sample's seed: view 0 must differ from it."""
    view = ViewAugmentation(brightness=1.0, jitter_prob=0.5)
    drawn = draw_parameters(view, range(2000), view=0).factors[:, 0] / 2.0
    plain = np.array([np.random.default_rng(seed).random(14) for seed in range(2000)])
    correlation = [abs(np.corrcoef(drawn, column)[0, 1]) for column in plain.T]
    assert max(correlation) < 0.1


def test_no_samples_draw_nothing() -> None:
    assert len(draw_parameters(named_view("strong"), [], view=0)) == 0


def test_rows_select_samples(gamma: ViewParameters) -> None:
    part = gamma.rows(slice(3, 7))
    assert len(part) == 4
    np.testing.assert_array_equal(part.order, gamma.order[3:7])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(jitter_prob=1.1), "jitter_prob is a probability"),
        (dict(flip_prob=-0.1), "flip_prob is a probability"),
        (dict(grey_prob=float("nan")), "grey_prob is a probability"),
        (dict(brightness=-0.1), "brightness must be 0 or more"),
        (dict(hue=0.6), "hue must be 0 to 0.5"),
        (dict(blur_sigma=(0.0, 2.0)), "blur_sigma"),
        (dict(blur_sigma=(2.0, 1.0)), "blur_sigma"),
        (dict(blur_sigma=(0.1, 1.0, 2.0)), "blur_sigma"),
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
        (dict(name="strong", strength=3.0), "hue must be 0 to 0.5"),
        (dict(name="strong", strength=-1.0), "strength must be 0 or more"),
        (dict(name="strong", gray_prob=0.2), "did you mean 'grey_prob'"),
        (dict(name="strong", strenght=1.0), "unknown key 'strenght'"),
        (dict(brightness=0.4, strength=1.0), "give name"),
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
