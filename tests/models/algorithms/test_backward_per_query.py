"""One backward pass per query equals one for all, with the activations of one query."""

from __future__ import annotations

import pytest
import torch
from helpers.query_methods import QUERY_METHODS, build_method, gradients_of, make_views


@pytest.fixture(params=QUERY_METHODS)
def name(request):
    return request.param


def both(name, **options):
    """The method with one backward pass and with one per query, in fp64."""
    models = [build_method(name, **options, backward_per_query=each) for each in (False, True)]
    for model in models:
        for network in ("backbone", "projector", "predictor", "target", "queue"):
            getattr(model, network, torch.nn.Identity()).double()
    return models


def step(model, seed=0, count=3):
    scalars = model([view.double() for view in make_views(count, seed=seed)], mode="loss")
    scalars["loss"].backward()
    return scalars


@pytest.mark.parametrize("options", [{}, {"target_views": (0,)}], ids=["all keys", "one key"])
def test_scalars_gradients_and_batch_norms_are_equal(name, options):
    plain, each = both(name, **options)
    for seed in range(2):  # micro-batches of an accumulated step
        expected, found = step(plain, seed), step(each, seed)
        assert list(expected) == list(found)
        for key, value in expected.items():
            assert torch.equal(value, found[key]), key
    wanted, got = gradients_of(plain), gradients_of(each)
    assert wanted.keys() == got.keys()
    assert not any(parameter.startswith("target.") for parameter in got)
    for parameter, gradient in wanted.items():
        # fp32 from the loss to the embeddings, where a gradient of several pairs is added up
        scale = gradient.abs().max().item()
        torch.testing.assert_close(
            got[parameter], gradient, rtol=0, atol=1e-6 * scale + 1e-9, msg=parameter
        )
    for plain_buffer, buffer in zip(plain.named_buffers(), each.named_buffers(), strict=True):
        assert torch.equal(plain_buffer[1], buffer[1]), plain_buffer[0]


def test_the_queue_gets_the_same_keys(name):
    plain, each = both(name)
    for model in (plain, each):
        step(model)
        model.after_optimizer_step()
    if hasattr(plain, "queue"):
        assert int(each.queue.pointer) == 18
        assert torch.equal(plain.queue.keys, each.queue.keys)
    for a, b in zip(plain.target.parameters(), each.target.parameters(), strict=True):
        assert torch.equal(a, b)


class Saved:
    """A tensor that the graph keeps for the backward pass; counts the bytes alive."""

    alive = peak = 0

    def __init__(self, tensor):
        self.tensor = tensor
        self.bytes = tensor.numel() * tensor.element_size()
        Saved.alive += self.bytes
        Saved.peak = max(Saved.peak, Saved.alive)

    def __del__(self):
        Saved.alive -= self.bytes


def peak_of_a_step(name, count, **options):
    model = build_method(name, **options)
    assert Saved.alive == 0
    Saved.peak = 0
    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        loss = model(make_views(count), mode="loss")["loss"]
        after_forward = Saved.alive
        loss.backward()
    del loss
    return Saved.peak, after_forward


def test_activations_of_one_query_at_a_time(name):
    one_query, _ = peak_of_a_step(name, 2, symmetric=False)
    plain, kept = peak_of_a_step(name, 4)
    assert kept > 3.8 * one_query and plain >= kept
    each, kept = peak_of_a_step(name, 4, backward_per_query=True)
    assert kept == 0
    assert each < 1.1 * one_query  # the loss has three keys for one


def test_no_graph_without_gradient_mode(name):
    model = build_method(name, backward_per_query=True).eval()
    with torch.no_grad():
        scalars = model(make_views(), mode="loss")
    assert not scalars["loss"].requires_grad
    assert all(p.grad is None for p in model.parameters())


def test_bf16_trains_and_fp16_is_refused(name):
    # A transformer: torch 2.13's bf16 convolutions of such small sizes return NaN on some CPUs.
    backbone = dict(
        type="VisionTransformer3d",
        embed_dims=32,
        depth=2,
        num_heads=2,
        patch_size=8,
        tubelet_size=2,
        grid_size=(1, 4, 4),
    )
    plain, each = (
        build_method(name, backbone=backbone, backward_per_query=each) for each in (False, True)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [model(make_views(), mode="loss")["loss"] for model in (plain, each)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    wanted, got = gradients_of(plain), gradients_of(each)
    flat = [torch.cat([g.flatten() for g in x.values()]) for x in (wanted, got)]
    assert torch.cosine_similarity(*flat, dim=0) > 0.999
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(ValueError, match="float16"):
        each(make_views(), mode="loss")
