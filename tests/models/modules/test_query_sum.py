"""One backward pass per query gives the same loss and gradients as one for all."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from sce_video.models.algorithms.base import QuerySum


class Method(nn.Module):
    """What a sum needs of a method: parameters, the switch, collapse metrics."""

    def __init__(self, each: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        self.unused = nn.Parameter(torch.ones(3))
        self.backward_per_query = each

    def collapse_metrics(self, h, z):
        return {"h_std": h.detach().std()}

    def total(self, queries=range(5)):
        sums = QuerySum(self)
        for i in queries:
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(i))
            h = self.layers(x)
            sums.add(h, h, {"loss": h.square().mean() + h.sum().cos(), "mean": h.mean()})
        return sums.total()


def gradients(method):
    return [p.grad for p in method.parameters()]


def test_same_loss_and_gradients_as_one_backward_pass_for_all():
    one, each = Method(False), Method(True)
    expected, found = one.total(), each.total()
    (3 * expected["loss"]).backward()
    (3 * found["loss"]).backward()
    assert list(found) == ["loss", "mean", "h_std"]
    for name in expected:
        assert torch.equal(found[name], expected[name])
    for a, b in zip(gradients(one), gradients(each), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)
    assert each.unused.grad is None


def test_metrics_are_those_of_the_first_query_and_have_no_graph():
    found, first = Method(True).total(range(3)), Method(True).total([0])
    assert torch.equal(found["h_std"], first["h_std"])
    assert not found["mean"].requires_grad


def test_without_gradient_mode_nothing_is_kept():
    with torch.no_grad():
        found = Method(True).total()
    assert not found["loss"].requires_grad
    torch.testing.assert_close(found["loss"], Method(False).total()["loss"].detach())


def test_gradients_of_bf16_parameters_are_added_up_in_fp32():
    method = Method(True)
    method.layers = nn.Sequential(nn.Linear(6, 4).to(torch.bfloat16))
    exact = copy.deepcopy(method.layers).float()
    sums = QuerySum(method)
    x = torch.ones(1, 6)
    for _ in range(512):  # in bf16 the sum would stop growing at 256
        h = method.layers(x.bfloat16())
        sums.add(h, h, {"loss": h.float().sum()})
    sums.total()["loss"].backward()
    (512 * exact(x).sum()).backward()
    torch.testing.assert_close(method.layers[0].weight.grad.float(), exact[0].weight.grad)


def test_fp16_autocast_is_refused():
    with (
        torch.autocast("cpu", dtype=torch.float16),
        pytest.raises(ValueError, match="backward_per_query=True takes gradients before"),
    ):
        Method(True).total()
