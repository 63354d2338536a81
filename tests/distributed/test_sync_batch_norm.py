"""Batch norm over the samples of all ranks equals batch norm of the joint batch."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.host_waits import host_waits
from helpers.run_tool import run_gloo
from torch import nn

from sce_video.models.modules.sync_batch_norm import (
    SyncBatchNorm,
    check_equal_batches,
    convert_sync_batch_norm,
)
from sce_video.registry import MODELS

#: Batch norm of every kind, with the shape of a joint batch.
LAYERS = {
    "features": (lambda: nn.BatchNorm1d(6), (12, 6)),
    "images": (lambda: nn.BatchNorm2d(6), (12, 6, 5, 4)),
    "clips": (lambda: nn.BatchNorm3d(6), (12, 6, 2, 5, 4)),
    "no weight": (lambda: nn.BatchNorm1d(6, affine=False), (12, 6)),
    "mean of all batches": (lambda: nn.BatchNorm3d(6, momentum=None), (12, 6, 2, 3, 3)),
}


def joint_batch(shape: tuple[int, ...], offset: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 2 + offset


def prepared(name: str) -> nn.Module:
    """Return a layer of float64 with weights that are not all one."""
    layer = LAYERS[name][0]().double()
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5
    return layer


def passes(layer: nn.Module, x: torch.Tensor, steps: int = 2) -> dict[str, torch.Tensor]:
    """Return outputs, gradients and running statistics of some steps on the samples of a rank."""
    for step in range(steps):
        layer.zero_grad()
        own = (x * (1 + step)).detach().requires_grad_()
        out = layer(own)
        (
            out * torch.linspace(-1, 2, out[0].numel()).view(out[0].shape).to(out)
        ).square().sum().backward()
    found = {"out": out.detach(), "of input": own.grad}
    found |= {f"of {name}": parameter.grad for name, parameter in layer.named_parameters()}
    return found | {f"buffer {name}": buffer for name, buffer in layer.named_buffers()}


def all_layers(rank: int, world: int) -> dict[str, dict[str, torch.Tensor]]:
    found = {}
    for name, (_, shape) in LAYERS.items():
        layer = convert_sync_batch_norm(prepared(name)).train()
        assert isinstance(layer, SyncBatchNorm)
        assert list(layer.state_dict()) == list(prepared(name).state_dict())
        found[name] = passes(layer, joint_batch(shape)[rank::world])
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_values_and_gradients_equal_batch_norm_of_the_joint_batch(tmp_path, world):
    ranks = run_gloo(all_layers, tmp_path, count=world)
    for name, (_, shape) in LAYERS.items():
        expected = passes(prepared(name).train(), joint_batch(shape))
        for key, value in expected.items():
            if key in ("out", "of input"):
                found = torch.empty_like(value)
                for rank in range(world):
                    found[rank::world] = ranks[rank][name][key]
            elif key.startswith("buffer"):
                found = ranks[0][name][key]
                assert all(torch.equal(found, rank[name][key]) for rank in ranks)
            else:  # DistributedDataParallel adds up the gradients of the ranks
                found = sum(rank[name][key] for rank in ranks)
            torch.testing.assert_close(found, value, rtol=1e-10, atol=1e-10, msg=f"{name}, {key}")


def far_from_zero(rank: int, world: int) -> torch.Tensor:
    x = joint_batch((64, 6, 2, 4, 4), offset=5000.0)[rank::world]
    layer = convert_sync_batch_norm(nn.BatchNorm3d(6)).train()
    assert layer(x.to(torch.bfloat16)).dtype == torch.bfloat16
    return layer(x.float()).detach()


def test_no_digits_are_lost_far_from_zero(tmp_path):
    """A sum of squares in float32 would have a variance of the wrong sign here."""
    found = run_gloo(far_from_zero, tmp_path)
    expected = nn.BatchNorm3d(6).double().train()(joint_batch((64, 6, 2, 4, 4), offset=5000.0))
    for rank, out in enumerate(found):
        # An input of 5,000 is itself rounded by 2.4e-4 in float32, and the deviation is 2.
        torch.testing.assert_close(out.double(), expected[rank::2].detach(), rtol=0, atol=2e-3)


def other_modes(rank: int, world: int) -> bool:
    x = joint_batch((12, 6, 2, 5, 4))[rank::world]
    layer = prepared("clips")
    synchronised = convert_sync_batch_norm(copy.deepcopy(layer))
    passes(synchronised.train(), x)
    layer.load_state_dict(synchronised.state_dict())
    assert torch.equal(layer.eval()(x), synchronised.eval()(x))
    last = x.contiguous(memory_format=torch.channels_last_3d)
    out = synchronised.train()(last)
    return out.is_contiguous(memory_format=torch.channels_last_3d)


def test_evaluation_mode_and_memory_format(tmp_path):
    assert run_gloo(other_modes, tmp_path) == [True, True]


def network() -> nn.Module:
    torch.manual_seed(0)
    backbone = dict(type="ResNet3dSlowPath", depth=18, base_channels=2)
    return convert_sync_batch_norm(MODELS.build(backbone)).train()


def graphs_and_waits(rank: int, world: int) -> tuple[int, int, dict[str, int]]:
    backbone, clip = network(), torch.randn(2, 3, 2, 32, 32)
    with host_waits([*backbone.parameters(), *backbone.buffers()]) as waits:
        backbone(clip).sum().backward()
    explained = torch._dynamo.explain(backbone.forward)(clip)
    return explained.graph_count, explained.graph_break_count, dict(waits)


def test_a_network_is_one_graph_and_no_rank_waits(tmp_path):
    for found in run_gloo(graphs_and_waits, tmp_path):
        assert found == (1, 0, {})


def test_unequal_batches_are_refused():
    check_equal_batches(10, 4, drop_last=True)
    check_equal_batches(8, 4, drop_last=False)
    with pytest.raises(ValueError, match="has 2 samples, but the others have 4[^$]*drop_last=True"):
        check_equal_batches(10, 4, drop_last=False)
