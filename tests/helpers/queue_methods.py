"""Small models of methods with a queue and no predictor, and what their tests compare with."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


def build(method, **changes):
    """A small model of a class, whose target is no copy of the online branch."""
    torch.manual_seed(0)
    options = dict(
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4),
        projector=dict(
            type="MLP", hidden_channels=16, num_layers=2, out_channels=8, norm_output=False
        ),
        queue_size=32,
    )
    model = method(**{**options, **changes})
    model.init_weights()
    for p in model.target.parameters():  # a copy would not show that the branches are confused
        p.mul_(1.1).add_(0.01)
    return model


def views(count=2, n=6, size=32, seed=0):
    """``count`` views (n, 3, 2, size, size)."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(n, 3, 2, size, size, generator=generator) for _ in range(count)]


def embed(branch, view):
    """Unit embeddings (n, D) of the online branch or of the target."""
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
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4, msg=name)
