"""MoCo's settings, chance level and checks; its step is tested in test_queue_methods.py."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.queue_methods import build, views

from sce_video.models.algorithms import MoCo
from sce_video.registry import MODELS


def test_a_loss_at_chance_level_is_that_of_unrelated_views():
    model = build(MoCo, tau=1e6)
    assert model.chance_level() == pytest.approx(math.log(33))
    assert model(views(), mode="loss")["loss"].item() == pytest.approx(math.log(33), abs=1e-4)


def test_rho_moco_is_the_sum_over_queries_of_the_mean_over_other_keys():
    """SlowFast: with rho views rho times the mean over pairs, in value, gradient and chance."""
    rho, x = 4, views(4)
    mean, total = (build(MoCo, symmetric=True, sum_queries=s) for s in (False, True))
    assert total.chance_level() is None
    losses = [model(x, mode="loss")["loss"] for model in (mean, total)]
    assert losses[1].item() == pytest.approx(rho * losses[0].item(), rel=1e-6)
    for loss in losses:
        loss.backward()
    for (name, p), q in zip(total.named_parameters(), mean.parameters(), strict=True):
        if p.requires_grad:
            scale = q.grad.abs().max().item()
            torch.testing.assert_close(p.grad, rho * q.grad, rtol=0, atol=1e-4 * scale, msg=name)
    assert total.chance_level() == pytest.approx(rho * math.log(33))
    assert mean.chance_level() == pytest.approx(math.log(33))


def test_a_query_of_the_sum_weighs_the_same_whatever_its_number_of_keys():
    """Views 0 and 1 are keys: view 2 has two of them, views 0 and 1 have one each."""
    options = dict(symmetric=True, target_views=(0, 1))
    x, model = views(3), build(MoCo, **options, sum_queries=True)
    means = []
    for keys, query in (((1,), 0), ((0,), 1), ((0, 1), 2)):
        losses = []
        for key in keys:
            two = build(MoCo).eval()  # the first view is the query, the last the key
            losses.append(two([x[query], x[key]], mode="loss")["loss"].item())
        means.append(sum(losses) / len(losses))
    assert model.eval()(x, mode="loss")["loss"].item() == pytest.approx(sum(means), abs=1e-5)


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
