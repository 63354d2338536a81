"""SCE on two gloo processes equals one process with the joint batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from helpers.run_tool import free_port, run_ranks
from mmengine.model import MMDistributedDataParallel

from sce_video.models import SCE

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
STEPS = 6
LATER_STEPS = 60  # of the two processes only
BATCH = 8  # of all processes together


def build() -> SCE:
    torch.manual_seed(0)
    model = SCE(
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4, zero_init_residual=False),
        projector=dict(
            type="MLP", hidden_channels=16, out_channels=8, num_layers=3, norm_output=True
        ),
        predictor=dict(type="MLP", hidden_channels=16, num_layers=2, norm_output=False),
        queue_size=36,  # not a multiple of the keys of a step: the pointer wraps inside a batch
        momentum=0.9,
    )
    model.init_weights()
    # On CPUs there is no SyncBN: with BN in eval mode both sides compute the same function.
    return model.eval()


def joint_views(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.rand(BATCH, 3, 2, 32, 32, generator=generator) for _ in range(2)]


def run(rank: int, world: int) -> dict:
    """Steps of plain SGD; returns what is compared."""
    algorithm = build()
    model = algorithm
    if world > 1:
        model = MMDistributedDataParallel(module=algorithm, broadcast_buffers=False)
        model.eval()
    optimizer = torch.optim.SGD([p for p in algorithm.parameters() if p.requires_grad], lr=0.05)
    losses, first_gradients = [], {}
    early: dict = {}
    for step in range(STEPS + LATER_STEPS if world > 1 else STEPS):
        if step == STEPS:
            early = snapshot(algorithm)
        # Rank r has the samples r, r + world, ... as with ResumableSampler.
        views = [view[rank::world] for view in joint_views(step)]
        optimizer.zero_grad()
        loss = model(views, mode="loss")["loss"]
        loss.backward()
        if step == 0:
            first_gradients = {
                n: p.grad.clone() for n, p in algorithm.named_parameters() if p.grad is not None
            }
        optimizer.step()
        algorithm.after_optimizer_step()
        losses.append(loss.item())
    return {
        "losses": torch.tensor(losses[:STEPS], dtype=torch.float64),
        "gradients": first_gradients,
        **(early or snapshot(algorithm)),
        "late_queue": algorithm.queue.keys.clone(),
        "late_pointer": algorithm.queue.pointer.clone(),
    }


def snapshot(algorithm: SCE) -> dict:
    """State that the steps change."""
    return {
        "queue": algorithm.queue.keys.clone(),
        "pointer": algorithm.queue.pointer.clone(),
        "target": {n: p.detach().clone() for n, p in algorithm.target.named_parameters()},
        "online": {n: p.detach().clone() for n, p in algorithm.backbone.named_parameters()},
    }


def worker(rank: int, world: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    torch.save(run(rank, world), Path(folder) / f"{rank}.pt")
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads occasionally abort a process that ends in the usual way


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    run_ranks(worker, 2, free_port(), str(folder))
    return run(0, 1), torch.load(folder / "0.pt"), torch.load(folder / "1.pt")


def test_loss(results):
    one, first, second = results
    torch.testing.assert_close(
        (first["losses"] + second["losses"]) / 2, one["losses"], rtol=1e-5, atol=1e-5
    )
    assert not torch.equal(first["losses"], second["losses"])  # they saw different samples


def test_gradients(results):
    one, first, second = results
    assert set(one["gradients"]) == set(first["gradients"])
    assert any(n.startswith("predictor") for n in one["gradients"])
    for name, gradient in one["gradients"].items():
        assert torch.equal(first["gradients"][name], second["gradients"][name])
        scale = gradient.abs().max().item()
        torch.testing.assert_close(
            first["gradients"][name], gradient, rtol=1e-4, atol=1e-4 * scale + 1e-8, msg=name
        )


def test_queue_in_value_and_order(results):
    one, first, second = results
    assert torch.equal(first["queue"], second["queue"])
    assert int(first["pointer"]) == int(one["pointer"]) == STEPS * BATCH * 2 % 36
    torch.testing.assert_close(first["queue"], one["queue"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", ["target", "online"])
def test_weights(results, part):
    one, first, second = results
    for name, value in one[part].items():
        assert torch.equal(first[part][name], second[part][name])
        torch.testing.assert_close(first[part][name], value, rtol=1e-4, atol=1e-5, msg=name)
