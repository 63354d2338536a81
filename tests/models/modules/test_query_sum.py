"""Sums over queries with one backward pass for each, against the plain sum."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sce_video.models.modules import sum_over_queries


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def terms(model, dtype=torch.float64):
    """Scalars of a query: a loss that is not linear in the network's output, and a logged one."""
    inputs = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(1)).to(dtype)

    def terms_of(query):
        out = model(inputs[query])
        return {"loss": out.logsumexp(1).mean(), "spread": out.detach().float().std()}

    return terms_of


def gradients(model):
    return [p.grad for p in model.parameters()]


def test_loss_and_gradients_are_those_of_the_sum():
    model, reference = network(), network()
    sums = sum_over_queries(terms(model), range(5), list(model.parameters()))
    parts = [terms(reference)(query) for query in range(5)]
    expected = sum(part["loss"] for part in parts)
    torch.testing.assert_close(sums["loss"], expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(sums["spread"], sum(part["spread"] for part in parts))
    (3 * sums["loss"]).backward()  # as divided by the micro-batches of an accumulated step
    (3 * expected).backward()
    torch.testing.assert_close(gradients(model), gradients(reference), rtol=1e-12, atol=1e-14)


def test_one_backward_pass_is_the_default():
    model, reference = network(), network()
    sum_over_queries(terms(model), [2, 4])["loss"].backward()
    (terms(reference)(2)["loss"] + terms(reference)(4)["loss"]).backward()
    assert all(map(torch.equal, gradients(model), gradients(reference)))


def test_gradients_are_added_to_those_of_other_micro_batches_and_losses():
    model, reference = network(), network()
    for _ in range(2):
        loss = sum_over_queries(terms(model), range(5), list(model.parameters()))["loss"]
        (loss + model[0].weight.square().sum()).backward()
        plain = sum_over_queries(terms(reference), range(5))["loss"]
        (plain + reference[0].weight.square().sum()).backward()
    torch.testing.assert_close(gradients(model), gradients(reference), rtol=1e-12, atol=1e-14)


def test_a_parameter_without_effect_gets_no_gradient():
    model = network()
    unused = nn.Parameter(torch.ones(2))
    sum_over_queries(terms(model), range(2), [*model.parameters(), unused])["loss"].backward()
    assert unused.grad is None and all(p.grad is not None for p in model.parameters())


def test_parameters_of_16_bits_are_added_up_in_fp32():
    """64 times 1 + 1/128 in bf16: a sum in bf16 loses the fraction."""
    weight = nn.Parameter(torch.ones((), dtype=torch.bfloat16))
    step = torch.tensor(1.0078125, dtype=torch.bfloat16)
    sum_over_queries(lambda _: {"loss": weight * step}, range(64), [weight])["loss"].backward()
    assert weight.grad.dtype == torch.bfloat16 and weight.grad.item() == 64.5


def test_under_bf16_autocast_backward_runs_in_the_precision_of_forward():
    """fp32 parts of the loss stay fp32 in the backward pass, which runs outside of autocast."""
    model, reference = network(torch.float32), network(torch.float32)
    directions = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))

    def terms_with(module):
        inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))

        def terms_of(query):
            out = module(inputs)
            with torch.autocast("cpu", enabled=False):
                return {"loss": (out.float() @ directions).logsumexp(1).mean() * (query + 1)}

        return terms_of

    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = sum_over_queries(terms_with(model), [0], list(model.parameters()))["loss"]
        plain = sum_over_queries(terms_with(reference), [0])["loss"]
    assert torch.equal(loss, plain)
    loss.backward()
    plain.backward()
    assert all(map(torch.equal, gradients(model), gradients(reference)))


def test_several_queries_under_bf16_autocast():
    model, reference = network(torch.float32), network(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parameters = list(model.parameters())
        loss = sum_over_queries(terms(model, torch.float32), range(5), parameters)["loss"]
        plain = sum_over_queries(terms(reference, torch.float32), range(5))["loss"]
    torch.testing.assert_close(loss, plain)
    loss.backward()
    plain.backward()
    for a, b in zip(gradients(model), gradients(reference), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.02 * b.abs().max().item())


def test_fp16_autocast_is_refused():
    model = network(torch.float32)
    with (
        torch.autocast("cpu", dtype=torch.float16),
        pytest.raises(ValueError, match="--amp bfloat16"),
    ):
        sum_over_queries(terms(model, torch.float32), range(2), list(model.parameters()))


def test_without_gradient_mode_there_is_no_backward_pass():
    model = network()
    with torch.no_grad():
        sums = sum_over_queries(terms(model), range(5), list(model.parameters()))
    assert not sums["loss"].requires_grad
    torch.testing.assert_close(sums["loss"], sum_over_queries(terms(model), range(5))["loss"])
