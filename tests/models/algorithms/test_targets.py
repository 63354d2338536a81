"""The target branch of every method that has one."""

from __future__ import annotations

import pytest
import torch
from helpers.query_methods import QUERY_METHODS, build_method, make_views


@pytest.mark.parametrize("name", QUERY_METHODS)
def test_target_is_the_moving_average_after_a_step_only(name):
    model = build_method(name, momentum=0.9)
    before = [p.clone() for p in model.target.parameters()]
    model(make_views(2), mode="loss")
    model.discard_step()
    assert all(torch.equal(p, b) for p, b in zip(model.target.parameters(), before, strict=True))
    model.after_optimizer_step()
    online = [*model.backbone.parameters(), *model.projector.parameters()]
    for p, b, o in zip(model.target.parameters(), before, online, strict=True):
        torch.testing.assert_close(p, 0.9 * b + 0.1 * o)


@pytest.mark.parametrize("name", QUERY_METHODS)
def test_target_is_a_copy_after_initialisation(name):
    model = build_method(name)
    with torch.no_grad():
        model.backbone.conv1.weight.add_(1.0)  # as loading pretrained weights would
    model.init_weights()
    for branch in ("backbone", "projector"):
        online, target = getattr(model, branch), getattr(model.target, branch)
        for p, q in zip(online.parameters(), target.parameters(), strict=True):
            assert torch.equal(p, q)
