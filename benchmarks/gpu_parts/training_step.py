"""The training step on the device: speed, share of the measured peak, memory, time by part, floor.

The fastest known setting of each network is measured first, then slower settings, the largest batch
that fits, and compiled settings. Each result is the median of blocks of steps that run without
waiting for the device, as in a training.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from step_floor import Device, Operation, floor_of, operations_of
from step_process import RECIPES, Job, Step, job_config, synthetic_batches
from train_step import obstacle, peak_tflops, shares_of_parts

from gpu_parts.part import Part
from gpu_parts.profile import profiled_step
from sce_video.engine.train_loop import copied_ahead
from sce_video.registry import MODELS

BEST = "bf16+channels_last"
#: Network, frames, size, and the paper's batch per GPU.
CASES = {
    "r50 8x224": ("r3d50", 8, 224, 64),
    "r18 8x224": ("r3d18", 8, 224, 64),
    "r18 16x112": ("r3d18", 16, 112, 64),
    "r50 16x224": ("r3d50", 16, 224, 64),
    "r18 16x224": ("r3d18", 16, 224, 64),
}
#: In order of importance. When the time is over, the rest is left out.
ORDER = (
    ("r50 8x224", BEST),
    ("r50 8x224", "bf16"),
    ("r50 8x224", "tf32"),
    ("r18 8x224", BEST),
    ("r18 16x112", BEST),
    ("r50 16x224", BEST),
    ("r50 8x224", f"{BEST}+conv_2d"),
    ("r50 8x224", "fp32"),
    ("r18 8x224", "tf32"),
    ("r18 8x224", "fp32"),
    ("r50 8x224", f"{BEST}+no_benchmark"),
    ("r50 8x224", f"{BEST}+compile"),
    ("r18 8x224", f"{BEST}+compile"),
    ("r50 8x224", f"{BEST}+graphs"),
    ("r18 8x224", f"{BEST}+conv_2d"),
    ("r18 16x224", BEST),
)
#: Largest batch that is tried, with two views.
BATCH_CAP = {"cuda": 1024, "cpu": 8}


def job_of(part: Part, case: str, setting: str) -> Job:
    network, frames, size, batch = CASES[case]
    flags = frozenset() if setting == "fp32" else frozenset(setting.split("+"))
    options: tuple[str, ...] = ()
    if part.smoke:
        network, frames, size, batch = "r3d18", frames // 2, 32, 4
        options = ("model.backbone.base_channels=8", "model.queue_size=512")
    return Job(
        *(RECIPES[network], frames, size, batch, flags, part.device),
        cfg_options=options,
        compiler="aot_eager" if part.smoke else "inductor",
    )


def product_tflops(part: Part, dtype: torch.dtype) -> float:
    """Measure TFLOP/s of a large product of random matrices, the median of ten."""
    side = 8192 if part.on_gpu else 512
    a, b = (torch.randn(side, side, device=part.device, dtype=dtype) for _ in range(2))
    seconds = []
    for _ in range(13):
        part.synchronize()
        start = time.perf_counter()
        a @ b
        part.synchronize()
        seconds.append(time.perf_counter() - start)
    return 2 * side**3 / statistics.median(seconds[3:]) / 1e12


def peaks(part: Part) -> dict[str, Any]:
    """Measure the products that shares of the peak refer to, and describe the device."""
    torch.backends.cuda.matmul.allow_tf32 = False
    found: dict[str, Any] = {
        "bf16_tflops": product_tflops(part, torch.bfloat16),
        "fp32_tflops": product_tflops(part, torch.float32),
    }
    if part.on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = True
        found["tf32_tflops"] = product_tflops(part, torch.float32)
        name = torch.cuda.get_device_name()
        properties = torch.cuda.get_device_properties(0)
        size = 2**30 if properties.total_memory > 2**33 else 2**28
        block = torch.empty(size, dtype=torch.uint8, device="cuda")
        other = torch.empty_like(block)
        seconds = []
        for _ in range(5):
            part.synchronize()
            start = time.perf_counter()
            other.copy_(block)
            part.synchronize()
            seconds.append(time.perf_counter() - start)
        found |= {
            "copy_gb_per_s": 2 * size / statistics.median(seconds) / 1e9,
            "name": name,
            "data_sheet_tflops": peak_tflops(name),
            "memory_gib": properties.total_memory / 2**30,
            "cudnn": torch.backends.cudnn.version(),
            "cuda": torch.version.cuda,
        }
    return {**found, "torch": torch.__version__}


@lru_cache
def _counted(job: Job) -> list[Operation]:
    return operations_of(job)


def counted(job: Job) -> list[Operation]:
    """Count the operations of a step, once for all settings of a case."""
    return _counted(replace(job, device="cpu", flags=frozenset()))


def measure(part: Part, job: Job, peak: float, after: Callable[[Step], dict]) -> dict[str, Any]:
    """Measure the speed of a setting. ``after`` measures more with the same step."""
    begin = time.perf_counter()
    step = Step(job)
    step.block(1)
    step.block(1 if part.smoke else 2)
    ready = time.perf_counter() - begin
    blocks = [step.block(1)]
    # Blocks last a second and more than one step, because their ends wait for the device.
    count = 1 if part.smoke else max(2, min(20, int(1 / blocks[0]["wall"])))
    blocks = [step.block(count) for _ in range(2 if part.smoke else 3)]
    wall = statistics.median(block["wall"] for block in blocks)
    tflop = floor_of(counted(job))["tflop"]
    tflops = tflop / wall
    found = dict(
        batch=job.batch,
        frames=job.frames,
        size=job.size,
        step_s=wall,
        clips_per_s=2 * job.batch / wall,
        videos_per_s=job.batch / wall,
        gflops_per_video=1e3 * tflop / job.batch,
        tflops=tflops,
        share_of_measured_peak=tflops / peak,
        peak_memory_gib=step.memory() / 2**30,
        start_s=ready,
        range_s=[min(b["wall"] for b in blocks), max(b["wall"] for b in blocks)],
    )
    return {**found, **after(step)}


def augmentation(part: Part) -> dict[str, Any]:
    """Measure the data preprocessor, fused and operation by operation, and their difference."""
    job = job_of(part, "r50 8x224", BEST)
    cfg, batches = job_config(job), copied_ahead(synthetic_batches(job), torch.device(part.device))
    batch, found = next(batches), {}
    views = {}
    for name, fused in (("one by one", False), ("fused", True)):
        settings = {**cfg.data_preprocessor, "fused": fused}
        preprocessor = MODELS.build(settings).to(part.device)
        begin = time.perf_counter()
        views[name] = preprocessor(batch, training=True)["inputs"]
        part.synchronize()
        ready = time.perf_counter()
        repeats = 10 if part.on_gpu else 1
        for _ in range(repeats):
            preprocessor(batch, training=True)
        part.synchronize()
        seconds = (time.perf_counter() - ready) / repeats
        found[name] = dict(ms=1e3 * seconds, first_s=ready - begin, fused=preprocessor.fused)
    pairs = zip(*views.values(), strict=True)
    return {**found, "difference": max(float((a - b).abs().max()) for a, b in pairs)}


def floor(part: Part, case: str, peaks: dict[str, Any]) -> dict[str, Any]:
    """Return the least seconds of a step by operations and bytes, at measured peak and bandwidth.

    Without a GPU, only operations and bytes are returned.
    """
    device = None
    if part.on_gpu:
        device = Device(peaks["bf16_tflops"], peaks["copy_gb_per_s"])
    job = job_of(part, case, BEST)
    measured = part.found.get(f"{case}, {BEST}", {}).get("step_s")
    found = floor_of(counted(job), device)
    if device is not None and measured:
        found["step_over_eager_floor"] = measured / found["eager_s"]
        found["step_over_convolutions_floor"] = measured / found["convolutions_s"]
    return found


def details(part: Part, step: Step) -> dict[str, Any]:
    """Measure time by part (each waits for the device), host waits, kernels and copies."""
    waits = step.waits()
    clock = "wall" if part.on_gpu else "cpu"
    parts = shares_of_parts([step(), step()], clock)
    return dict(
        parts=parts, host_waits=sum(waits.values()), host_wait_lines=waits,
        profile=profiled_step(step),
    )  # fmt: skip


def largest_batch(part: Part, job: Job) -> dict[str, Any]:
    """Find the largest batch that fits, by doubling and three bisections, and its speed."""
    step = Step(job)
    step.model.data_preprocessor.fused = False  # would compile for each size that is tried
    cap = BATCH_CAP[part.device]

    def fits(samples: int) -> bool:
        try:
            step.use_batches_of(samples)
            step.block(1)
        except torch.OutOfMemoryError:
            step.optim_wrapper.zero_grad()
            step.model.discard_step()
            torch.cuda.empty_cache()
            return False
        return True

    good, bad = 0, None
    trial = job.batch
    while bad is None and trial <= cap and part.left > 10:
        if fits(trial):
            good, trial = trial, 2 * trial
        else:
            bad = trial
    for _ in range(3):
        if bad is None or bad - good < 16 or part.left < 10:
            break
        trial = (good + bad) // 2 // 8 * 8
        if fits(trial):
            good = trial
        else:
            bad = trial
    found = dict(largest_batch=good, too_large=bad, cap=cap)
    if good:
        step.use_batches_of(good)
        block = step.block(1)
        found |= dict(clips_per_s=2 * good / block["wall"], memory_gib=step.memory() / 2**30)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    part = Part("step", argv)
    found = part.run("peaks", lambda: peaks(part))
    if part.on_gpu:  # the smoke run leaves this out, because the compiler for CPUs takes a minute
        part.run("augmentation", lambda: augmentation(part), 30.0)
    peak = (found or {}).get("bf16_tflops", float("nan"))
    order = ORDER[:1] + ORDER[3:4] + ORDER[6:7] + ORDER[11:12] if part.smoke else ORDER
    for number, (case, setting) in enumerate(order):
        name = f"{case}, {setting}"
        job = job_of(part, case, setting)
        why = next((w for f in sorted(job.flags) if (w := obstacle(f, part.device))), None)
        if why is not None and not (part.smoke and "bf16" in why):
            part.leave_out(name, why)
            continue
        first = number == 0

        def more(step: Step, first: bool = first) -> dict[str, Any]:
            return details(part, step) if first else {}

        needs = 0.0 if part.smoke else 75.0 if {"compile", "graphs"} & job.flags else 12.0
        part.run(name, lambda j=job, m=more: measure(part, j, peak, m), needs)
        if number == 3 or (part.smoke and first):
            search_batch(part, "r50 8x224")
            for name in ("r50 8x224", "r18 8x224"):
                part.run(f"{name}, floor", lambda n=name: floor(part, n, found or {}), 8.0)
    for case in () if part.smoke else CASES:  # the first has been searched
        search_batch(part, case)
    return 0


def search_batch(part: Part, case: str) -> None:
    """Find the largest batch of a case in the fastest setting that is known beforehand."""
    job = job_of(part, case, BEST)
    job = replace(job, batch=2) if part.smoke else job
    part.run(f"{case}, largest batch", lambda: largest_batch(part, job), 15.0)


if __name__ == "__main__":
    sys.exit(main())
