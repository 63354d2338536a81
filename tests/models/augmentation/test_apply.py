"""Batched application of drawn parameters: plan, order, samples."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from helpers.augmentation_oracle import clips

from sce_video.models.augmentation import (
    ViewParameters,
    adjust_brightness,
    adjust_hue,
    adjust_saturation,
    augment,
    draw_parameters,
    named_view,
    plan,
)


def nothing(n: int) -> ViewParameters:
    """Parameters without effect on n samples."""
    off = np.zeros(n, dtype=bool)
    return ViewParameters(
        jitter=off,
        grey=off,
        blur=off,
        solarise=off,
        flip=off,
        factors=np.tile(np.array([1, 1, 1, 0], dtype=np.float32), (n, 1)),
        order=np.tile(np.arange(4), (n, 1)),
        sigma=np.ones(n, dtype=np.float32),
    )


def test_the_plan_follows_each_samples_order() -> None:
    drawn = draw_parameters(named_view("strong-gamma", 1.0), range(64), view=0)
    names = ["brightness", "contrast", "saturation", "hue"]
    for i in range(64):
        done = [name for name, samples in plan(drawn) if i in samples]
        want = [names[part] for part in drawn.order[i]] if drawn.jitter[i] else []
        want += [name for name in ("grey", "blur", "solarise", "flip") if getattr(drawn, name)[i]]
        assert done == want
    assert len(plan(drawn)) <= 20


def test_operations_without_effect_are_not_planned() -> None:
    assert plan(replace(nothing(4), jitter=np.ones(4, dtype=bool))) == []
    drawn = draw_parameters(named_view("strong", strength=0.0), range(64), view=0)
    assert {name for name, _ in plan(drawn)} == {"grey", "blur", "flip"}


def test_the_order_of_the_operations_matters_and_is_followed() -> None:
    # One clip, two orders of the same factors: saturation clamps, so the results differ.
    x = clips(1).expand(2, -1, -1, -1, -1).contiguous()
    factors = np.tile(np.array([1.7, 1.0, 1.8, 0.15], dtype=np.float32), (2, 1))
    parameters = replace(
        nothing(2),
        jitter=np.ones(2, dtype=bool),
        factors=factors,
        order=np.array([[0, 1, 2, 3], [3, 2, 1, 0]]),
    )
    b, s, h = (torch.tensor([v]) for v in (1.7, 1.8, 0.15))
    one = x[:1].clone()
    got = augment(x.clone(), parameters)
    forward = adjust_hue(adjust_saturation(adjust_brightness(one, b), s), h)
    backward = adjust_brightness(adjust_saturation(adjust_hue(one, h), s), b)
    torch.testing.assert_close(got[:1], forward)
    torch.testing.assert_close(got[1:], backward)
    assert (forward - backward).abs().max() > 0.05


def test_only_the_chosen_samples_change() -> None:
    x = clips(5)
    chosen = np.array([False, True, False, True, False])
    for name in ("grey", "blur", "solarise", "flip"):
        got = augment(x.clone(), replace(nothing(5), **{name: chosen}))
        changed = (got != x).flatten(1).any(dim=1).numpy()
        np.testing.assert_array_equal(changed, chosen, err_msg=name)


def test_augment_stays_in_range() -> None:
    drawn = draw_parameters(named_view("strong-gamma", 2.0), range(100), view=0)
    got = augment(clips(100), drawn)
    assert got.min() >= -1e-6 and got.max() <= 1 + 1e-6


def test_a_wrong_number_of_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="3 parameters for 2 samples"):
        augment(clips(2), nothing(3))


def test_nothing_covers_every_field() -> None:
    for field in fields(ViewParameters):
        assert len(getattr(nothing(3), field.name)) == 3
