"""One backward pass per query gives the same loss and gradients as a single one."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.query_methods import QUERY_METHODS, TINY, build_method, gradients_of, make_views
from torch import nn

from sce_video.models.algorithms.base import QuerySum


class Method(nn.Module):
    """Stand-in for a method, with the parts that a QuerySum needs."""

    def __init__(self, each: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        self.backward_per_query = each

    def collapse_metrics(self, h, z):
        return {"h_std": h.detach().std()}


def test_gradients_of_bf16_parameters_are_added_up_in_fp32():
    method = Method(True)
    method.layers = nn.Sequential(nn.Linear(6, 4).to(torch.bfloat16))
    exact = copy.deepcopy(method.layers).float()
    sums = QuerySum(method)
    x = torch.ones(1, 6)
    for _ in range(512):  # in bf16, the sum would stop growing at 256
        h = method.layers(x.bfloat16())
        sums.add(h, h, {"loss": h.float().sum()})
    sums.total()["loss"].backward()
    (512 * exact(x).sum()).backward()
    torch.testing.assert_close(method.layers[0].weight.grad.float(), exact[0].weight.grad)


def test_fp16_autocast_is_refused():
    method = Method(True)
    with (
        torch.autocast("cpu", dtype=torch.float16),
        pytest.raises(ValueError, match="backward_per_query=True computes gradients before"),
    ):
        h = method.layers(torch.ones(1, 6))
        QuerySum(method).add(h, h, {"loss": h.sum()})


# One backward pass per query equals a single one, but keeps the activations of one query.


CHECKPOINTED = {**TINY, "with_cp": True}


def both(name, backbone):
    """Build a method in fp64 twice, with a single backward pass and with one per query."""
    each = build_method(name, backbone=backbone, backward_per_query=True)
    models = [build_method(name), each]
    for model in models:
        for network in ("backbone", "projector", "predictor", "target", "queue"):
            getattr(model, network, torch.nn.Identity()).double()
    return models


def step(model, seed=0, count=3):
    scalars = model([view.double() for view in make_views(count, seed=seed)], mode="loss")
    scalars["loss"].backward()
    return scalars


@pytest.mark.parametrize(
    ("name", "backbone"), [*((name, TINY) for name in QUERY_METHODS), ("SCE", CHECKPOINTED)]
)
def test_scalars_gradients_and_batch_norms_are_equal(name, backbone):
    plain, each = both(name, backbone)
    for seed in range(2):  # micro-batches of an accumulated step
        expected, found = step(plain, seed), step(each, seed)
        assert list(expected) == list(found)
        for key, value in expected.items():
            assert torch.equal(value, found[key]), key
    wanted, got = gradients_of(plain), gradients_of(each)
    assert wanted.keys() == got.keys()
    assert not any(parameter.startswith("target.") for parameter in got)
    for parameter, gradient in wanted.items():
        # fp32 from the loss to the embeddings, where the gradients of several pairs are added up
        scale = gradient.abs().max().item()
        torch.testing.assert_close(
            got[parameter], gradient, rtol=0, atol=1e-6 * scale + 1e-9, msg=parameter
        )
    for plain_buffer, buffer in zip(plain.named_buffers(), each.named_buffers(), strict=True):
        assert torch.equal(plain_buffer[1], buffer[1]), plain_buffer[0]


class Saved:
    """A tensor that the graph keeps for the backward pass, and that counts the bytes in use."""

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


def test_activations_of_one_query_at_a_time():
    one_query, _ = peak_of_a_step("SCE", 2, symmetric=False)
    plain, kept = peak_of_a_step("SCE", 4)
    assert kept > 3.8 * one_query and plain >= kept
    each, kept = peak_of_a_step("SCE", 4, backward_per_query=True)
    assert kept == 0
    assert each < 1.1 * one_query  # the loss compares three keys instead of one


def test_checkpointing_keeps_the_inputs_of_blocks():
    _, plain = peak_of_a_step("SCE", 2)
    _, kept = peak_of_a_step("SCE", 2, backbone=CHECKPOINTED)
    assert kept < 0.5 * plain
