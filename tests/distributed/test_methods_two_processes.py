"""Two gloo processes compute what one does with the joint batch: losses, gradients, steps, queues.

Each rank takes the samples rank, rank + 2, ... as the sampler gives them. There is no SyncBN on
CPUs: with batch norm in eval mode both sides compute the same function.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.query_methods import (
    QUERY_METHODS,
    TINY,
    WITH_QUEUE,
    build_method,
    gradients_of,
    make_views,
)
from helpers.run_tool import run_gloo
from mmengine.model import MMDistributedDataParallel
from torch import Tensor, nn

from sce_video.models.algorithms import SCE, SimCLR, SwAV
from sce_video.models.losses import byol_loss, moco_v3_loss, nt_xent_loss, sinkhorn, swav_loss
from sce_video.utils.distributed import gather_samples, global_positions

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
BATCH, STEPS, MICRO_BATCHES = 8, 5, 2  # the batch is that of all processes together


def distributed(model: nn.Module, world: int) -> nn.Module:
    return model if world == 1 else MMDistributedDataParallel(model, broadcast_buffers=False)


# -- losses of embeddings ----------------------------------------------------------------------


def moco_v3(first: Tensor, second: Tensor) -> Tensor:
    return moco_v3_loss(first, gather_samples(second), global_positions(len(first)), tau=0.2)


LOSSES = {
    "nt_xent": lambda a, b: nt_xent_loss(a, b, tau=0.1),
    "moco_v3": moco_v3,
    "byol": byol_loss,
}


def losses(rank: int, world: int) -> dict:
    """Value, gradient of a weight and of the embeddings, of this rank's share of the samples."""
    generator = torch.Generator().manual_seed(0)
    joint = torch.randn(2, 6, 5, generator=generator, dtype=torch.float64)
    start = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    found = {}
    for name, loss in LOSSES.items():
        weight = start.clone().requires_grad_()
        views = [F.normalize(x[rank::world] @ weight, dim=1) for x in joint]
        views[0].retain_grad()
        value = loss(*views)
        value.backward()
        found[name] = dict(value=value.detach(), weight=weight.grad, first=views[0].grad)
    rows = torch.arange(6)[rank::world]
    found["rows"] = [gather_samples(rows), global_positions(len(rows)), rows]
    return found


def swav(rank: int, world: int) -> dict:
    """Codes, loss and gradient of this rank's samples, and codes of unequal shares."""
    generator = torch.Generator().manual_seed(1)
    joint = [torch.rand(BATCH, 5, generator=generator) * 2 - 1 for _ in range(3)]
    scores = [s[rank::world].clone().requires_grad_() for s in joint]
    codes = [sinkhorn(scores[0]), sinkhorn(scores[1]), None]
    loss = swav_loss(scores, codes, tau=0.1)
    loss.backward()
    share = joint[2] if world == 1 else (joint[2][:3], joint[2][3:])[rank]
    return {
        "codes": torch.stack(codes[:2], dim=1),
        "large": sinkhorn(joint[0].mul(400).half()[rank::world]),
        "gradient": torch.stack([s.grad for s in scores], dim=1),
        "loss": loss.detach(),
        "unequal": sinkhorn(share),
    }


# -- gradients query by query, shuffled groups of batch norm -----------------------------------


def accumulated_gradients(name: str, rank: int, world: int) -> dict:
    """Gradients of an accumulated step; two processes take them query by query."""
    algorithm = build_method(name, backward_per_query=world > 1)
    model = distributed(algorithm, world).eval()
    values = []
    for number in range(MICRO_BATCHES):
        views = [view[rank::world] for view in make_views(3, BATCH, seed=number)]
        if world > 1:  # the gradients are exchanged in the last micro-batch only
            model.require_backward_grad_sync = number == MICRO_BATCHES - 1
        loss = model(views, mode="loss")["loss"] / MICRO_BATCHES
        loss.backward()
        values.append(loss.item())
    return {"losses": torch.tensor(values), "gradients": gradients_of(algorithm)}


