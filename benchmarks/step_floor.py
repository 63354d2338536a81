"""Compute the shortest possible training step from its operations and bytes, without running it.

    python benchmarks/step_floor.py [--network r3d18 r3d50] [--frames 8] [--size 224] [--batch 64]
        [--json OUT]

Every operation in the forward pass, loss and backward pass of the SCE step in bf16 reads its
tensors from memory and writes its result. It takes at least the longer of operations / peak and
bytes / bandwidth. There are two sums of these times, as lower bounds:

    convolutions  only convolutions and products, as if all else were part of their kernels
    eager         every operation separately, as PyTorch computes them without ``torch.compile``

The sums do not count second passes over a tensor within an operation (BN reads its input twice),
the optimiser, the augmentation, and copies from the host. Peaks and bandwidths come from the
vendors' data sheets, unless a run on a GPU measures them (``benchmarks/gpu.sh``).

The second table shows how many samples per second a GPU trains at the share of its peak that a
public measurement reached (``PUBLISHED``), and the cores that decode them.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.logging import MMLogger
from mmengine.registry import init_default_scope
from step_process import RECIPES, Job, job_config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from sce_video.registry import MODELS
from sce_video.utils.files import write_json


class Device(NamedTuple):
    """Properties that bound the speed of a device."""

    tflops: float
    """Dense bf16."""
    gb_per_s: float
    """Of its memory, 1e9 bytes."""


#: NVIDIA's data sheets of H200, H100 and A100 (SXM; A100 with 80 GB).
DEVICES = {
    "H200": Device(989.0, 4800.0),
    "H100 SXM": Device(989.0, 3350.0),
    "A100 80GB": Device(312.0, 2039.0),
}
#: Clips per second of torchvision's r3d_18 on 8 H100 without waits for data, 16 frames of 112
#: pixels, 16 clips per GPU, bf16, eager: SPDL (github.com/facebookresearch/spdl), documentation,
#: "Video Classification (MTP + Concurrency Tuning)", compute floor 37.6 ms per step.
PUBLISHED = dict(clips_per_s=3405.0, gpus=8, tflops=989.0)


@dataclass
class Operation:
    """One operation of the step."""

    name: str
    flops: float
    bytes: float

    def seconds(self, device: Device) -> float:
        """Return the least seconds on a device."""
        return max(self.flops / device.tflops / 1e12, self.bytes / device.gb_per_s / 1e9)


class Recorder(TorchDispatchMode):
    """Recorder of FLOPs and bytes of every operation that reads or writes memory.

    Args:
        device: Type of the device whose operations are recorded. None records all.
    """

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._device = device
        self._within_one = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        touches_memory = not func.is_view and not name.startswith("empty")
        if func.namespace == "aten" and touches_memory and not self._within_one:
            count = flop_registry.get(func.overloadpacket)
            flops = 0 if count is None else count(*args, **kwargs, out_val=result)
            self._note(name, flops, (args, kwargs, result))
        return result

    def as_one(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose operations count as one that reads its arguments once.

        A function that torch.compile fuses is counted like this. What it keeps in memory in between
        is not.
        """

        def run(*args: Any) -> Any:
            self._within_one = True
            try:
                result = function(*args)
            finally:
                self._within_one = False
            self._note(function.__name__, 0, (args, result))
            return result

        return run

    def _note(self, name: str, flops: float, tree: Any) -> None:
        tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
        if self._device is None or any(x.device.type == self._device for x in tensors):
            size = sum(x.numel() * x.element_size() for x in tensors)
            self.operations.append(Operation(name, flops, size))


def operations_of(job: Job) -> list[Operation]:
    """Return the operations of one batch (forward, loss, backward) without computing them."""
    cfg = job_config(job)
    if "shuffle_bn_splits" in cfg.model:
        cfg.model.shuffle_bn_splits = None  # copies only, and draws numbers
    model = MODELS.build(cfg.model).to(torch.bfloat16)
    model.collapse_metrics = lambda h, z: {}  # needs values, which fake tensors do not have
    with FakeTensorMode(allow_non_fake_inputs=True), Recorder() as recorder:
        shape = (job.batch, 3, job.frames, job.size, job.size)
        views = [torch.empty(shape, dtype=torch.bfloat16) for _ in range(2)]
        model(views, mode="loss")["loss"].backward()
    return recorder.operations


