"""The target encoder: its moving average against plain arithmetic, and its forward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.queue_methods import build, embed, views
from torch import nn

from sce_video.models.algorithms import SCE, MoCo, ReSSL
from sce_video.models.modules import TargetEncoder
from sce_video.models.modules.target_encoder import BatchShuffle


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


# Shuffle-BN: groups, order of the keys, resuming. Two processes: tests/distributed.


def target(splits, norm=True):
    torch.manual_seed(0)
    layers = [nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4) if norm else nn.Identity(), nn.ReLU()]
    return TargetEncoder(nn.Sequential(*layers), nn.Linear(4, 5), splits)


def view(n=12):
    return torch.rand(n, 3, 2, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("splits", [1, 3, 5])
def test_each_group_is_encoded_by_itself_and_keys_keep_their_order(splits):
    """A loop over groups of the permutation that the step gives; group sizes may differ."""
    shuffle, x = BatchShuffle(splits), torch.arange(12.0)[:, None] ** 2
    for step in range(3):
        order = torch.randperm(12, generator=torch.Generator().manual_seed(step)).tolist()
        expected = torch.empty(12, 1)
        for group in range(splits):
            members = [order[p] for p in range(12) if p % splits == group]
            mean = sum(float(x[m]) for m in members) / len(members)
            for member in members:
                expected[member] = x[member] - mean
        found = shuffle(lambda rows: rows - rows.mean(dim=0), x)
        torch.testing.assert_close(found, expected)
        shuffle.advance()


def test_batch_norm_sees_groups_of_other_samples_in_every_step():
    x, plain = view(), target(None)(view())
    model = target(4)
    first, again = model(x), model(x)
    torch.testing.assert_close(first, again)  # both micro-batches of a step are permuted alike
    model.update(model.backbone, model.projector, 0.9)
    later = model(x)
    assert not torch.allclose(first, plain, atol=1e-3)
    assert not torch.allclose(first, later, atol=1e-3)
    # One group of all samples: BN sees what it sees without shuffling.
    torch.testing.assert_close(target(1)(x), plain)


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
    with pytest.raises(ValueError, match="needs as many samples per process, got 3"):
        target(4)(view(3))


# Shuffle-BN of the methods with a queue; two processes: tests/distributed.


@pytest.fixture(params=[SCE, MoCo, ReSSL], ids=lambda method: method.__name__)
def method(request):
    return request.param


def keys_of_groups(target, view, step, splits):
    """Unit keys (n, D), every group of the step's permutation encoded by itself."""
    order = torch.randperm(len(view), generator=torch.Generator().manual_seed(step)).tolist()
    keys = torch.empty(len(view), 8)
    with torch.no_grad():
        for group in range(splits):
            members = order[group::splits]
            keys[members] = embed(target, view[members])
    return keys


def pair_loss(model, query_view, key):
    """The equations of one direction, written out; mean over samples."""
    query, queue = embed(model, query_view), model.queue.keys
    logits = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.T], dim=1)
    positive = torch.zeros(len(key), dtype=torch.long)
    if isinstance(model, MoCo):
        return F.cross_entropy(logits / 0.2, positive)
    relations = torch.softmax(key @ queue.T / (0.05 if isinstance(model, SCE) else 0.04), dim=1)
    if isinstance(model, ReSSL):
        return F.cross_entropy(logits[:, 1:] / 0.1, relations)
    weights = 0.5 * torch.cat([F.one_hot(positive, 1).float(), relations], dim=1)
    return F.cross_entropy(logits / 0.1, weights)


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_step_equals_a_loop_over_the_groups(method, symmetric):
    x = views()
    model, reference = (
        build(method, symmetric=symmetric, momentum=0.9, **options)
        for options in (dict(shuffle_bn_splits=3), {})
    )
    for step in range(2):
        pairs = [(0, 1), (1, 0)] if symmetric else [(0, 1)]
        losses = [
            pair_loss(reference, x[i], keys_of_groups(reference.target, x[j], step, 3))
            for i, j in pairs
        ]
        expected = torch.stack(losses).mean()
        loss = model(x, mode="loss")["loss"]
        assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
        for each, value in ((model, loss), (reference, expected)):
            each.zero_grad()
            value.backward()
        torch.testing.assert_close(
            *(each.backbone.conv1.weight.grad for each in (model, reference)), rtol=1e-3, atol=1e-4
        )
        # Only the step counts here: the target's weights and the queue stay.
        model.target.update(model.backbone, model.projector, 1.0)
        model.discard_step()
