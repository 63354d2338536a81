"""One step of ReSSL against its equations written out."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from sce_video.models.algorithms import SCE, ReSSL
from sce_video.registry import MODELS

GOLDEN = [1.19264, 3.01135, 2.49901, 3.15414, 3.45692]


def build(**changes):
    torch.manual_seed(0)
    options = dict(
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4),
        projector=dict(
            type="MLP", hidden_channels=16, num_layers=2, out_channels=8, norm_output=False
        ),
        queue_size=32,
    )
    model = ReSSL(**{**options, **changes})
    model.init_weights()
    for p in model.target.parameters():  # a copy would not show that the branches are confused
        p.mul_(1.1).add_(0.01)
    return model


def views(count=2, n=6, size=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(n, 3, 2, size, size, generator=generator) for _ in range(count)]


def embed(branch, view):
    h = branch.backbone(view).mean((2, 3, 4))
    return F.normalize(branch.projector(h), dim=1)


def assert_equals(model, reference, out, expected):
    """Value, and gradient of every parameter of the online branch; the target has none."""
    assert out["loss"].item() == pytest.approx(expected.item(), abs=1e-5)
    out["loss"].backward()
    expected.backward()
    for (name, p), (_, q) in zip(
        model.named_parameters(), reference.named_parameters(), strict=True
    ):
        if name.startswith("target."):
            assert p.grad is None
        else:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5, msg=name)


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
def test_one_step_equals_an_independent_loop(options, count, pairs):
    x = views(count)
    model, reference = build(**options), build()
    expected = sum(pair_loss(reference, x[i], x[j]) for i, j in pairs) / len(pairs)
    assert_equals(model, reference, model(x, mode="loss"), expected)


def test_target_and_queue_change_after_the_optimiser_step_only():
    model = build(momentum=0.9, symmetric=True)
    x = views()
    queue = model.queue.keys.clone()
    target = [p.clone() for p in model.target.parameters()]
    with torch.no_grad():
        keys = torch.cat([embed(model.target, view) for view in x])
    model(x, mode="loss")
    model.discard_step()
    model.queue.commit()
    assert torch.equal(model.queue.keys, queue)
    model(x, mode="loss")
    assert torch.equal(model.queue.keys, queue)
    assert all(torch.equal(p, t) for p, t in zip(model.target.parameters(), target, strict=True))
    model.after_optimizer_step()
    torch.testing.assert_close(model.queue.keys[:12], keys)
    assert torch.equal(model.queue.keys[12:], queue[12:])
    online = [*model.backbone.parameters(), *model.projector.parameters()]
    for p, t, o in zip(model.target.parameters(), target, online, strict=True):
        torch.testing.assert_close(p, 0.9 * t + 0.1 * o)


def test_by_default_only_the_last_view_is_a_key():
    model = build()
    model(views(3), mode="loss")
    model.after_optimizer_step()
    assert int(model.queue.pointer) == 6


def test_the_target_starts_as_a_copy():
    model = build()
    model.init_weights()
    assert torch.equal(model.target.backbone.conv1.weight, model.backbone.conv1.weight)


def test_local_views_are_queries_only():
    model = build(symmetric=True)
    out = model(views(2) + views(1, size=16, seed=1), mode="loss")
    assert torch.isfinite(out["loss"])
    model.after_optimizer_step()
    assert int(model.queue.pointer) == 12


def test_embeddings_are_fp32_under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = build()(views(), mode="loss")
    assert out["loss"].dtype == out["positive_similarity"].dtype == torch.float32
    assert not out["positive_similarity"].requires_grad


def train(steps=5):
    model = build(momentum=0.9, symmetric=True).eval()  # BN of 6 samples magnifies rounding
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9
    )
    losses = []
    for step in range(steps):
        out = model(views(seed=step), mode="loss")
        optimizer.zero_grad()
        out["loss"].backward()
        optimizer.step()
        model.after_optimizer_step()
        losses.append(out["loss"].item())
    return losses


def test_golden_losses_of_a_seeded_run():
    """Fixed once; a change of the method, the queue or the target shows here."""
    assert train() == pytest.approx(GOLDEN, abs=1e-4)


def pair_loss(model, query_view, key_view):
    """Cross-entropy of both softmaxes over the queue, one sample at a time."""
    query = embed(model, query_view)
    with torch.no_grad():
        key = embed(model.target, key_view)
    losses = []
    for q, k in zip(query, key, strict=True):
        relations = torch.softmax(model.queue.keys @ k / 0.04, dim=0)
        losses.append(F.cross_entropy((model.queue.keys @ q / 0.1)[None], relations[None]))
    return torch.stack(losses).mean()


def test_is_sce_with_the_coefficients_of_ressl_and_not_sce_with_lambda_zero():
    def sce(lambda_):
        model = build()
        options = dict(backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4),
                       projector=dict(type="MLP", hidden_channels=16, num_layers=2, out_channels=8,
                                      norm_output=False),
                       queue_size=32, symmetric=False, tau=0.1, tau_m=0.04)  # fmt: skip
        other = SCE(**options, lambda_=lambda_)
        other.load_state_dict(model.state_dict())
        return other(views(), mode="loss")["loss"].item()

    loss = build()(views(), mode="loss")["loss"].item()
    assert sce((0.0, 1.0, 0.0)) == pytest.approx(loss, abs=1e-6)
    assert abs(sce(0.0) - loss) > 1e-2


def test_a_loss_at_chance_level_is_that_of_unrelated_views():
    model = build(tau=1e6)
    assert model.chance_level() == pytest.approx(math.log(32))
    assert model(views(), mode="loss")["loss"].item() == pytest.approx(math.log(32), abs=1e-4)


def test_the_data_and_the_temperatures_are_checked():
    assert build().check_training(1000, 16, 2) == []
    (warning,) = build(tau_m=0.1).check_training(1000, 16, 2)
    assert "tau_m=0.1 is not below tau=0.1" in warning and "collapses" in warning
    assert "no multiple of the 20 keys" in build().check_training(1000, 20, 2)[0]
    with pytest.raises(ValueError, match="at least two views, got 1"):
        build().check_training(1000, 16, 1)


def test_errors():
    with pytest.raises(ValueError, match="two views, got 1"):
        build()(views(1), mode="loss")
    for name in ("tau", "tau_m"):
        with pytest.raises(ValueError, match=f"{name} must be a finite number above 0, got -1"):
            build(**{name: -1})
    with pytest.raises(ValueError, match="momentum must be from 0 to 1, got 2"):
        build(momentum=2)
    with pytest.raises(ValueError, match="target_views must be one or more different indices"):
        build(target_views=(1, 1))
    with pytest.raises(TypeError, match="predictor"):
        MODELS.build(dict(type="ReSSL", backbone={}, projector={}, predictor={}))
