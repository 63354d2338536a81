"""One step of SimCLR against an independent loop, with gradients."""

from __future__ import annotations

import math

import pytest
import torch

from sce_video.models.algorithms import SimCLR


def build(**changes):
    torch.manual_seed(0)
    options = dict(
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4),
        projector=dict(
            type="MLP", hidden_channels=16, out_channels=8, num_layers=2, norm_output=True
        ),
    )
    model = SimCLR(**{**options, **changes})
    model.init_weights()
    return model


def views(count=2, n=6):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(n, 3, 2, 32, 32, generator=generator) for _ in range(count)]


def loop_loss(model, x, tau):
    """For each pair of views, each anchor and each candidate: eq. 1 of SimCLR."""
    z = [model.projector(model.backbone(view).mean((2, 3, 4))) for view in x]
    z = [embedding / embedding.norm(dim=1, keepdim=True) for embedding in z]
    losses = []
    for i in range(len(z)):
        for j in range(i + 1, len(z)):
            both = [*z[i], *z[j]]
            for a in range(len(both)):
                positive = both[a] @ both[(a + len(both) // 2) % len(both)] / tau
                others = [both[a] @ both[b] / tau for b in range(len(both)) if b != a]
                losses.append(torch.stack(others).exp().sum().log() - positive)
    return torch.stack(losses).mean()


@pytest.mark.parametrize(("count", "tau"), [(2, 0.1), (2, 0.5), (3, 0.2)])
def test_loss_and_gradients_are_those_of_the_loop(count, tau):
    x = views(count)
    model, reference = build(tau=tau), build()
    loss = model(x, mode="loss")["loss"]
    expected = loop_loss(reference, x, tau)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    loss.backward()
    expected.backward()
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        scale = q.grad.abs().max().item()
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4 * scale + 1e-7, msg=name)


def test_rho_simclr_is_the_sum_over_consecutive_views():
    x = views(4)
    model, reference = build(consecutive=True).eval(), build().eval()
    assert model.chance_level() is None
    loss = model(x, mode="loss")["loss"]
    expected = sum(loop_loss(reference, x[k : k + 2], 0.1) for k in range(3))
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    assert model.chance_level() == pytest.approx(3 * math.log(11))


def test_chance_level_is_the_loss_of_equal_embeddings():
    model = build(
        projector=dict(
            type="MLP", hidden_channels=8, out_channels=4, num_layers=1, norm_output=False
        )
    )
    assert model.chance_level() is None  # the batch is not known yet
    same = torch.rand(1, 3, 2, 32, 32).expand(6, -1, -1, -1, -1)
    for x in ([same, same], [same, same, same]):
        loss = model(x, mode="loss")["loss"].item()
        assert model.chance_level() == pytest.approx(math.log(11)) == pytest.approx(loss, abs=1e-4)


def test_errors_and_warnings():
    with pytest.raises(ValueError, match="two views, got 1"):
        build()(views(1), mode="loss")
    with pytest.raises(ValueError, match="tau must be a finite number above 0, got 0"):
        build(tau=0)
    model = build()
    with pytest.raises(ValueError, match="a batch of 1 has none"):
        model.check_training(100, 1, 2)
    with pytest.raises(ValueError, match="at least two views, got 1"):
        model.check_training(100, 8, 1)
    assert model.check_training(100, 100, 2) == []
    (warning,) = model.check_training(100, 128, None)
    assert "128 samples and there are 100 training samples" in warning
