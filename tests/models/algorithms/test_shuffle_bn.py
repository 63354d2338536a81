"""Shuffle-BN of the methods with a queue; two processes: tests/distributed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.queue_methods import build, embed, views

from sce_video.models.algorithms import SCE, MoCo, ReSSL


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


def test_it_is_an_option_of_the_target(method):
    plain, shuffled = build(method), build(method, shuffle_bn_splits=3)
    assert set(shuffled.state_dict()) - set(plain.state_dict()) == {"target.shuffle.step"}
    losses = [model(views(), mode="loss")["loss"].item() for model in (plain, shuffled)]
    assert abs(losses[0] - losses[1]) > 1e-3
    with pytest.raises(ValueError, match="shuffle_bn_splits must be at least 1, or None, got 0"):
        build(method, shuffle_bn_splits=0)


def test_a_checkpoint_continues_with_the_same_groups(method):
    model = build(method, shuffle_bn_splits=3, momentum=0.9)
    for step in range(3):
        model(views(seed=step), mode="loss")["loss"].backward()
        model.after_optimizer_step()
    assert int(model.state_dict()["target.shuffle.step"]) == 3
    resumed = build(method, shuffle_bn_splits=3, momentum=0.9)
    with torch.no_grad():
        before = resumed(views(seed=3), mode="loss")["loss"].item()
    resumed.load_state_dict(model.state_dict())
    losses = [each(views(seed=3), mode="loss")["loss"].item() for each in (model, resumed)]
    assert losses[0] == losses[1] != before
