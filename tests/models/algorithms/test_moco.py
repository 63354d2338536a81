"""MoCo's settings, chance level and checks; its step is tested in test_queue_methods.py."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from helpers.queue_methods import assert_equals, build, embed, views

from sce_video.models.algorithms import SCE, MoCo, ReSSL
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


# ReSSL's settings, chance level and checks; its step is tested in test_queue_methods.py.


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


def test_a_loss_at_chance_level_is_that_of_unrelated_views_of_ressl():
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


def test_errors_of_ressl():
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


# One step of MoCo and of ReSSL against its equations written out, and what both do alike.


def moco_loss(model, query_view, key_view):
    """The pseudo-code of MoCo: cross-entropy of [positive, negatives] with class 0."""
    query = embed(model, query_view)
    with torch.no_grad():
        key = embed(model.target, key_view)
    losses = []
    for q, k in zip(query, key, strict=True):
        logits = torch.stack([q @ k, *(q @ negative for negative in model.queue.keys)]) / 0.2
        losses.append(F.cross_entropy(logits[None], torch.tensor([0])))
    return torch.stack(losses).mean()


def ressl_loss(model, query_view, key_view):
    """Cross-entropy of both softmaxes over the queue, one sample at a time."""
    query = embed(model, query_view)
    with torch.no_grad():
        key = embed(model.target, key_view)
    losses = []
    for q, k in zip(query, key, strict=True):
        relations = torch.softmax(model.queue.keys @ k / 0.04, dim=0)
        losses.append(F.cross_entropy((model.queue.keys @ q / 0.1)[None], relations[None]))
    return torch.stack(losses).mean()


PAIR_LOSS = {MoCo: moco_loss, ReSSL: ressl_loss}


@pytest.fixture(params=[MoCo, ReSSL], ids=lambda method: method.__name__)
def method(request):
    return request.param


@pytest.mark.parametrize(
    ("options", "count", "pairs"),
    [
        (dict(), 2, [(0, 1)]),
        (dict(symmetric=True), 2, [(0, 1), (1, 0)]),
        (dict(), 3, [(0, 2), (1, 2)]),
        (dict(target_views=[0]), 3, [(1, 0), (2, 0)]),
        (dict(symmetric=True), 3, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]),
    ],
)
def test_one_step_equals_an_independent_loop(method, options, count, pairs):
    x = views(count)
    model, reference = build(method, **options), build(method)
    expected = sum(PAIR_LOSS[method](reference, x[i], x[j]) for i, j in pairs) / len(pairs)
    assert_equals(model, reference, model(x, mode="loss"), expected)


def test_by_default_only_the_last_view_is_a_key(method):
    model = build(method)
    model(views(3), mode="loss")
    model.after_optimizer_step()
    assert int(model.queue.pointer) == 6


def test_local_views_are_queries_only(method):
    model = build(method, symmetric=True)
    out = model(views(2) + views(1, size=16, seed=1), mode="loss")
    assert torch.isfinite(out["loss"])
    model.after_optimizer_step()
    assert int(model.queue.pointer) == 12
