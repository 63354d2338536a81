"""Prototypes: unit vectors, similarities in fp32."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from sce_video.engine import OptimizerStepHook
from sce_video.models.algorithms import SwAV
from sce_video.models.algorithms.swav import Prototypes


def test_similarities_with_unit_vectors():
    prototypes = Prototypes(6, 4)
    norms = prototypes.weight.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(4))
    z = F.normalize(torch.randn(5, 6), dim=1)
    expected = z @ prototypes.weight.T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = prototypes(z)
    assert scores.dtype == torch.float32 and torch.equal(scores, expected)
    prototypes.weight.data.mul_(3)
    prototypes.normalise()
    torch.testing.assert_close(prototypes.weight.norm(dim=1), norms)


def test_one_prototype_is_refused():
    with pytest.raises(ValueError, match="num_prototypes must be at least 2, got 1"):
        Prototypes(6, 1)


# One step of SwAV against an independent implementation; its queue, its frozen prototypes.


K, D = 6, 8


def build(**changes):
    torch.manual_seed(0)
    options = dict(
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4),
        projector=dict(
            type="MLP", hidden_channels=16, out_channels=D, num_layers=2, norm_output=False
        ),
        num_prototypes=K,
    )
    model = SwAV(**{**options, **changes})
    model.init_weights()
    return model


def views(count=2, n=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(n, 3, 2, 32, 32, generator=generator) for _ in range(count)]


def embed(model, view):
    return F.normalize(model.projector(model.backbone(view).mean((2, 3, 4))), dim=1)


def author_codes(scores, batch):
    """``distributed_sinkhorn`` of facebookresearch/swav on one process."""
    q = torch.exp(scores.detach().double() / 0.05).t()
    q /= q.sum()
    for _ in range(3):
        q /= q.sum(dim=1, keepdim=True)
        q /= K
        q /= q.sum(dim=0, keepdim=True)
        q /= scores.shape[0]
    return (q * scores.shape[0]).t()[-batch:].float()


def author_loss(model, x, assigned, queues=None):
    """The loss of ``main_swav.py: train``; the queue is put before the batch."""
    weight = model.prototypes.weight
    z = [embed(model, view) for view in x]
    out = [embedding @ weight.t() for embedding in z]
    loss = torch.zeros(())
    for number, crop in enumerate(assigned):
        scores = out[crop]
        if queues is not None:
            scores = torch.cat([queues[number] @ weight.t(), scores])
        q = author_codes(scores, len(x[crop]))
        others = [v for v in range(len(x)) if v != crop]
        subloss = 0
        for v in others:
            subloss -= torch.mean(torch.sum(q * F.log_softmax(out[v] / 0.1, dim=1), dim=1))
        loss = loss + subloss / len(others)
    return loss / len(assigned), z


def same_gradients(model, reference):
    for (name, p), (_, q) in zip(
        model.named_parameters(), reference.named_parameters(), strict=True
    ):
        scale = q.grad.abs().max().item()
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4 * scale + 1e-7, msg=name)


@pytest.mark.parametrize(
    ("count", "options", "assigned"),
    [
        (2, {}, (0, 1)),
        (4, {}, (0, 1)),
        (3, dict(target_views=(2,)), (2,)),
        (3, dict(target_views=(2, 0, 1)), (2, 0, 1)),
    ],
)
def test_a_step_equals_an_independent_implementation(count, options, assigned):
    x = views(count)
    model, reference = build(**options), build(**options)
    out = model(x, mode="loss")
    expected, _ = author_loss(reference, x, assigned)
    assert out["loss"].item() == pytest.approx(expected.item(), abs=1e-5)
    out["loss"].backward()
    expected.backward()
    same_gradients(model, reference)
    assert 0 < out["code_entropy"].item() < math.log(K) == pytest.approx(model.chance_level())


def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x, mode="loss")["loss"]
    loss.backward()
    optimizer.step()
    model.after_optimizer_step()
    return loss.item()


def optimizer_of(model, kind=torch.optim.SGD, **options):
    """An optimiser that tells the model of its steps, as in a training."""
    optimizer = kind(model.parameters(), **options)
    wrapper = SimpleNamespace(optimizer=optimizer)
    OptimizerStepHook().before_train(SimpleNamespace(model=model, optim_wrapper=wrapper))
    return optimizer


def test_prototypes_are_frozen_at_first_and_unit_vectors_always():
    model = build(frozen_prototype_steps=2)
    optimizer = optimizer_of(model, lr=0.5, momentum=0.9, weight_decay=0.1)
    initial = model.prototypes.weight.detach().clone()
    moved = []
    for number in range(4):
        step(model, optimizer, views(seed=number))
        torch.testing.assert_close(model.prototypes.weight.norm(dim=1), torch.ones(K))
        moved.append(bool((model.prototypes.weight - initial).abs().max() > 1e-4))
    assert moved == [False, False, True, True]
    assert int(model.steps.step) == 4


def test_the_queue_is_filled_from_its_step_on_and_used_when_full():
    """Five samples a step, filled in steps 1 and 2, the batch of 10 before the last enters."""
    x = [views(3, seed=number) for number in range(5)]
    model = build(queue_size=10, queue_start_steps=1, target_views=(2, 0))
    embeddings = []
    for number, batch in enumerate(x):
        queues = None
        if number >= 3:
            queues = [torch.cat(pair) for pair in zip(*embeddings[-2:], strict=True)]
        reference = copy.deepcopy(model)
        expected, z = author_loss(reference, batch, (2, 0), queues)
        without, _ = author_loss(reference, batch, (2, 0))
        loss = model(batch, mode="loss")["loss"]
        assert loss.item() == pytest.approx(expected.item(), abs=1e-5), number
        assert (abs(loss.item() - without.item()) > 1e-4) == (number >= 3)
        model.zero_grad()
        loss.backward()
        expected.backward()
        same_gradients(model, reference)
        model.after_optimizer_step()
        embeddings.append([z[2].detach(), z[0].detach()])


def test_a_skipped_step_leaves_queue_and_count():
    model = build(queue_size=10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(views(), mode="loss")
    model.discard_step()
    state = model.state_dict()
    assert torch.equal(state["queue.keys"], before["queue.keys"])
    assert int(state["steps.step"]) == 0
    model.after_optimizer_step()
    assert not model.queue.keys.any()
    assert int(model.steps.step) == 1


# Losses of a seeded run, computed once.
GOLDEN = [5.033580, 8.062334, 2.030289, 3.795650, 5.848193]


def test_golden_losses():
    # BN of five samples magnifies rounding a thousandfold a step
    model = build(queue_size=10, frozen_prototype_steps=1).eval()
    optimizer = optimizer_of(model, lr=0.1)
    losses = [step(model, optimizer, views(seed=number)) for number in range(5)]
    assert losses == pytest.approx(GOLDEN, rel=1e-4)


def test_errors():
    with pytest.raises(ValueError, match="at least two views, got 1"):
        build()(views(1), mode="loss")
    with pytest.raises(ValueError, match=r"target_views \[0, 2\] must be below"):
        build(target_views=(0, 2))(views(2), mode="loss")
    with pytest.raises(ValueError, match="different indices of views"):
        build(target_views=())
    with pytest.raises(ValueError, match="num_prototypes must be at least 2, got 1"):
        build(num_prototypes=1)
    for name in ("frozen_prototype_steps", "queue_size", "queue_start_steps"):
        with pytest.raises(ValueError, match=f"{name} must not be negative, got -1"):
            build(**{name: -1})
    with pytest.raises(ValueError, match="tau=0"):
        build(tau=0)
    with pytest.raises(ValueError, match="epsilon must be above 0, got -1"):
        build(epsilon=-1)
