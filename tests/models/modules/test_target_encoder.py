"""The target encoder: its moving average compared with plain arithmetic, and Shuffle-BN."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.query_methods import WITH_QUEUE, build_method, make_views
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


def test_bn_statistics_are_not_averaged_but_copied_by_copy_from():
    backbone, projector = parts()
    target = TargetEncoder(backbone, projector)
    backbone(torch.rand(2, 3, 2, 4, 4))
    target.update(backbone, projector, 0.0)
    assert torch.equal(target.backbone[1].running_mean, torch.zeros(4))
    target.copy_from(backbone, projector)
    assert torch.equal(target.backbone[1].running_mean, backbone[1].running_mean)


# Shuffle-BN: groups, order of the keys, resuming. Two processes: tests/distributed.


def target(splits, norm=True):
    torch.manual_seed(0)
    layers = [nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4) if norm else nn.Identity(), nn.ReLU()]
    return TargetEncoder(nn.Sequential(*layers), nn.Linear(4, 5), splits)


def view(n=12):
    return torch.rand(n, 3, 2, 4, 4, generator=torch.Generator().manual_seed(1))


def test_a_resumed_target_continues_with_the_same_permutations():
    model, x = target(4), view()
    for _ in range(3):
        model.update(model.backbone, model.projector, 0.9)
    resumed = target(4)
    resumed.load_state_dict(model.state_dict())
    for _ in range(2):
        assert torch.equal(model(x), resumed(x))
        for each in (model, resumed):
            each.update(each.backbone, each.projector, 0.9)
    assert int(resumed.state_dict()["shuffle.step"]) == 5


def test_errors():
    with pytest.raises(ValueError, match="shuffle_bn_splits must be at least 1, or None, got 0"):
        target(0)
    with pytest.raises(ValueError, match="needs as many samples per process or more, got 3"):
        target(4)(view(3))


# Shuffle-BN of the methods with a queue; two processes: tests/distributed.


def embed(branch, view):
    """Return unit embeddings (n, D) of the online branch or the target."""
    return F.normalize(branch.projector(branch.backbone(view).mean((2, 3, 4))), dim=1)


@pytest.mark.parametrize("name", WITH_QUEUE)
def test_keys_of_a_step_equal_a_loop_over_the_groups(name):
    """Each group of the step's permutation is encoded separately."""
    x, splits = make_views(2), 3
    model = build_method(name, shuffle_bn_splits=splits, momentum=0.9)
    reference = build_method(name)
    for step in range(2):
        keys, _ = model.encode_keys(x)
        order = torch.randperm(len(x[0]), generator=torch.Generator().manual_seed(step)).tolist()
        for number, view in enumerate(x):
            expected = torch.empty(len(view), 8)
            for group in range(splits):
                members = order[group::splits]
                with torch.no_grad():
                    expected[members] = embed(reference.target, view[members])
            torch.testing.assert_close(keys[number], expected)
        # Only the step changes here, not the target's weights.
        model.target.update(model.backbone, model.projector, 1.0)
