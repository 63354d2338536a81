"""Which calls count as waits of the host, and on which tensors."""

from __future__ import annotations

import pytest
import torch
from helpers.host_waits import host_waits

from sce_video.utils.tensors import HostValue

WAITING = {
    "item": lambda x: (x * 2).sum().item(),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x.sum()),
    "bool": lambda x: bool(x.any()),
    "if": lambda x: 1 if x.sum() > 0 else 0,
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "numpy": lambda x: x.numpy(),
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x + 1),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(x.outer(x)),
    "singular values": lambda x: torch.linalg.svdvals(x.outer(x)),
    "a list to the device": lambda x: torch.tensor([1.0], device=x.device),
    "a number to the device": lambda x: x.new_tensor(3),
    "a tensor to the device": lambda x: torch.ones(3).to(x.device),
    "deferred": lambda x: HostValue(x, torch.sum).item(),
}
QUIET = {
    "arithmetic": lambda x: (x @ x + 1).clamp(min=0),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "fill a mask": lambda x: x.clone().masked_fill_(x > 0, 0.0),
    "index": lambda x: x[torch.arange(2)],
    "number": lambda x: torch.full((), 3, device=x.device),
    "asynchronous": lambda x: torch.ones(3).to(x.device, non_blocking=True) + x[0],
    "of the host": lambda x: (torch.ones(3).sum().item(), torch.ones(3).tolist()),
    "shape": lambda x: len(x) + x.numel() + x.shape[0],
    "cast": lambda x: x.to(torch.float64).float(),
}


def count(call) -> int:
    x = torch.tensor([1.0, -2.0, 3.0])
    with host_waits([x]) as found:
        call(x)
    assert all(site.startswith("test_host_waits.py:") or "utils/" in site for site in found)
    return sum(found.values())


@pytest.mark.parametrize("name", WAITING)
def test_counted(name):
    assert count(WAITING[name]) == 1


@pytest.mark.parametrize("name", QUIET)
def test_not_counted(name):
    assert count(QUIET[name]) == 0


def test_what_a_backward_pass_reads_is_counted():
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * gradient.sum().item()

    x = torch.ones(3, requires_grad=True)
    with host_waits([x]) as found:
        Reads.apply(x).sum().backward()
    assert sum(found.values()) == 1 and "_local_scalar_dense" in next(iter(found))


def test_nothing_is_counted_afterwards():
    x = torch.ones(2)
    with host_waits([x]) as found:
        pass
    x.tolist()
    assert not found
