"""The target encoder: its moving average against plain arithmetic, and its forward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sce_video.models.modules import TargetEncoder


def parts():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4)), nn.Linear(4, 5)


def test_moving_average():
    backbone, projector = parts()
    target = TargetEncoder(backbone, projector)
    expected = [p.detach().double() for p in (*backbone.parameters(), *projector.parameters())]
    for step, momentum in enumerate([0.99, 0.5, 0.0, 1.0, 0.9]):
        with torch.no_grad():
            for p in (*backbone.parameters(), *projector.parameters()):
                p.add_(0.1 * (step + 1))
        online = [p.detach().double() for p in (*backbone.parameters(), *projector.parameters())]
        expected = [
            momentum * t + (1 - momentum) * o for t, o in zip(expected, online, strict=True)
        ]
        target.update(backbone, projector, momentum)
        for t, e in zip(target.parameters(), expected, strict=True):
            torch.testing.assert_close(t.double(), e, rtol=1e-6, atol=1e-6)


def test_starts_as_an_equal_copy_without_gradient():
    backbone, projector = parts()
    target = TargetEncoder(backbone, projector)
    assert not any(p.requires_grad for p in target.parameters())
    assert torch.equal(target.projector.weight, projector.weight)
    assert target.projector.weight.data_ptr() != projector.weight.data_ptr()


def test_bn_statistics_are_not_averaged_but_copied_by_copy_from():
    backbone, projector = parts()
    target = TargetEncoder(backbone, projector)
    backbone(torch.rand(2, 3, 2, 4, 4))
    target.update(backbone, projector, 0.0)
    assert torch.equal(target.backbone[1].running_mean, torch.zeros(4))
    target.copy_from(backbone, projector)
    assert torch.equal(target.backbone[1].running_mean, backbone[1].running_mean)


@pytest.mark.parametrize("momentum", [-0.1, 1.1])
def test_a_momentum_outside_0_to_1_is_refused(momentum):
    backbone, projector = parts()
    with pytest.raises(ValueError, match="momentum"):
        TargetEncoder(backbone, projector).update(backbone, projector, momentum)


def test_forward_is_projector_of_the_pooled_features_without_gradient():
    backbone, projector = parts()
    target = TargetEncoder(backbone, projector)
    view = torch.rand(3, 3, 2, 4, 4, requires_grad=True)
    expected = target.projector(target.backbone(view).mean(dim=(2, 3, 4)))
    embedding = target(view)
    assert torch.equal(embedding, expected) and not embedding.requires_grad
    assert set(target.state_dict()) == {
        *(f"backbone.{name}" for name in backbone.state_dict()),
        *(f"projector.{name}" for name in projector.state_dict()),
    }
