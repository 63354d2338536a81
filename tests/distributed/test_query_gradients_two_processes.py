"""One backward pass per query under DistributedDataParallel, with accumulated micro-batches.

Two gloo processes that take gradients query by query equal one process with one backward pass over
the joint batch. So does shuffle-BN between two processes with its simulation in one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from helpers.query_methods import (
    QUERY_METHODS,
    WITH_QUEUE,
    build_method,
    gradients_of,
    make_views,
)
from helpers.run_tool import free_port, run_ranks
from mmengine.model import MMDistributedDataParallel
from torch import nn

from sce_video.models.modules import TargetEncoder

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
BATCH = 8  # of all processes together
MICRO_BATCHES = 2
WITH_BATCH_NORM = ("SCE", "MoCoV3")  # tested with BN in training mode, too


def accumulated_gradients(name: str, rank: int, world: int, each: bool, training: bool) -> dict:
    """Gradients of an accumulated step on this rank's share of the samples, three views of each."""
    algorithm = build_method(name, backward_per_query=each)
    model = algorithm
    if world > 1:
        model = MMDistributedDataParallel(module=algorithm, broadcast_buffers=False)
    # There is no SyncBN on CPUs: in eval mode the processes compute the function of one.
    model.train(training)
    losses = []
    for number in range(MICRO_BATCHES):
        views = [view[rank::world] for view in make_views(3, BATCH, seed=number)]
        if world > 1:  # the gradients are exchanged in the last micro-batch only
            model.require_backward_grad_sync = number == MICRO_BATCHES - 1
        loss = model(views, mode="loss")["loss"] / MICRO_BATCHES
        loss.backward()
        losses.append(loss.item())
    return {"loss": torch.tensor(losses), "gradients": gradients_of(algorithm)}


def shuffled_keys(rank: int, world: int, splits: int) -> dict:
    """Keys of a target with BN in training mode, in two steps; and those without shuffling."""
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4), nn.ReLU())
    target = TargetEncoder(backbone, nn.Linear(4, 5), splits)
    view = make_views(1, BATCH)[0][rank::world]
    keys = []
    for _ in range(2):
        keys.append(target(view))
        target.update(backbone, target.projector, 1.0)
    return {"keys": torch.stack(keys), "plain": target.eval()(view)}


def shuffled_steps(name: str, rank: int, world: int, splits: int) -> dict:
    """Two steps of a method whose target normalises shuffled groups; other BN in eval mode."""
    model = build_method(name, shuffle_bn_splits=splits, symmetric=False, momentum=0.9).eval()
    model.target.train()
    losses = []
    for step in range(2):
        x = [view[rank::world] for view in make_views(2, BATCH, seed=step)]
        with torch.no_grad():
            losses.append(model(x, mode="loss")["loss"])
        model.after_optimizer_step()
    return {"loss": torch.stack(losses), "queue": model.queue.keys.clone()}


def run(rank: int, world: int) -> dict:
    found = {}
    for name in QUERY_METHODS:
        found[name] = accumulated_gradients(name, rank, world, each=world > 1, training=False)
        if world > 1 and name in WITH_BATCH_NORM:
            for each in (False, True):
                found[name, each] = accumulated_gradients(name, rank, world, each, training=True)
    found["shuffle"] = shuffled_keys(rank, world, splits=4 // world)
    for name in WITH_QUEUE:
        found["shuffle", name] = shuffled_steps(name, rank, world, splits=4 // world)
    return found


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
    return run(0, 1), [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def assert_close(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-4, atol=1e-4 * scale + 1e-8, msg=name
        )


@pytest.mark.parametrize("name", QUERY_METHODS)
def test_two_processes_query_by_query_equal_one_backward_pass(results, name):
    one, (first, second) = results
    mean = (first[name]["loss"] + second[name]["loss"]) / 2
    torch.testing.assert_close(mean, one[name]["loss"], rtol=1e-5, atol=1e-5)
    for rank in (first, second):
        assert_close(rank[name]["gradients"], one[name]["gradients"])


def test_shuffling_between_processes_equals_its_simulation(results):
    one, files = results
    for rank, found in enumerate(files):
        torch.testing.assert_close(
            found["shuffle"]["keys"], one["shuffle"]["keys"][:, rank::2], rtol=1e-5, atol=1e-6
        )
    assert not torch.allclose(one["shuffle"]["keys"][0], one["shuffle"]["keys"][1], atol=1e-3)


@pytest.mark.parametrize("name", WITH_QUEUE)
def test_a_method_with_shuffling_between_processes_equals_its_simulation(results, name):
    one, files = results
    expected, (first, second) = one["shuffle", name], (file["shuffle", name] for file in files)
    assert torch.equal(first["queue"], second["queue"])
    torch.testing.assert_close(first["queue"], expected["queue"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        (first["loss"] + second["loss"]) / 2, expected["loss"], rtol=1e-4, atol=1e-5
    )
