"""ReSSL's settings, chance level and checks; its step is tested in test_queue_methods.py."""

from __future__ import annotations

import math

import pytest
from helpers.queue_methods import build, views

from sce_video.models.algorithms import SCE, ReSSL
from sce_video.registry import MODELS


def test_is_sce_with_the_coefficients_of_ressl_and_not_sce_with_lambda_zero():
    def sce(lambda_):
        model = build(ReSSL)
        options = dict(backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4),
                       projector=dict(type="MLP", hidden_channels=16, num_layers=2, out_channels=8,
                                      norm_output=False),
                       queue_size=32, symmetric=False, tau=0.1, tau_m=0.04)  # fmt: skip
        other = SCE(**options, lambda_=lambda_)
        other.load_state_dict(model.state_dict())
        return other(views(), mode="loss")["loss"].item()

    loss = build(ReSSL)(views(), mode="loss")["loss"].item()
    assert sce((0.0, 1.0, 0.0)) == pytest.approx(loss, abs=1e-6)
    assert abs(sce(0.0) - loss) > 1e-2


def test_a_loss_at_chance_level_is_that_of_unrelated_views():
    model = build(ReSSL, tau=1e6)
    assert model.chance_level() == pytest.approx(math.log(32))
    assert model(views(), mode="loss")["loss"].item() == pytest.approx(math.log(32), abs=1e-4)


def test_the_data_and_the_temperatures_are_checked():
    assert build(ReSSL).check_training(1000, 16, 2) == []
    (warning,) = build(ReSSL, tau_m=0.1).check_training(1000, 16, 2)
    assert "tau_m=0.1 is not below tau=0.1" in warning and "collapses" in warning
    assert "no multiple of the 20 keys" in build(ReSSL).check_training(1000, 20, 2)[0]
    with pytest.raises(ValueError, match="at least two views, got 1"):
        build(ReSSL).check_training(1000, 16, 1)


def test_errors():
    with pytest.raises(ValueError, match="two views, got 1"):
        build(ReSSL)(views(1), mode="loss")
    for name in ("tau", "tau_m"):
        with pytest.raises(ValueError, match=f"{name} must be a finite number above 0, got -1"):
            build(ReSSL, **{name: -1})
    with pytest.raises(ValueError, match="momentum must be from 0 to 1, got 2"):
        build(ReSSL, momentum=2)
    with pytest.raises(ValueError, match="target_views must be one or more different indices"):
        build(ReSSL, target_views=(1, 1))
    with pytest.raises(TypeError, match="predictor"):
        MODELS.build(dict(type="ReSSL", backbone={}, projector={}, predictor={}))
