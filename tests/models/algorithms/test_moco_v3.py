"""One step of MoCo v3 against an independent loop, with gradients."""

from __future__ import annotations

import math

import pytest
import torch

from sce_video.models.algorithms import MoCoV3


def build(**changes):
    torch.manual_seed(0)
    mlp = dict(type="MLP", hidden_channels=16, num_layers=2, norm_output=False)
    options = dict(
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4),
        projector=dict(**mlp, out_channels=8),
        predictor=mlp,
    )
    model = MoCoV3(**{**options, **changes})
    model.init_weights()
    for p in model.target.parameters():  # a copy would not show that the branches are confused
        p.mul_(1.1).add_(0.01)
    return model


def views(count=2, n=6):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(n, 3, 2, 32, 32, generator=generator) for _ in range(count)]


def direction(model, query_view, key_view, tau):
    """2 tau times the mean over queries of the cross-entropy, one key at a time."""
    query = model.predictor(model.projector(model.backbone(query_view).mean((2, 3, 4))))
    query = query / query.norm(dim=1, keepdim=True)
    with torch.no_grad():
        key = model.target.projector(model.target.backbone(key_view).mean((2, 3, 4)))
        key = key / key.norm(dim=1, keepdim=True)
    losses = []
    for i, q in enumerate(query):
        mass = sum((q @ k / tau).exp() for k in key)
        losses.append(mass.log() - q @ key[i] / tau)
    return 2 * tau * torch.stack(losses).mean()


CASES = [
    (2, dict(), {0: [1], 1: [0]}),
    (2, dict(tau=0.2), {0: [1], 1: [0]}),
    (2, dict(symmetric=False), {0: [1]}),
    (3, dict(tau=0.5), {0: [1, 2], 1: [0, 2], 2: [0, 1]}),
    (3, dict(target_views=(1,)), {0: [1], 2: [1]}),
]


@pytest.mark.parametrize(("count", "options", "keys_of"), CASES)
def test_loss_and_gradients_are_sums_over_queries_of_means_over_keys(count, options, keys_of):
    x = views(count)
    model, reference = build(**options), build()
    loss = model(x, mode="loss")["loss"]
    expected = torch.zeros(())
    for query, keys in keys_of.items():
        losses = [direction(reference, x[query], x[key], model.tau) for key in keys]
        expected = expected + sum(losses) / len(losses)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    loss.backward()
    expected.backward()
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        if name.startswith("target."):
            assert p.grad is None
        else:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4, msg=name)


def test_chance_level_is_the_loss_of_equal_embeddings():
    model = build(tau=0.2)
    assert model.chance_level() is None  # the batch is not known yet
    model.eval()  # in training mode the batch norm of equal samples is 0
    same = torch.rand(1, 3, 2, 32, 32).expand(6, -1, -1, -1, -1)
    for count in (2, 3):
        loss = model([same] * count, mode="loss")["loss"].item()
        assert model.chance_level() == pytest.approx(count * 2 * 0.2 * math.log(6))
        assert model.chance_level() == pytest.approx(loss, abs=1e-4)


def test_positive_similarity_is_that_of_a_sample_with_itself():
    model = build()
    out = model(views(), mode="loss")
    assert -1 <= out["positive_similarity"].item() <= 1
    assert not out["positive_similarity"].requires_grad


def test_errors_and_warnings():
    with pytest.raises(ValueError, match="two views, got 1"):
        build()(views(1), mode="loss")
    with pytest.raises(ValueError, match="target_views must be one or more different indices"):
        build(target_views=(1, 1))
    with pytest.raises(ValueError, match="tau must be a finite number above 0, got -1"):
        build(tau=-1)
    with pytest.raises(ValueError, match="momentum must be from 0 to 1, got 2"):
        build(momentum=2)
    model = build()
    with pytest.raises(ValueError, match="a batch of 1 has none"):
        model.check_training(100, 1, 2)
    with pytest.raises(ValueError, match="at least two views, got 1"):
        model.check_training(100, 8, 1)
    assert len(model.check_training(100, 128, 2)) == 1
