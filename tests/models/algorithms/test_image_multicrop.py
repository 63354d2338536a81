"""SCE on six views of an image, as in tab:sota-multi-crop, against a loop over the ten pairs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sce_video.models import SCE
from sce_video.models.losses import sce_loss

SIZES = (32, 32, 28, 24, 20, 16)


def build(**changes):
    torch.manual_seed(0)
    mlp = dict(type="MLP", hidden_channels=16)
    model = SCE(
        backbone=dict(type="ResNet2d", depth=18, base_channels=4, stem="small"),
        projector=dict(**mlp, out_channels=8, num_layers=3, norm_output=True),
        predictor=dict(**mlp, num_layers=2, norm_output=False),
        queue_size=32,
        tau=0.1,
        tau_m=0.07,
        **changes,
    )
    model.init_weights()
    for p in model.target.parameters():
        p.mul_(1.1).add_(0.01)
    return model


@pytest.fixture(scope="module")
def views():
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(8, 3, 1, size, size, generator=generator) for size in SIZES]


def loop(model, views):
    """Mean over targets i of the two global views and queries j != i of all six."""
    h = [model.backbone(view).mean((2, 3, 4)) for view in views]  # BN view by view
    queries = [F.normalize(model.predictor(model.projector(x)), dim=1) for x in h]
    losses = []
    for i in (0, 1):
        with torch.no_grad():
            pooled = model.target.backbone(views[i]).mean((2, 3, 4))
            key = F.normalize(model.target.projector(pooled), dim=1)
        for j in range(6):
            if j != i:
                losses.append(sce_loss(queries[j], key, model.queue.keys, tau=0.1, tau_m=0.07))
    assert len(losses) == 2 * (6 - 1)
    return torch.stack(losses).mean(), key


@pytest.mark.parametrize("backward_per_query", [False, True])
def test_loss_gradients_and_queue(views, backward_per_query):
    model, reference = build(backward_per_query=backward_per_query), build()
    expected, key_of_view_1 = loop(reference, views)
    out = model(views, mode="loss")
    assert out["loss"].item() == pytest.approx(expected.item(), abs=1e-5)
    out["loss"].backward()
    expected.backward()
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        if p.requires_grad:
            scale = q.grad.abs().max().item()
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4 * scale, msg=name)
    model.after_optimizer_step()
    assert int(model.queue.pointer) == 2 * 8  # keys of the global views only
    torch.testing.assert_close(model.queue.keys[8:16], key_of_view_1)
    assert torch.equal(model.queue.keys[16:], reference.queue.keys[16:])
