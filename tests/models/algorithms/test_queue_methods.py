"""One step of MoCo and of ReSSL against its equations written out, and what both do alike."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.queue_methods import assert_equals, build, embed, views

from sce_video.models.algorithms import MoCo, ReSSL

GOLDEN = {
    MoCo: [0.81997, 2.18979, 2.42685, 2.35172, 2.43202],
    ReSSL: [1.19264, 3.01135, 2.49901, 3.15414, 3.45692],
}


def moco_loss(model, query_view, key_view):
    """The pseudo-code of MoCo: cross-entropy of [positive, negatives] with class 0."""
    query = embed(model, query_view)
    with torch.no_grad():
        key = embed(model.target, key_view)
    losses = []
    for q, k in zip(query, key, strict=True):
        logits = torch.stack([q @ k, *(q @ negative for negative in model.queue.keys)]) / 0.2
        losses.append(F.cross_entropy(logits[None], torch.tensor([0])))
    return torch.stack(losses).mean()


def ressl_loss(model, query_view, key_view):
    """Cross-entropy of both softmaxes over the queue, one sample at a time."""
    query = embed(model, query_view)
    with torch.no_grad():
        key = embed(model.target, key_view)
    losses = []
    for q, k in zip(query, key, strict=True):
        relations = torch.softmax(model.queue.keys @ k / 0.04, dim=0)
        losses.append(F.cross_entropy((model.queue.keys @ q / 0.1)[None], relations[None]))
    return torch.stack(losses).mean()


PAIR_LOSS = {MoCo: moco_loss, ReSSL: ressl_loss}


@pytest.fixture(params=[MoCo, ReSSL], ids=lambda method: method.__name__)
def method(request):
    return request.param


@pytest.mark.parametrize(
    ("options", "count", "pairs"),
    [
        (dict(), 2, [(0, 1)]),
        (dict(symmetric=True), 2, [(0, 1), (1, 0)]),
        (dict(), 3, [(0, 2), (1, 2)]),
        (dict(target_views=[0]), 3, [(1, 0), (2, 0)]),
        (dict(symmetric=True), 3, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]),
    ],
)
def test_one_step_equals_an_independent_loop(method, options, count, pairs):
    x = views(count)
    model, reference = build(method, **options), build(method)
    expected = sum(PAIR_LOSS[method](reference, x[i], x[j]) for i, j in pairs) / len(pairs)
    assert_equals(model, reference, model(x, mode="loss"), expected)


def test_target_and_queue_change_after_the_optimiser_step_only(method):
    model = build(method, momentum=0.9, symmetric=True)
    x = views()
    queue = model.queue.keys.clone()
    target = [p.clone() for p in model.target.parameters()]
    with torch.no_grad():
        keys = torch.cat([embed(model.target, view) for view in x])
    model(x, mode="loss")
    model.discard_step()
    model.queue.commit()
    assert torch.equal(model.queue.keys, queue)
    model(x, mode="loss")
    assert torch.equal(model.queue.keys, queue)
    assert all(torch.equal(p, t) for p, t in zip(model.target.parameters(), target, strict=True))
    model.after_optimizer_step()
    torch.testing.assert_close(model.queue.keys[:12], keys)
    assert torch.equal(model.queue.keys[12:], queue[12:])
    online = [*model.backbone.parameters(), *model.projector.parameters()]
    for p, t, o in zip(model.target.parameters(), target, online, strict=True):
        torch.testing.assert_close(p, 0.9 * t + 0.1 * o)


def test_by_default_only_the_last_view_is_a_key(method):
    model = build(method)
    model(views(3), mode="loss")
    model.after_optimizer_step()
    assert int(model.queue.pointer) == 6


def test_the_target_starts_as_a_copy(method):
    model = build(method)
    model.init_weights()
    assert torch.equal(model.target.backbone.conv1.weight, model.backbone.conv1.weight)


def test_local_views_are_queries_only(method):
    model = build(method, symmetric=True)
    out = model(views(2) + views(1, size=16, seed=1), mode="loss")
    assert torch.isfinite(out["loss"])
    model.after_optimizer_step()
    assert int(model.queue.pointer) == 12


def test_embeddings_are_fp32_under_autocast(method):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = build(method)(views(), mode="loss")
    assert out["loss"].dtype == out["positive_similarity"].dtype == torch.float32
    assert not out["positive_similarity"].requires_grad


def train(method, steps=5):
    model = build(method, momentum=0.9, symmetric=True).eval()  # BN of 6 samples magnifies rounding
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9
    )
    losses = []
    for step in range(steps):
        out = model(views(seed=step), mode="loss")
        optimizer.zero_grad()
        out["loss"].backward()
        optimizer.step()
        model.after_optimizer_step()
        losses.append(out["loss"].item())
    return losses


def test_golden_losses_of_a_seeded_run(method):
    """Fixed once; a change of the method, the queue or the target shows here."""
    assert train(method) == pytest.approx(GOLDEN[method], abs=1e-4)
