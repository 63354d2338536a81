"""Check that training on the device equals training on the CPU, with twenty steps of a small SCE.

The reference is fp32 on the CPU. Every variant starts from its weights, and sees its batches and
its augmentations, which depend only on the samples' seeds. Losses, the queue and the target after
the last step are compared. Two more comparisons follow: a run that is interrupted and resumed on
the device with an uninterrupted one, and SyncBN and DistributedDataParallel in a group of one
process with training without them.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import build_optim_wrapper
from step_process import Job, job_config
from torch import Tensor, nn

from gpu_parts.part import Part
from sce_video.data_tools.generated import generate_toy_actions
from sce_video.engine import VideoRunner
from sce_video.engine.compile import compile_backbones, fold_backbones
from sce_video.engine.config.load import load_config
from sce_video.models.modules.sync_batch_norm import Normalise, convert_sync_batch_norm
from sce_video.registry import MODELS

STEPS, SMOKE_STEPS, BATCH = 20, 5, 16
RECIPE, RATE = "sce_r3d18_8xb64-8x224-200e_k400.py", 0.005


class Bound(NamedTuple):
    """Largest differences to fp32 on the CPU after 20 steps, and why they are not zero."""

    first_loss: float
    """Of the loss of the first step, relative."""
    losses: float
    """Of the loss of any step, relative."""
    queue: float
    """One minus the mean cosine of the queues' keys."""
    target: float
    """Norm of the difference of the targets' weights over that of their change in training."""
    reason: str


_ROUNDING = "other order of summation in fp32; the steps amplify it"
BOUNDS = {
    "fp32": Bound(1e-5, 1e-3, 1e-4, 0.05, _ROUNDING),
    "tf32": Bound(3e-3, 0.02, 0.01, 0.6, "factors of products have 10 bits of mantissa"),
    "channels_last": Bound(1e-5, 1e-3, 1e-4, 0.05, _ROUNDING),
    "conv_2d": Bound(1e-5, 1e-3, 1e-4, 0.05, _ROUNDING),
    "compile": Bound(1e-5, 1e-3, 1e-4, 0.05, _ROUNDING + "; fused kernels round less often"),
    "graphs": Bound(1e-5, 1e-3, 1e-4, 0.05, _ROUNDING + "; fused kernels round less often"),
    "bf16": Bound(0.01, 0.02, 0.01, 0.8, "activations and their gradients have 7 bits of mantissa"),
    "fp16": Bound(3e-3, 0.02, 0.01, 0.8, "activations have 10 bits; gradients are scaled"),
}
#: A resumed run may differ from an uninterrupted one by this factor times the difference of two
#: uninterrupted runs, because backward passes of pooling add in any order on a GPU.
RESUME_FACTOR, RESUME_LEAST = 10.0, 1e-6
#: SyncBN of one process and BN both use fp32, but compute statistics by different algorithms.
SYNC_BN = 1e-4


class Run(NamedTuple):
    """Results of twenty steps that are compared."""

    losses: Tensor
    queue: Tensor
    target: Tensor
    start: Tensor


