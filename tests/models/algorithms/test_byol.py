"""One step of BYOL against the equations of the paper."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sce_video.models.algorithms import BYOL


def build(**changes):
    torch.manual_seed(0)
    mlp = dict(type="MLP", hidden_channels=16, num_layers=2, norm_output=False)
    options = dict(
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4),
        projector=dict(**mlp, out_channels=8),
        predictor=mlp,
    )
    model = BYOL(**{**options, **changes})
    model.init_weights()
    for p in model.target.parameters():  # a copy would not show that the branches are confused
        p.mul_(1.1).add_(0.01)
    return model


def views(count=2, n=6):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(n, 3, 2, 32, 32, generator=generator) for _ in range(count)]


def pair_loss(model, query_view, key_view):
    """Eq. 2: mean over samples of |q - k|^2, both l2-normalised; the key has no gradient."""
    h = model.backbone(query_view).mean((2, 3, 4))
    query = F.normalize(model.predictor(model.projector(h)), dim=1)
    with torch.no_grad():
        key = model.target.projector(model.target.backbone(key_view).mean((2, 3, 4)))
        key = F.normalize(key, dim=1)
    return (query - key).square().sum(dim=1).mean()


CASES = [
    (2, dict(), {0: [1], 1: [0]}),
    (2, dict(symmetric=False), {0: [1]}),
    (2, dict(symmetric=False, target_views=(0,)), {1: [0]}),
    (3, dict(), {0: [1, 2], 1: [0, 2], 2: [0, 1]}),
    (3, dict(target_views=(1,)), {0: [1], 2: [1]}),
    (4, dict(symmetric=False, target_views=(3, 0)), {1: [3, 0], 2: [3, 0]}),
]


@pytest.mark.parametrize(("count", "options", "keys_of"), CASES)
def test_loss_and_gradients_are_sums_over_queries_of_means_over_keys(count, options, keys_of):
    x = views(count)
    model, reference = build(**options), build()
    out = model(x, mode="loss")
    expected = torch.zeros(())
    for query, keys in keys_of.items():
        costs = [pair_loss(reference, x[query], x[key]) for key in keys]
        expected = expected + sum(costs) / len(costs)
    assert out["loss"].item() == pytest.approx(expected.item(), abs=1e-5)
    out["loss"].backward()
    expected.backward()
    for (name, p), (_, q) in zip(
        model.named_parameters(), reference.named_parameters(), strict=True
    ):
        if name.startswith("target."):
            assert p.grad is None
        else:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4, msg=name)


def test_positive_similarity_is_the_mean_cosine_of_the_pairs():
    out = build()(views(), mode="loss")
    assert out["positive_similarity"].item() == pytest.approx(1 - out["loss"].item() / 4, abs=1e-6)
    assert not out["positive_similarity"].requires_grad


def test_errors():
    with pytest.raises(ValueError, match="two views, got 1"):
        build()(views(1), mode="loss")
    with pytest.raises(ValueError, match="target_views must be one or more different indices"):
        build(target_views=(1, 1))
    with pytest.raises(ValueError, match="leave none of the 2 views"):
        build(symmetric=False, target_views=(0, 1))(views(), mode="loss")
    with pytest.raises(TypeError, match="predictor"):
        BYOL(backbone={}, projector={})
