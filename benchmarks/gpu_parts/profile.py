"""Time of a step by the profiler: kernels by kind, copies, and waits of the host."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch
from step_process import Step
from torch.autograd import DeviceType

#: The first kind with a word in the kernel's name is used, otherwise "other".
KINDS = {
    "copies": ("memcpy", "memset"),
    "convolutions, products": (
        *("conv", "cudnn", "gemm", "xmma", "cutlass", "wgrad", "dgrad", "fprop", "nvjet", "mm"),
    ),
    "batch norm": ("batch_norm", "batchnorm", "bn_", "native_batch"),
    "pooling": ("pool",),
    "foreach (LARS, target)": ("multi_tensor", "foreach"),
    "softmax, reductions": ("softmax", "reduce", "logsumexp", "norm", "sum"),
    "pointwise": ("elementwise", "vectorized", "copy", "add", "mul", "relu", "index", "triton"),
}
_WAITS = ("synchronize", "cudamemcpy")


def kind_of(name: str) -> str:
    lower = name.lower()
    return next((kind for kind, words in KINDS.items() if any(w in lower for w in words)), "other")


def profiled_step(step: Step) -> dict[str, Any]:
    """Return milliseconds of one step by kind of kernel (on a CPU: operation) and of host waits.

    ``idle_ms`` is the time in which no kernel ran, and ``gaps`` is its share.
    """
    on_gpu = step.job.device == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    step.block(1)
    with torch.profiler.profile(activities=activities) as profiler:
        start = time.perf_counter()
        step.block(1)
        wall = 1e3 * (time.perf_counter() - start)
    kinds: dict[str, float] = defaultdict(float)
    names: dict[str, float] = defaultdict(float)
    waits, spans = 0.0, []
    for event in profiler.events():
        if event.name.startswith(("Optimizer.", "ProfilerStep")):  # ranges around kernels
            continue
        duration = event.time_range.elapsed_us() / 1e3
        if event.device_type == (DeviceType.CUDA if on_gpu else DeviceType.CPU):
            own = duration if on_gpu else event.self_cpu_time_total / 1e3
            kinds[kind_of(event.name)] += own
            names[event.name] += own
            spans.append((event.time_range.start / 1e3, event.time_range.end / 1e3))
        elif any(word in event.name.lower() for word in _WAITS):
            waits += duration
    top = sorted(names.items(), key=lambda item: -item[1])[:12]
    found = dict(
        step_ms=wall,
        kinds_ms={k: round(v, 3) for k, v in sorted(kinds.items(), key=lambda item: -item[1])},
        top_ms={name[:90]: round(v, 3) for name, v in top},
        host_calls_that_wait_ms=waits,
    )
    if on_gpu:
        busy = _covered(spans)
        found |= dict(idle_ms=wall - busy, gaps=1 - busy / wall)
    return found


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
