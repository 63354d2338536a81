"""Losses with candidates of all ranks: two gloo processes equal one in value and gradient.

So does the training of a grid of attentive probes, in the same processes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers.run_tool import free_port, run_ranks
from mmengine.model import MMDistributedDataParallel
from torch import Tensor, nn

from sce_video.engine import MixedPrecisionOptimWrapper
from sce_video.models.heads import AttentiveProbeHead
from sce_video.models.losses import byol_loss, moco_v3_loss, nt_xent_loss
from sce_video.utils.distributed import gather_samples, global_positions

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
N, D = 6, 5  # samples of all processes together


def moco_v3(first: Tensor, second: Tensor) -> Tensor:
    keys = gather_samples(second)
    return moco_v3_loss(first, keys, global_positions(len(first)), tau=0.2)


LOSSES = {
    "nt_xent": lambda first, second: nt_xent_loss(first, second, tau=0.1),
    "moco_v3": moco_v3,
    "byol": byol_loss,
}


def gradients(rank: int, world: int) -> dict[str, Tensor]:
    """Value, gradient of a weight and of the embeddings, of this rank's share of the samples."""
    generator = torch.Generator().manual_seed(0)
    joint = torch.randn(2, N, D, generator=generator, dtype=torch.float64)
    start = torch.randn(D, D, generator=generator, dtype=torch.float64)
    found = {}
    for name, loss in LOSSES.items():
        weight = start.clone().requires_grad_()
        views = [F.normalize(x[rank::world] @ weight, dim=1) for x in joint]
        for view in views:
            view.retain_grad()
        value = loss(*views)
        value.backward()
        found[f"{name} value"] = value.detach()
        found[f"{name} weight"] = weight.grad
        found[f"{name} first"] = views[0].grad
    rows = torch.arange(N)[rank::world]
    found["gathered"] = gather_samples(rows)
    found["positions"] = global_positions(len(rows))
    found["own rows"] = rows
    return found


class Probes(nn.Module):
    """The classifier alone, with the mean loss over the samples of this rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cls_head = AttentiveProbeHead(3, 8, lrs=(0.1, 0.01), weight_decays=(0.5,), num_heads=2)
        self.double()

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        logits = self.cls_head(features)
        return sum(F.cross_entropy(one, labels) for one in logits.unbind(1))


def probe_weights(rank: int, world: int) -> dict[str, Tensor]:
    """Weights of all probes after three steps on this rank's share of the samples."""
    model = Probes()
    groups = model.cls_head.parameter_groups()
    clip = dict(max_norm=0.5, per_group=True)
    optim = MixedPrecisionOptimWrapper(torch.optim.AdamW(groups), "float32", clip_grad=clip)
    wrapped = model if world == 1 else MMDistributedDataParallel(module=model)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        features = torch.randn(N, 8, 2, 3, 3, generator=generator, dtype=torch.float64)
        labels = torch.randint(3, (N,), generator=generator)
        optim.update_params(wrapped(features[rank::world], labels[rank::world]))
    return {f"probes {name}": value for name, value in model.state_dict().items()}


def worker(rank: int, world: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    found = gradients(rank, world) | probe_weights(rank, world)
    torch.save(found, Path(folder) / f"{rank}.pt")
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads occasionally abort a process that ends in the usual way


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    run_ranks(worker, 2, free_port(), str(folder))
    files = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    return gradients(0, 1) | probe_weights(0, 1), files


@pytest.mark.parametrize("name", ["nt_xent", "moco_v3", "byol"])
def test_the_mean_over_ranks_is_one_process_with_the_joint_batch(results, name):
    one, files = results
    for part in ("value", "weight"):
        mean = (files[0][f"{name} {part}"] + files[1][f"{name} {part}"]) / 2
        torch.testing.assert_close(mean, one[f"{name} {part}"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["nt_xent", "moco_v3", "byol"])
def test_the_gradient_of_a_sample_has_the_share_of_all_ranks(results, name):
    """Divided by the number of ranks, as DistributedDataParallel does with what follows from it."""
    one, files = results
    for rank, found in enumerate(files):
        torch.testing.assert_close(found[f"{name} first"] / 2, one[f"{name} first"][rank::2])


def test_rows_are_gathered_in_the_order_of_the_joint_batch(results):
    one, files = results
    for found in files:
        assert found["gathered"].tolist() == one["gathered"].tolist() == list(range(N))
        assert torch.equal(found["gathered"][found["positions"]], found["own rows"])


def test_a_grid_of_attentive_probes_is_trained_as_in_one_process(results):
    """After three steps with clipping; the ranks stay equal."""
    one, files = results
    names = [name for name in one if name.startswith("probes ")]
    assert any("probes.1.query" in name for name in names)
    start = Probes().state_dict()
    assert not torch.equal(one["probes cls_head.probes.0.query"], start["cls_head.probes.0.query"])
    for name in names:
        for found in files:
            torch.testing.assert_close(found[name], one[name], rtol=0, atol=1e-10)
