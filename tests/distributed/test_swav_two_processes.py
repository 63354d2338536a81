"""SwAV on two gloo processes equals one process with the joint batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from helpers.run_tool import free_port, run_ranks
from mmengine.model import MMDistributedDataParallel

from sce_video.models.algorithms import SwAV
from sce_video.models.losses import sinkhorn, swav_loss

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
STEPS = 6
BATCH = 8  # of all processes together


def joint_scores() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(BATCH, 5, generator=generator) * 2 - 1 for _ in range(3)]


def run_losses(rank: int, world: int) -> dict:
    """Codes, loss and gradient of this rank's samples, and codes of unequal shares."""
    scores = [s[rank::world].clone().requires_grad_() for s in joint_scores()]
    codes = [sinkhorn(scores[0]), sinkhorn(scores[1]), None]
    loss = swav_loss(scores, codes, tau=0.1)
    loss.backward()
    joint = joint_scores()[2]
    share = joint if world == 1 else (joint[:3], joint[3:])[rank]
    large = joint_scores()[0].mul(400).half()[rank::world]
    return {
        "codes": torch.stack(codes[:2], dim=1),
        "loss": loss.detach(),
        "gradient": torch.stack([s.grad for s in scores], dim=1),
        "unequal": sinkhorn(share),
        "large": sinkhorn(large),
    }


def run_method(rank: int, world: int) -> dict:
    """Steps of plain SGD with a queue that the ranks cannot share evenly."""
    torch.manual_seed(0)
    algorithm = SwAV(
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4, zero_init_residual=False),
        projector=dict(
            type="MLP", hidden_channels=16, out_channels=8, num_layers=2, norm_output=False
        ),
        num_prototypes=6,
        frozen_prototype_steps=2,
        queue_size=13,
        queue_start_steps=1,
        joint_views=True,
    )
    algorithm.init_weights()
    model = algorithm
    if world > 1:
        model = MMDistributedDataParallel(module=algorithm, broadcast_buffers=False)
    model.eval()  # there is no SyncBN on CPUs: both sides compute the same function
    optimizer = torch.optim.SGD(algorithm.parameters(), lr=0.1)
    losses, gradients = [], {}
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 + step)
        joint = [torch.rand(BATCH, 3, 2, 32, 32, generator=generator) for _ in range(2)]
        optimizer.zero_grad()
        loss = model([view[rank::world] for view in joint], mode="loss")["loss"]
        loss.backward()
        gradients = {n: p.grad.clone() for n, p in algorithm.named_parameters()}
        algorithm.before_optimizer_step()
        optimizer.step()
        algorithm.after_optimizer_step()
        losses.append(loss.item())
    assert algorithm.queue.keys[-1].any()
    return {
        "losses": torch.tensor(losses, dtype=torch.float64),
        "last_gradients": gradients,
        "state": {name: value.clone() for name, value in algorithm.state_dict().items()},
    }


def worker(rank: int, world: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    torch.save((run_losses(rank, world), run_method(rank, world)), Path(folder) / f"{rank}.pt")
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads occasionally abort a process that ends in the usual way


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    run_ranks(worker, 2, free_port(), str(folder))
    ranks = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    one = (run_losses(0, 1), run_method(0, 1))
    return [(one[part], ranks[0][part], ranks[1][part]) for part in (0, 1)]


def interleaved(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.stack([first, second], dim=1).flatten(0, 1)


def test_codes(results):
    one, first, second = results[0]
    for name in ("codes", "large"):
        both = interleaved(first[name], second[name])
        torch.testing.assert_close(both, one[name], rtol=1e-4, atol=1e-6)
    both = torch.cat([first["unequal"], second["unequal"]])
    torch.testing.assert_close(both, one["unequal"], rtol=1e-4, atol=1e-6)


def test_loss_and_gradient(results):
    """Each rank has the mean over its half of the samples; DDP averages the gradients."""
    one, first, second = results[0]
    torch.testing.assert_close((first["loss"] + second["loss"]) / 2, one["loss"])
    both = interleaved(first["gradient"], second["gradient"]) / 2
    torch.testing.assert_close(both, one["gradient"], rtol=1e-4, atol=1e-7)


def test_the_method_with_a_queue(results):
    one, first, second = results[1]
    mean = (first["losses"] + second["losses"]) / 2
    torch.testing.assert_close(mean, one["losses"], rtol=1e-5, atol=1e-5)
    assert not torch.equal(first["losses"], second["losses"])  # they saw different samples
    for part in ("last_gradients", "state"):
        assert set(one[part]) == set(first[part])
        for name, value in one[part].items():
            assert torch.equal(first[part][name], second[part][name]), name
            scale = value.abs().max().item()
            torch.testing.assert_close(
                first[part][name], value, rtol=1e-3, atol=1e-4 * scale + 1e-7, msg=name
            )
