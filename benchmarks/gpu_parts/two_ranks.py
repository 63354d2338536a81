"""Two ranks, on two GPUs with NCCL: SyncBN, waits of the host, and the step next to one GPU's.

Each measurement starts its own processes. With one GPU, the part is left out. In a smoke run on a
CPU, the ranks use gloo.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from mmengine.model import MMDistributedDataParallel
from step_process import Job, Step
from torch import nn

from gpu_parts.part import Part
from gpu_parts.training_step import BEST, job_of
from sce_video.models.modules.sync_batch_norm import convert_sync_batch_norm
from sce_video.utils.files import write_json

CASE = "r50 8x224"
#: Largest difference between SyncBN of two ranks and BN of the joint batch, both in float32.
SYNC_BN = 1e-4


def on_ranks(part: Part, measure: Callable[[str], dict[str, Any]], world: int) -> dict[str, Any]:
    """Call a function with its device on several ranks, and return its result on rank 0.

    Raises:
        TimeoutError: If the part has no time left.
        Exception: If a rank fails.
    """
    name = f"{time.time_ns()}"
    store, out = part.folder / f"group_{name}", part.folder / f"found_{name}.json"
    context = mp.start_processes(
        _rank, (world, part.device, str(store), str(out), measure), world, join=False,
        start_method="spawn",
    )  # fmt: skip
    assert context is not None
    try:
        while not context.join(timeout=0.5):
            if part.left <= 0:
                raise TimeoutError("the time of the part was over")
    finally:
        for process in context.processes:
            process.kill()
    return json.loads(out.read_text())


def _rank(
    rank: int, world: int, device: str, store: str, out: str, measure: Callable[[str], dict]
) -> None:
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", init_method=f"file://{store}", rank=rank,
        world_size=world, timeout=timedelta(minutes=2),
    )  # fmt: skip
    found = measure(device)
    if rank == 0:
        write_json(Path(out), found)
    dist.barrier()
    dist.destroy_process_group()


def sync_bn(device: str) -> dict[str, Any]:
    """Compare SyncBN over the ranks with BN of the joint batch: values and gradients."""
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    joint = (3 + 2 * torch.randn(8, 16, 4, 14, 14, generator=generator)).to(device)
    whole, own = joint.clone().requires_grad_(), joint[rank::world].clone().requires_grad_()
    layer = convert_sync_batch_norm(nn.BatchNorm3d(16)).to(device).train()
    expected, found = F.batch_norm(whole, None, None, training=True), layer(own)
    for values in (expected, found):
        values.sin().sum().backward()
    assert whole.grad is not None and own.grad is not None
    differences = [found - expected[rank::world], own.grad - whole.grad[rank::world]]
    largest = max(float(difference.detach().abs().max()) for difference in differences)
    return dict(
        differences=dict(sync_bn=largest), bounds=dict(sync_bn=SYNC_BN), passed=largest <= SYNC_BN
    )


def synchronised(model: nn.Module) -> nn.Module:
    """Wrap a model like the runner of a training on several GPUs."""
    device = next(model.parameters()).device
    ids = [torch.cuda.current_device()] if device.type == "cuda" else None
    converted = convert_sync_batch_norm(model)
    return MMDistributedDataParallel(converted, device_ids=ids, broadcast_buffers=False)


def step(device: str, job: Job) -> dict[str, Any]:
    """Measure the waits of the host in a step, and the seconds of a step."""
    step = Step(job, wrap=synchronised)
    step.block(3)  # DistributedDataParallel arranges its buckets in the first steps
    waits = step.waits()
    blocks = [step.block(1 if device == "cpu" else 10) for _ in range(2)]
    seconds = min(block["wall"] for block in blocks)
    world = dist.get_world_size()
    return dict(
        ranks=world, batch_per_rank=job.batch, step_s=seconds,
        videos_per_s=world * (job.batch or 0) / seconds, host_waits=sum(waits.values()),
        host_wait_lines=waits, passed=not waits,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    part = Part("ranks", argv)
    if part.on_gpu and torch.cuda.device_count() < 2:
        part.leave_out("two ranks", "this machine has one GPU, and two ranks need two")
        return 0
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    job = job_of(part, CASE, BEST)
    part.run("SyncBN, two ranks", lambda: on_ranks(part, sync_bn, 2))
    found = {}
    for world in (2, 1):
        name = f"{CASE}, {BEST}, {'two ranks' if world == 2 else 'one rank'}"
        measure = partial(step, job=job)
        found[world] = part.run(name, lambda m=measure, w=world: on_ranks(part, m, w), 5.0)
    if found[1] and found[2]:
        speed = found[2]["videos_per_s"] / found[1]["videos_per_s"]
        part.run("two ranks over one", lambda: dict(videos_per_s=speed))
    return 0 if all(value.get("passed", True) for value in part.found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