def floor_of(operations: list[Operation], device: Device | None = None) -> dict[str, Any]:
    """Return operations and bytes of a step, and the least seconds on a device."""
    products = [operation for operation in operations if operation.flops]
    flops = sum(operation.flops for operation in products)
    found: dict[str, Any] = dict(
        tflop=flops / 1e12,
        convolutions_gb=sum(operation.bytes for operation in products) / 1e9,
        eager_gb=sum(operation.bytes for operation in operations) / 1e9,
    )
    if device is not None:
        found |= dict(
            assumed=device._asdict(),
            operations_s=flops / device.tflops / 1e12,
            convolutions_s=sum(operation.seconds(device) for operation in products),
            eager_s=sum(operation.seconds(device) for operation in operations),
        )
    return found


def r3d18_flops(frames: int = 16, size: int = 112) -> float:
    """Return the FLOPs of a training step of torchvision's r3d_18 for one clip.

    Forward and backward are counted. Convolutions have 3x3x3 kernels and a 3x7x7 stem, with strides
    of 2 in time and space from the second stage on (torchvision/models/video/resnet.py).
    """
    cells = frames * (size // 2) ** 2
    stem = 3 * 3 * 7 * 7 * 64 * cells
    forward, channels = float(stem), 64
    for stage in range(4):
        if stage:
            cells, channels = cells // 8, 2 * channels
            forward += (27 * channels // 2 + channels // 2) * channels * cells  # and the shortcut
            forward += 3 * 27 * channels**2 * cells
        else:
            forward += 4 * 27 * channels**2 * cells
    forward += 512 * 400
    # Gradients cost twice the forward pass, except for the stem's input.
    return 2 * (3 * forward - stem)


def published_share() -> float:
    """Return the share of the peak that the published training of R3D-18 reached."""
    flops = PUBLISHED["clips_per_s"] / PUBLISHED["gpus"] * r3d18_flops()
    return flops / 1e12 / PUBLISHED["tflops"]


def show(network: str, job: Job, operations: list[Operation]) -> dict[str, Any]:
    """Print and return the bounds of one network on all devices."""
    plain = floor_of(operations)
    print(
        f"\n{network}, batch {job.batch}, two views of {job.frames}x{job.size}: "
        f"{plain['tflop']:.1f} TFLOP, {plain['convolutions_gb']:.0f} GB in convolutions, "
        f"{plain['eager_gb']:.0f} GB eager"
    )
    found = {}
    for name, device in DEVICES.items():
        floor = found[name] = floor_of(operations, device)
        speed = published_share() * device.tflops * 1e12 * job.batch / plain["tflop"] / 1e12
        shares = [floor["operations_s"] / floor[key] for key in ("convolutions_s", "eager_s")]
        print(
            f"  {name}: operations {1e3 * floor['operations_s']:.0f} ms; convolutions "
            f"{1e3 * floor['convolutions_s']:.0f} ms ({100 * shares[0]:.0f} % of peak); eager "
            f"{1e3 * floor['eager_s']:.0f} ms ({100 * shares[1]:.0f} % of peak); at "
            f"{100 * published_share():.1f} % of peak {speed:.0f} videos/s"
        )
        found[name] |= dict(videos_per_s_at_published_share=speed)
    return dict(frames=job.frames, size=job.size, batch=job.batch, **plain, devices=found)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--network", nargs="+", choices=sorted(RECIPES), default=sorted(RECIPES))
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args(argv)
    if min(args.frames, args.size, args.batch) < 1:
        parser.error("--frames, --size and --batch must be at least 1")
    MMLogger.get_instance("step_floor", log_level=logging.WARNING)
    init_default_scope("sce_video")
    report: dict[str, Any] = dict(published={**PUBLISHED, "share_of_peak": published_share()})
    for network in args.network:
        job = Job(RECIPES[network], args.frames, args.size, args.batch)
        report[network] = show(network, job, operations_of(job))
    if args.json:
        write_json(args.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