def shuffled_steps(name: str, rank: int, world: int) -> dict:
    """Two steps of a method whose target normalises shuffled groups."""
    options = dict(shuffle_bn_splits=4 // world, symmetric=False, momentum=0.9)
    model = build_method(name, **options).eval()
    model.target.train()
    values = []
    for step in range(2):
        views = [view[rank::world] for view in make_views(2, BATCH, seed=step)]
        with torch.no_grad():
            values.append(model(views, mode="loss")["loss"])
        model.after_optimizer_step()
    return {"losses": torch.stack(values), "queue": model.queue.keys.clone()}


# -- training ----------------------------------------------------------------------------------

MLP = dict(type="MLP", hidden_channels=16, num_layers=2, norm_output=False)
METHODS = {
    # A queue that is no multiple of the keys of a step: the pointer wraps inside a batch.
    "SCE": lambda: SCE(TINY, {**MLP, "out_channels": 8}, MLP, queue_size=36, momentum=0.9),
    # Ranks cannot share this queue evenly.
    "SwAV": lambda: SwAV(
        TINY,
        {**MLP, "out_channels": 8},
        num_prototypes=6,
        frozen_prototype_steps=2,
        queue_size=13,
        queue_start_steps=1,
        joint_views=True,
    ),
}


def trained(name: str, rank: int, world: int) -> dict:
    """Steps of plain SGD."""
    torch.manual_seed(0)
    algorithm = METHODS[name]()
    algorithm.init_weights()
    model = distributed(algorithm, world).eval()
    optimizer = torch.optim.SGD([p for p in algorithm.parameters() if p.requires_grad], lr=0.05)
    values = []
    for step in range(STEPS):
        views = [view[rank::world] for view in make_views(2, BATCH, seed=100 + step)]
        optimizer.zero_grad()
        loss = model(views, mode="loss")["loss"]
        loss.backward()
        gradients = gradients_of(algorithm)
        algorithm.before_optimizer_step()
        optimizer.step()
        algorithm.after_optimizer_step()
        values.append(loss.item())
    assert algorithm.queue.keys[-1].any()  # it is full
    state = {name: value.clone() for name, value in algorithm.state_dict().items()}
    return {"losses": torch.tensor(values), "gradients": gradients, "state": state}


def dropped_tokens(rank: int, world: int) -> dict:
    """Gradients of a transformer that drops tokens and computes activations again."""
    backbone = dict(type="VisionTransformer3d", depth=2, embed_dims=16, num_heads=2, patch_size=8)
    backbone |= dict(grid_size=(1, 4, 4), position="learned", keep_tokens=0.4, with_cp=True)
    torch.manual_seed(0)
    algorithm = SimCLR(backbone, {**MLP, "norm_hidden": False, "out_channels": 8}).double()
    views = [view[rank::world].double() for view in make_views(2, BATCH)]
    seeds = list(range(BATCH))[rank::world]
    model = distributed(algorithm, world)  # lives until the gradients are summed
    loss = model(views, {"seed": seeds}, mode="loss")["loss"]
    loss.backward()
    return {"losses": loss.detach(), "gradients": gradients_of(algorithm)}


def run(rank: int, world: int) -> dict:
    given = (rank, world)
    found = {"losses": losses(*given), "swav": swav(*given), "tokens": dropped_tokens(*given)}
    found |= {("queries", name): accumulated_gradients(name, *given) for name in QUERY_METHODS}
    found |= {("shuffled", name): shuffled_steps(name, *given) for name in WITH_QUEUE}
    return found | {("trained", name): trained(name, *given) for name in METHODS}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What one process computes, and the two."""
    return run(0, 1), *run_gloo(run, tmp_path_factory.mktemp("gloo"))


def assert_close(found: dict, expected: dict, rtol: float = 1e-3) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        atol = 1e-4 * value.abs().max().item() + 1e-7
        torch.testing.assert_close(found[name], value, rtol=rtol, atol=atol, msg=name)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_with_candidates_of_all_ranks(results, name):
    one, first, second = (result["losses"][name] for result in results)
    for part in ("value", "weight"):
        mean = (first[part] + second[part]) / 2
        torch.testing.assert_close(mean, one[part], rtol=1e-10, atol=1e-12)
    for rank, found in enumerate((first, second)):  # the mean over ranks halves what follows
        torch.testing.assert_close(found["first"] / 2, one["first"][rank::2])


def test_rows_are_gathered_in_the_order_of_the_joint_batch(results):
    for gathered, positions, rows in (result["losses"]["rows"] for result in results):
        assert gathered.tolist() == list(range(6))
        assert torch.equal(gathered[positions], rows)


def test_codes_and_loss_of_swav(results):
    one, first, second = (result["swav"] for result in results)
    for name, share in (("codes", 1), ("large", 1), ("gradient", 0.5)):
        both = torch.stack([first[name], second[name]], dim=1).flatten(0, 1) * share
        torch.testing.assert_close(both, one[name], rtol=1e-4, atol=1e-6)
    both = torch.cat([first["unequal"], second["unequal"]])
    torch.testing.assert_close(both, one["unequal"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close((first["loss"] + second["loss"]) / 2, one["loss"])


@pytest.mark.parametrize("name", QUERY_METHODS)
def test_query_by_query_equals_one_backward_pass(results, name):
    """With accumulated micro-batches under DistributedDataParallel."""
    one, first, second = (result["queries", name] for result in results)
    mean = (first["losses"] + second["losses"]) / 2
    torch.testing.assert_close(mean, one["losses"], rtol=1e-5, atol=1e-5)
    for rank in (first, second):
        assert_close(rank["gradients"], one["gradients"])


def test_dropped_tokens_and_checkpointing(results):
    one, first, second = (result["tokens"] for result in results)
    torch.testing.assert_close((first["losses"] + second["losses"]) / 2, one["losses"])
    for rank in (first, second):
        assert_close(rank["gradients"], one["gradients"], rtol=1e-5)


@pytest.mark.parametrize("name", WITH_QUEUE)
def test_a_method_with_shuffling_equals_its_simulation(results, name):
    one, first, second = (result["shuffled", name] for result in results)
    assert torch.equal(first["queue"], second["queue"])
    torch.testing.assert_close(first["queue"], one["queue"], rtol=1e-4, atol=1e-5)
    mean = (first["losses"] + second["losses"]) / 2
    torch.testing.assert_close(mean, one["losses"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_training(results, name):
    """Losses, last gradients, weights of both branches, the queue in value and order."""
    one, first, second = (result["trained", name] for result in results)
    mean = (first["losses"] + second["losses"]) / 2
    torch.testing.assert_close(mean, one["losses"], rtol=1e-5, atol=1e-5)
    assert not torch.equal(first["losses"], second["losses"])  # they saw different samples
    for part in ("gradients", "state"):
        for key, value in first[part].items():
            assert torch.equal(second[part][key], value), key
        assert_close(first[part], one[part])
