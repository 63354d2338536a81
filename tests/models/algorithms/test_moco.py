"""MoCo's settings, chance level and checks; its step is tested in test_queue_methods.py."""

from __future__ import annotations

import math

import pytest
from helpers.queue_methods import build, views

from sce_video.models.algorithms import MoCo
from sce_video.registry import MODELS


def test_a_loss_at_chance_level_is_that_of_unrelated_views():
    model = build(MoCo, tau=1e6)
    assert model.chance_level() == pytest.approx(math.log(33))
    assert model(views(), mode="loss")["loss"].item() == pytest.approx(math.log(33), abs=1e-4)


def test_the_data_are_checked():
    model = build(MoCo)
    assert model.check_training(1000, 16, 2) == []
    assert "no multiple of the 20 keys" in model.check_training(1000, 20, 2)[0]
    assert "a step makes 40 keys" in build(MoCo, symmetric=True).check_training(1000, 20, 2)[0]
    assert "the queue holds 32 keys" in model.check_training(20, 4, 2)[0]
    with pytest.raises(ValueError, match="at least two views, got 1"):
        model.check_training(1000, 16, 1)


def test_errors():
    with pytest.raises(ValueError, match="two views, got 1"):
        build(MoCo)(views(1), mode="loss")
    with pytest.raises(ValueError, match="tau must be a finite number above 0, got 0"):
        build(MoCo, tau=0)
    with pytest.raises(ValueError, match="momentum must be from 0 to 1, got 2"):
        build(MoCo, momentum=2)
    with pytest.raises(ValueError, match="target_views must be one or more different indices"):
        build(MoCo, target_views=(1, 1))
    with pytest.raises(TypeError, match="predictor"):
        MODELS.build(dict(type="MoCo", backbone={}, projector={}, predictor={}))