def batches(size: int, frames: int) -> Iterator[dict[str, Any]]:
    """Yield uint8 views of coloured patterns: two shifted cuts of a pattern for each sample."""
    generator = torch.Generator().manual_seed(1)
    while True:
        coarse = torch.rand(BATCH, 3, size // 4, size // 4, generator=generator)
        pattern = F.interpolate(coarse, size=(2 * size, 2 * size), mode="bilinear")
        views = []
        for shift in torch.randint(size // 2, (2,), generator=generator).tolist():
            cuts = [pattern[:, :, shift + t :, shift:][:, :, :size, :size] for t in range(frames)]
            view = torch.stack(cuts, dim=1).permute(0, 1, 3, 4, 2)
            views.append(view.mul(255).to(torch.uint8).contiguous())
        yield dict(inputs=views, seed=torch.randint(2**62, (BATCH,), generator=generator))


def build(part: Part, options: Sequence[str]) -> tuple[nn.Module, Any, dict[str, int]]:
    """Build the model on the CPU, and return it with its config and the sizes of its views."""
    # Not two frames: sce_video/engine/compile.py.
    sizes = dict(frames=4, size=32 if part.smoke else 64)
    small = [f"model.backbone.base_channels={8 if part.smoke else 16}", "model.queue_size=128"]
    small += ["model.projector.hidden_channels=64", "model.predictor.hidden_channels=64"]
    job = Job(
        *(RECIPE, sizes["frames"], sizes["size"], BATCH),
        flags=frozenset({"channels_last"} if "channels_last" in options else ()),
        cfg_options=tuple(small),
    )
    cfg = job_config(job)
    dtype = {"bf16": "bfloat16", "fp16": "float16"}
    cfg.optim_wrapper.dtype = next((dtype[o] for o in options if o in dtype), "float32")
    cfg.optim_wrapper.optimizer.lr = RATE
    cfg.optim_wrapper.init_scale = 1024.0  # no first step that is skipped
    torch.manual_seed(0)
    model = MODELS.build({**cfg.model, "data_preprocessor": cfg.data_preprocessor})
    model.init_weights()
    return model, cfg, sizes


def train(part: Part, device: str, options: Sequence[str] = (), wrap: Any = None) -> Run:
    """Train twenty steps on a device. ``wrap`` first changes the model on the device."""
    tf32 = "tf32" in options
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    model, cfg, sizes = build(part, options)
    model.to(device).train()
    wrapped = model if wrap is None else wrap(model)
    optimiser = build_optim_wrapper(wrapped, cfg.optim_wrapper)
    if "conv_2d" in options:
        fold_backbones(model)
    if "compile" in options:
        # The smoke run leaves this out, because the code generator for CPUs takes a minute.
        compile_backbones(model, {"backend": "aot_eager"} if part.smoke else True)
    if "graphs" in options:
        compile_backbones(model, {"mode": "reduce-overhead"})
    bare = getattr(wrapped, "module", model)
    start = torch.cat([p.detach().flatten().cpu() for p in bare.target.parameters()])
    bare.momentum, losses = 0.9, []
    source = batches(sizes["size"], sizes["frames"])
    steps = SMOKE_STEPS if part.smoke else STEPS
    if "fp16" in options and not part.on_gpu:
        steps = 2  # emulated: seconds per step
    for _ in range(steps):
        if "graphs" in options:
            torch.compiler.cudagraph_mark_step_begin()
        data = bare.data_preprocessor(next(source), True)
        with optimiser.optim_context(wrapped):
            loss, _ = bare.parse_losses(wrapped(**data, mode="loss"))
        optimiser.update_params(loss)
        bare.after_optimizer_step()
        losses.append(loss.detach())
    target = torch.cat([p.detach().flatten().cpu() for p in bare.target.parameters()])
    return Run(torch.stack(losses).double().cpu(), bare.queue.keys.cpu(), target, start)


def compare(run: Run, reference: Run, bound: Bound) -> dict[str, Any]:
    """Return the differences between two runs, their bounds, and whether they are kept."""
    steps = len(run.losses)
    expected = reference.losses[:steps]
    relative = (run.losses - expected).abs() / expected.abs()
    if steps < len(reference.losses):  # of a shorter run only the losses are comparable
        run = run._replace(queue=reference.queue, target=reference.target)
    cosine = F.cosine_similarity(run.queue.double(), reference.queue.double()).mean()
    moved = (reference.target - reference.start).norm()
    found = dict(
        first_loss=float(relative[0]),
        losses=float(relative.max()),  # NaN if one is
        queue=max(0.0, 1 - float(cosine)),
        target=float((run.target - reference.target).norm() / moved),
    )
    bounds = {name: getattr(bound, name) for name in found}
    kept = all(math.isfinite(v) and v <= bounds[name] for name, v in found.items())
    return dict(
        differences=found, bounds=bounds, reason=bound.reason, passed=bool(kept),
        losses=[round(x, 5) for x in run.losses.tolist()],
    )  # fmt: skip


class _Losses(Hook):
    """Hook that keeps the losses and ends the run after an iteration."""

    priority = "LOWEST"

    def __init__(self, stop_after: int | None) -> None:
        self.values: list[float] = []
        self._stop_after = stop_after

    def after_row(self, runner: Any, row: dict[str, Any]) -> None:
        if row["kind"] == "train":
            self.values.append(float(row["loss"]))

    def after_train_iter(self, runner: Any, *_: Any, **__: Any) -> None:
        if runner.iter + 1 == self._stop_after:
            raise KeyboardInterrupt


def training(part: Part, name: str, stop_after: int | None = None) -> list[float]:
    """Train with the runner on toy videos, and return the logged losses of this start."""
    videos = generate_toy_actions(part.folder / "toy", {"train": 24}, size=48, num_frames=30)
    clips = "train_dataloader.dataset.pipeline"
    options = {
        "train_dataloader.dataset.data_root": str(videos / "train"),
        "train_dataloader.batch_size": 8,
        "train_dataloader.num_workers": 0,
        f"{clips}.RandomClips.num_frames": 2,
        f"{clips}.RandomResizedCropClips.size": 32,
        "model.backbone.base_channels": 4,
        "model.queue_size": 64,
        "train_cfg.max_epochs": 3,
        "default_hooks.logger.interval": 1,
        "default_hooks.checkpoint.interval": 2,
        "default_hooks.checkpoint.by_epoch": False,
        "default_hooks.online_evaluation": None,
        "visualizer": None,
        "env_cfg.cudnn_benchmark": False,
        "fit_queue": None,
    }
    cfg = load_config("configs/quickstart/sce_toy_actions.py", options)
    cfg.work_dir, cfg.launcher = str(part.folder / name), "none"
    cfg.resume = stop_after is None and (part.folder / name).is_dir()
    cfg.experiment_name = f"{name}_{stop_after}_{cfg.resume}"
    runner, losses = VideoRunner.from_cfg(cfg), _Losses(stop_after)
    runner.register_hook(losses)
    try:
        runner.train()
    except KeyboardInterrupt:
        assert stop_after is not None
    return losses.values


def resume(part: Part) -> dict[str, Any]:
    """Compare an interrupted and resumed training with uninterrupted ones."""
    for name in ("whole", "again", "broken"):  # of an earlier run of this benchmark
        shutil.rmtree(part.folder / name, ignore_errors=True)
    torch.backends.cudnn.deterministic = True
    whole, again = training(part, "whole"), training(part, "again")
    begun = training(part, "broken", stop_after=4)
    both = begun + training(part, "broken")
    torch.backends.cudnn.deterministic = False
    noise = max(abs(a - b) for a, b in zip(whole, again, strict=True))
    difference = max(abs(a - b) for a, b in zip(whole, both, strict=True))
    bound = max(RESUME_LEAST, RESUME_FACTOR * noise)
    return dict(
        differences=dict(losses=difference),
        bounds=dict(losses=bound),
        two_unbroken_runs=noise,
        losses=whole,
        reason="what two unbroken runs differ, times 10; 0 on a CPU",
        passed=bool(difference <= bound),
    )


def distributed(part: Part, reference: Run) -> dict[str, Any]:
    """Train with synchronised batch norm and DistributedDataParallel in a group of one process."""
    backend = "nccl" if part.on_gpu else "gloo"
    store = part.folder / f"group_{os.getpid()}"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)

    def wrap(model: nn.Module) -> nn.Module:
        converted = convert_sync_batch_norm(model)
        ids = [torch.cuda.current_device()] if part.on_gpu else None
        return MMDistributedDataParallel(converted, device_ids=ids, broadcast_buffers=False)

    try:
        found = compare(train(part, part.device, wrap=wrap), reference, BOUNDS["fp32"])
        # With one process, the layer is a batch norm, so its own computation is called directly.
        own = sync_bn_difference(part.device)
        found["differences"]["sync_bn"], found["bounds"]["sync_bn"] = own, SYNC_BN
        found["passed"] &= own <= SYNC_BN
    finally:
        dist.destroy_process_group()
    return {**found, "backend": backend}


def sync_bn_difference(device: str | torch.device) -> float:
    """Return the largest difference between synchronised batch norm and torch's, with gradients."""
    results = []
    for sync in (False, True):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(8, 16, 4, 14, 14, generator=generator).to(device).requires_grad_()
        weight, bias = torch.ones(16, device=device), torch.zeros(16, device=device)
        weight.requires_grad_(), bias.requires_grad_()
        if sync:
            y, *_ = Normalise.apply(x, weight, bias, 1e-5, 1)
        else:
            y = F.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-5)
        y.square().sin().sum().backward()
        results.append([y.detach(), x.grad, weight.grad / 1e3, bias.grad / 1e3])
    return max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    part = Part("parity", argv)
    reference: list[Run] = []

    def first() -> dict[str, Any]:
        if part.on_gpu:  # it waits for nothing else
            torch.set_num_threads(min(16, os.cpu_count() or 1))
        reference.append(train(part, "cpu"))
        return dict(losses=[round(x, 5) for x in reference[0].losses.tolist()])

    part.found.pop("reference", None)  # needed in memory
    part.run("reference", first)
    variants = ["fp32", "channels_last", "conv_2d", "bf16", "fp16", "compile"]
    if part.on_gpu:
        variants.insert(1, "tf32")

    def variant(name: str) -> dict[str, Any]:
        return compare(train(part, part.device, [name]), reference[0], BOUNDS[name])

    for name in variants[:-1]:
        part.run(name, lambda n=name: variant(n))
    part.run("one process group, SyncBN", lambda: distributed(part, reference[0]))
    part.run("resume", lambda: resume(part))
    # Last: they compile for half a minute.
    for name in [variants[-1], *(["graphs"] if part.on_gpu else [])]:
        part.run(name, lambda n=name: variant(n))
    return 0 if all(value.get("passed", True) for value in part.found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
