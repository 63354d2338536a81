"""Time of the SCE training step of the recipes: eager fp32 against faster settings, in one run.

    python benchmarks/train_step.py [--network r3d18 r3d50 | --recipe CONFIG.py] [--frames 8]
        [--size 224] [--batch N] [--settings eager best ...] [--steps N] [--rounds N]
        [--device cpu|cuda] [--threads 1] [--videos DIR [--workers N]] [--peak-tflops X] [--profile]
        [--json OUT] [--cfg-options KEY=VALUE ...]

--recipe measures a recipe of SCE with two views, of videos or images, as it is: its frames, size
and batch, unless given. --videos may then be a folder of images, or of an archive (CIFAR).

A setting is ``eager`` (the recipe in fp32), ``best`` (what this device is fastest with), or parts
joined by "+": ``bf16``, ``channels_last``, ``compile`` (the backbones, as the config's ``compile``
does), ``keep_memory`` (CPU: glibc's malloc keeps freed memory for the next step and does not return
it to the system; see KEEP_MEMORY). LARS and the target update are multi-tensor in all settings. A
setting that this machine cannot run is left out, and the reason is printed.

Every setting runs in its own process (so that its peak memory can be measured) and the steps of the
settings are interleaved, one process at a time; results are medians over the steps. A step is:
augmentation of uint8 views, online and target forward, loss, backward, LARS, target update, queue.
The views are random bytes in memory; with --videos they come from the recipe's loader over that
folder, and the time spent waiting for the loader is a part of the step; ``training_hours`` are then
those of all epochs of the recipe at the measured speed.

The JSON's ``ratios`` are those of the first network; ``networks`` has those of each network:
``best_over_eager``, and ``lars_and_target_share``, the share of LARS and the target update in a
step, as the largest over the settings. On a CPU with one thread both are of CPU time, which is less
sensitive to other load, otherwise of wall time (``clock`` names which).

FLOPs are those of forward and backward (torch.utils.flop_counter; a multiplication and an addition
count as two). ``share_of_peak`` is relative to the dense bf16 peak, also in fp32. If the peak is
unknown (CPUs; --peak-tflops sets it), the fastest matrix product or 3x3 convolution measured in the
process with the setting's number type replaces it.
"""

from __future__ import annotations

import argparse
import logging
import math
import multiprocessing
import os
import platform
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

import sce_video.engine  # noqa: F401  registers LARS and the optim wrapper
from sce_video.engine.config import load_config
from sce_video.models.algorithms import sce
from sce_video.registry import MODELS
from sce_video.utils.atomic_file import write_json

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "sce"
RECIPES = {
    "r3d18": "sce_r3d18_8xb64-8x224-200e_k400.py",
    "r3d50": "sce_r3d50_8xb64-8x224-200e_k400.py",
}
FLAGS = ("bf16", "channels_last", "compile", "keep_memory")
# Otherwise every large tensor is a new mapping, whose pages the system zeroes one by one.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
# Parts of a step, in order; "figures" is the time of the collapse metrics h_std and h_rank.
PARTS = (
    "data",
    "augmentation",
    "online forward",
    "target forward",
    "loss",
    "figures",
    "backward",
    "optimiser",
    "target update",
    "queue",
)
# Dense bf16 TFLOP/s (V100, T4: fp16) of the vendors' data sheets; the first matching name is used.
PEAK_TFLOPS = {
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "GH200": 989.0,
    "A100": 312.0,
    "A40": 150.0,
    "A10": 125.0,
    "L40S": 362.0,
    "L4": 121.0,
    "RTX 4090": 165.0,
    "RTX 3090": 71.0,
    "V100": 125.0,
    "T4": 65.0,
}


@dataclass(frozen=True)
class Job:
    """The setting that one process measures."""

    recipe: str
    flags: frozenset[str]
    frames: int | None
    size: int | None
    batch: int | None
    device: str
    threads: int
    videos: str | None
    workers: int
    cfg_options: tuple[str, ...]


def job_config(job: Job) -> Config:
    """The recipe with the sizes and flags of the job."""
    cfg = load_config(CONFIGS / job.recipe, list(job.cfg_options))
    for step in cfg.train_dataloader.dataset.pipeline:
        if step.type == "RandomClips" and job.frames is not None:
            step.num_frames = job.frames
        elif step.type == "RandomResizedCropClips" and job.size is not None:
            step.size = job.size
    if job.batch is not None:
        cfg.train_dataloader.batch_size = job.batch
    cfg.train_dataloader.num_workers = job.workers
    cfg.train_dataloader.persistent_workers = job.workers > 0
    if job.videos is not None:
        cfg.train_dataloader.dataset.data_root = job.videos
        cfg.train_dataloader.dataset.pop("ann_file", None)  # all videos below the folder
    cfg.model.backbone.channels_last = "channels_last" in job.flags
    cfg.data_preprocessor.channels_last = "channels_last" in job.flags
    cfg.optim_wrapper.type = "MixedPrecisionOptimWrapper"
    cfg.optim_wrapper.dtype = "bfloat16" if "bf16" in job.flags else "float32"
    # As at the start of the warm-up: the full rate gives NaN on random bytes, slow on CPUs.
    cfg.optim_wrapper.optimizer.lr = 1e-3
    return cfg


def with_sizes(job: Job) -> Job:
    """The job with the frames, size and batch of its recipe where it has none.

    Raises:
        ValueError: the recipe is not of SCE with two views of one size.
    """
    cfg = job_config(job)
    views = cfg.data_preprocessor.views
    if cfg.model.type != "SCE" or len(views) != 2:
        raise ValueError(f"{job.recipe}: {cfg.model.type} with {len(views)} views, not SCE with 2")
    pipeline = cfg.train_dataloader.dataset.pipeline
    frames = next((step.num_frames for step in pipeline if step.type == "RandomClips"), 1)
    size = next(step.size for step in pipeline if step.type == "RandomResizedCropClips")
    return replace(job, frames=frames, size=size, batch=cfg.train_dataloader.batch_size)


class Stopwatch:
    """Sums wall and CPU seconds by part of the step, without those of nested parts."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.on = True
        self.seconds: dict[str, list[float]] = {}
        self._inner: list[list[float]] = []

    def now(self) -> tuple[float, float]:
        if self.on and self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if not self.on:
            yield
            return
        start = self.now()
        self._inner.append([0.0, 0.0])
        yield
        inner = self._inner.pop()
        passed = [end - begin for end, begin in zip(self.now(), start, strict=True)]
        total = self.seconds.setdefault(name, [0.0, 0.0])
        for clock in range(2):
            total[clock] += passed[clock] - inner[clock]
            if self._inner:
                self._inner[-1][clock] += passed[clock]

    def timed(self, name: str, function: Callable) -> Callable:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return run

    def take(self) -> dict[str, list[float]]:
        seconds, self.seconds = self.seconds, {}
        return seconds


def build_loader(cfg: Config) -> DataLoader:
    """The recipe's loader.

    Raises:
        ValueError: it has no whole batch.
    """
    from sce_video.engine.runner import VideoRunner

    loader = VideoRunner.build_dataloader(cfg.train_dataloader, seed=0)
    if len(loader) == 0:
        raise ValueError(
            f"--videos {cfg.train_dataloader.dataset.data_root} has fewer videos than --batch "
            f"{cfg.train_dataloader.batch_size}: lower --batch"
        )
    return loader


def endless(loader: DataLoader) -> Iterator[dict]:
    """Yield batches, epoch after epoch."""
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        batches = 0
        for batch in loader:
            if batch["inputs"]:  # empty if no sample of the batch could be read
                batches += 1
                yield batch
        if not batches:
            raise ValueError("no video of --videos could be read: check them, tools/data/verify.py")
        epoch += 1


def synthetic_batches(job: Job) -> Iterator[dict]:
    """Yield the same bytes with new seeds: all settings get the same augmentations."""
    generator = torch.Generator().manual_seed(0)
    shape = (job.batch, job.frames, job.size, job.size, 3)
    views = [torch.randint(256, shape, dtype=torch.uint8, generator=generator) for _ in range(2)]
    if job.device == "cuda":
        views = [view.pin_memory() for view in views]
    while True:
        yield dict(inputs=views, seed=torch.randint(2**62, (job.batch,), generator=generator))


class Step:
    """The training step of one setting, with timed parts."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        torch.manual_seed(0)
        MMLogger.get_instance("train_step", log_level=logging.WARNING)  # no log line per weight
        init_default_scope("sce_video")
        cfg = job_config(job)
        torch.backends.cudnn.benchmark = bool(cfg.env_cfg.cudnn_benchmark)
        self.job = job
        self.watch = watch = Stopwatch(job.device)
        self.model = MODELS.build({**cfg.model, "data_preprocessor": cfg.data_preprocessor})
        self.model.init_weights()
        self.model.to(job.device).train()
        self.optim_wrapper = build_optim_wrapper(self.model, cfg.optim_wrapper)
        if "compile" in job.flags:
            for name, module in self.model.named_modules():
                if name.split(".")[-1] == "backbone":
                    module.compile()
        model = self.model
        model.target.forward = watch.timed("target forward", model.target.forward)
        sce.objective.terms = watch.timed("loss", sce.objective.terms)  # of this process
        model.collapse_metrics = watch.timed("figures", model.collapse_metrics)
        model.queue.stage = watch.timed("queue", model.queue.stage)
        model.queue.commit = watch.timed("queue", model.queue.commit)
        model.target.update = watch.timed("target update", model.target.update)
        self.total_steps: int | None = None  # of the recipe's epochs
        if job.videos:
            loader = build_loader(cfg)
            self.total_steps = cfg.train_cfg.max_epochs * len(loader)
            self.batches = endless(loader)
        else:
            self.batches = synthetic_batches(job)

    def __call__(self) -> dict[str, Any]:
        """Run one step; returns its seconds and those of its parts."""
        watch = self.watch
        if self.job.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter(), time.process_time()
        with watch.part("data"):
            batch = next(self.batches)
        waited = time.perf_counter() - start[0]
        with watch.part("augmentation"):
            data = self.model.data_preprocessor(batch, True)
        # The same calls as BaseModel.train_step and the hook that updates the target.
        with self.optim_wrapper.optim_context(self.model), watch.part("online forward"):
            losses = self.model(**data, mode="loss")
            loss, _ = self.model.parse_losses(losses)
        with watch.part("backward"):
            self.optim_wrapper.backward(loss)
        with watch.part("optimiser"):
            self.optim_wrapper.step()
            self.optim_wrapper.zero_grad()
        self.model.after_optimizer_step()
        if self.job.device == "cuda":
            torch.cuda.synchronize()
        wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss is {value}")
        videos = len(batch["inputs"][0])
        return dict(wall=wall, cpu=cpu, waited=waited, videos=videos, parts=watch.take())

    def run(self, steps: int) -> list[dict[str, Any]]:
        """Run some steps. On a GPU parts are timed in an extra step, since timing synchronises."""
        if self.job.device != "cuda":
            return [self() for _ in range(steps)]
        self.watch.on = False
        self()  # allocates again what the last round returned
        results = [self() for _ in range(steps)]
        self.watch.on = True
        results[-1]["parts"] = self()["parts"]
        torch.cuda.empty_cache()  # for the other settings
        return results

    def memory(self) -> int:
        """Peak bytes: allocated on the GPU, or resident in the process."""
        if self.job.device == "cuda":
            return torch.cuda.max_memory_allocated()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak

    def profile(self) -> str:
        """A table of the operations of one step that take longest."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        by = "self_cpu_time_total"
        if self.job.device == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            by = "self_cuda_time_total"
        with torch.profiler.profile(activities=activities) as profiler:
            self()
        return profiler.key_averages().table(sort_by=by, row_limit=16, max_name_column_width=44)


def measured_tflops(job: Job) -> float:
    """TFLOP/s of the fastest matrix product or 3x3 convolution, in the setting's number type.

    Both are measured, since a library can be slow on some CPUs (MKL's fp32 product on AMD).
    """
    dtype = torch.bfloat16 if "bf16" in job.flags else torch.float32
    side, images = (8192, 256) if job.device == "cuda" else (2048, 16)
    a = torch.randn(side, side, device=job.device, dtype=dtype)
    x = torch.randn(images, 256, 28, 28, device=job.device, dtype=dtype)
    x = x.to(memory_format=torch.channels_last)
    weight = torch.randn(256, 256, 3, 3, device=job.device, dtype=dtype)
    weight = weight.to(memory_format=torch.channels_last)
    watch = Stopwatch(job.device)
    clock = 1 if job.device == "cpu" and job.threads == 1 else 0
    best = 0.0
    for _ in range(5):
        for flops, run in (
            (2 * side**3, lambda: a @ a),
            (2 * 9 * 256 * x.numel(), lambda: F.conv2d(x, weight, padding=1)),
        ):
            start = watch.now()
            run()
            best = max(best, flops / (watch.now()[clock] - start[clock]) / 1e12)
    return best


def serve(pipe: Connection, job: Job) -> None:
    """Main function of a setting's process: answers "run", "memory", "measured" and "profile"."""
    try:
        step = Step(job)
        answers: dict[str, Callable[[Any], Any]] = {
            "run": step.run,
            "memory": lambda _: step.memory(),
            "measured": lambda _: measured_tflops(job),
            "total_steps": lambda _: step.total_steps,
            "profile": lambda _: step.profile(),
        }
        pipe.send(("ready", None))
        while True:
            name, argument = pipe.recv()
            if name == "end":
                return
            pipe.send((name, answers[name](argument)))
    except Exception as error:  # a setting that does not run is a result
        pipe.send(("error", f"{type(error).__name__}: {str(error).splitlines()[0]}"))


@contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Set environment variables for processes started in this context."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        for name in changes:
            os.environ.pop(name)
        os.environ.update(before)


class SettingProcess:
    """A setting and its process."""

    def __init__(self, name: str, job: Job) -> None:
        self.name = name
        self.steps: list[dict[str, Any]] = []
        self.flags = job.flags
        self.error: str | None = None
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        # Loader workers are children of this process: it cannot be a daemon.
        self.process = context.Process(target=serve, args=(other, job))
        with environment(KEEP_MEMORY if "keep_memory" in job.flags else {}):
            self.process.start()
        other.close()
        self._receive()

    def ask(self, what: str, argument: Any = None) -> Any:
        if self.error is not None:
            return None
        self.pipe.send((what, argument))
        return self._receive()

    def _receive(self) -> Any:
        try:
            kind, answer = self.pipe.recv()
        except EOFError:
            self.process.join()
            kind, answer = "error", f"the process ended with code {self.process.exitcode}"
        if kind != "error":
            return answer
        self.error = answer
        return None

    def close(self) -> None:
        if self.error is None:
            self.pipe.send(("end", None))
        self.process.join()


def flops_per_video(job: Job) -> float:
    """FLOPs of forward, loss and backward for one sample (two views), without computing them."""
    cfg = job_config(job)
    if "shuffle_bn_splits" in cfg.model:
        cfg.model.shuffle_bn_splits = None  # costs nothing, and needs more than two samples
    model = MODELS.build(cfg.model)
    model.collapse_metrics = lambda h, z: {}  # needs values, which fake tensors do not have
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, FlopCounterMode(display=False) as counter:
        views = [torch.empty(2, 3, job.frames, job.size, job.size) for _ in range(2)]
        model(views, mode="loss")["loss"].backward()
    return counter.get_total_flops() / 2


def cpu_has_bf16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def obstacle(flag: str, device: str) -> str | None:
    """The reason why this machine cannot use a flag, or None."""
    if flag == "bf16" and device == "cpu" and not cpu_has_bf16():
        return "this CPU has no bf16 instructions (avx512_bf16 or amx): bf16 would be slower"
    if flag == "bf16" and device == "cuda" and not torch.cuda.is_bf16_supported(False):
        return "this GPU has no bf16"
    compiler = os.environ.get("CXX", "g++")
    if flag == "compile" and device == "cpu" and not any(map(shutil.which, (compiler, "clang++"))):
        return "torch.compile needs a C++ compiler on a CPU (g++, or $CXX) and there is none"
    if flag == "keep_memory" and (device == "cuda" or platform.libc_ver()[0] != "glibc"):
        return "keep_memory is a setting of glibc's malloc, for CPUs"
    return None


def flags_of(setting: str, device: str) -> frozenset[str]:
    """The flags of a setting; ``best`` has those that help and are available on this device.

    Raises:
        ValueError: an unknown part.
    """
    if setting == "eager":
        return frozenset()
    if setting == "best":
        # On a CPU torch.compile takes a minute and does not help: see docs/performance.md.
        helps = ["bf16", "channels_last", "compile" if device == "cuda" else "keep_memory"]
        return frozenset(flag for flag in helps if obstacle(flag, device) is None)
    flags = setting.split("+")
    for flag in flags:
        if flag not in FLAGS:
            raise ValueError(
                f"unknown setting {setting!r}: eager, best, or parts of {', '.join(FLAGS)} "
                'joined by "+"'
            )
    return frozenset(flags)


def peak_tflops(name: str) -> float | None:
    """Dense bf16 peak in TFLOP/s of a GPU by its name; None if it is not in the table."""
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)


def summary(process: SettingProcess, flops: float, args: argparse.Namespace) -> dict[str, Any]:
    """The results of one setting; empty if it did not run."""
    memory, measured = process.ask("memory"), process.ask("measured")
    total_steps = process.ask("total_steps")
    if process.error is not None:
        return {}
    steps = process.steps
    medians = {k: statistics.median(step[k] for step in steps) for k in ("videos", "wall", "cpu")}
    seconds = medians[args.clock]
    peak = args.peak_tflops
    if peak is None and args.device == "cuda":
        peak = peak_tflops(torch.cuda.get_device_name())
    speed = flops * medians["videos"] / seconds / 1e12
    return dict(
        flags=sorted(process.flags),
        seconds=dict(
            wall=medians["wall"], cpu=medians["cpu"], steps=[step[args.clock] for step in steps]
        ),
        videos_per_s=medians["videos"] / medians["wall"],
        clips_per_s=2 * medians["videos"] / medians["wall"],
        parts=shares_of_parts(steps, args.clock),
        data_wait_share=statistics.median(step["waited"] / step["wall"] for step in steps),
        training_hours=None if total_steps is None else total_steps * medians["wall"] / 3600,
        peak_memory_bytes=memory,
        tflops=speed,
        measured_tflops=measured,
        peak_tflops=peak or measured,
        share_of_peak=speed / (peak or measured),
    )


def shares_of_parts(steps: list[dict[str, Any]], clock: str) -> dict[str, float]:
    """Share of every part in a step, by medians; waiting for data takes no CPU time."""
    column = ("wall", "cpu").index(clock)
    measured = [step["parts"] for step in steps if step["parts"]]
    medians = {
        part: statistics.median(parts.get(part, (0.0, 0.0))[column] for parts in measured)
        for part in PARTS
    }
    total = sum(medians.values())
    return {part: seconds / total for part, seconds in medians.items()}


def measure(recipe: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure all settings of a recipe, interleaved."""
    job = Job(
        recipe=recipe,
        flags=frozenset(),
        frames=args.frames,
        size=args.size,
        batch=args.batch,
        device=args.device,
        threads=args.threads,
        videos=args.videos,
        workers=args.workers,
        cfg_options=tuple(args.cfg_options),
    )
    job = with_sizes(job)
    flops = flops_per_video(job)
    processes: list[SettingProcess] = []
    left_out: dict[str, str] = {}
    try:
        for setting in args.settings:
            flags = flags_of(setting, args.device)
            reasons = [
                why for flag in FLAGS if flag in flags and (why := obstacle(flag, args.device))
            ]
            if reasons:
                left_out[setting] = reasons[0]
            else:
                processes.append(SettingProcess(setting, replace(job, flags=flags)))
        run_interleaved(processes, args)
        settings = {}
        for process in processes:
            values = summary(process, flops, args)
            if process.error is None:
                settings[process.name] = values
            else:
                left_out[process.name] = process.error
    finally:
        for process in processes:
            process.close()
    return dict(
        frames=job.frames,
        size=job.size,
        batch=job.batch,
        gflops_per_video=flops / 1e9,
        settings=settings,
        left_out=left_out,
        ratios=ratios(settings, args.clock),
    )


def run_interleaved(processes: list[SettingProcess], args: argparse.Namespace) -> None:
    for process in processes:
        process.ask("run", 1)  # warms up, compiles
    for number in range(args.rounds):
        for process in processes[:: 1 if number % 2 == 0 else -1]:
            process.steps += process.ask("run", args.steps) or []
    if args.profile:
        for process in processes:
            table = process.ask("profile")
            if table is not None:
                print(f"\n{process.name}\n{table}")


def ratios(settings: dict[str, dict], clock: str) -> dict[str, float]:
    """Speed-up of every setting over eager, and the largest share of LARS and target update."""
    speeds = {}
    if "eager" in settings:
        base = settings["eager"]["seconds"][clock]
        speeds = {
            f"{name}_over_eager": base / values["seconds"][clock]
            for name, values in settings.items()
            if name != "eager"
        }
    shares = [s["parts"]["optimiser"] + s["parts"]["target update"] for s in settings.values()]
    return {**speeds, **({"lars_and_target_share": max(shares)} if shares else {})}


def show(network: str, result: dict[str, Any]) -> None:
    print(
        f"\n{network}, batch {result['batch']}, two views of {result['frames']}x{result['size']}: "
        f"{result['gflops_per_video']:.1f} GFLOP per video and step"
    )
    for name, why in result["left_out"].items():
        print(f"  {name}: left out: {why}")
    for name, values in result["settings"].items():
        seconds = values["seconds"]
        ratio = result["ratios"].get(f"{name}_over_eager")
        print(
            f"  {name} ({', '.join(values['flags']) or 'fp32'}): "
            f"{seconds['wall']:.3f} s per step, {seconds['cpu']:.3f} s of CPU time, "
            f"{values['clips_per_s']:.1f} clips/s"
            + (f", {ratio:.2f} x eager" if ratio is not None else "")
        )
        print(
            f"    {values['tflops']:.3f} TFLOP/s, {100 * values['share_of_peak']:.0f} % of "
            f"{values['peak_tflops']:.3f}; peak memory {values['peak_memory_bytes'] / 2**30:.2f} "
            f"GiB; waits for data {100 * values['data_wait_share']:.1f} % of the time"
        )
        if values["training_hours"] is not None:
            print(f"    all epochs of the recipe at this speed: {values['training_hours']:.1f} h")
        shares = (f"{part} {100 * share:.1f}" for part, share in values["parts"].items())
        print(f"    parts, %: {', '.join(shares)}")
    if "lars_and_target_share" in result["ratios"]:
        share = result["ratios"]["lars_and_target_share"]
        print(f"  LARS and target update: {100 * share:.2f} % of a step at most")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--network", nargs="+", choices=sorted(RECIPES), default=["r3d18"])
    what.add_argument("--recipe", metavar="CONFIG.py", help="of SCE, of videos or images")
    parser.add_argument("--frames", type=int, help="of a clip; 8, or the recipe's")
    parser.add_argument("--size", type=int, help="pixels; 224, or the recipe's")
    parser.add_argument(
        "--batch", type=int, help="videos; the recipe's; for --network on a CPU 16, else 64"
    )
    parser.add_argument("--settings", nargs="+", default=["eager", "best"])
    parser.add_argument("--steps", type=int, help="steps per round: 10 on a GPU, 1 on a CPU")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every setting")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on a CPU")
    parser.add_argument(
        "--videos", metavar="DIR", help="videos or images to load instead of random bytes"
    )
    parser.add_argument("--workers", type=int, default=1, help="loader workers for --videos")
    parser.add_argument("--peak-tflops", type=float, help="dense bf16 peak of the device")
    parser.add_argument(
        "--profile", action="store_true", help="print the slowest operations of each setting"
    )
    parser.add_argument("--json", metavar="OUT", help="JSON file for the results")
    parser.add_argument("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE")
    args = parser.parse_args(argv)
    for name in ("frames", "size", "batch", "steps", "rounds", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    if args.device not in ("cpu", "cuda"):
        parser.error(f"--device must be cpu or cuda, got {args.device!r}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU")
    try:
        for setting in args.settings:
            flags_of(setting, args.device)
    except ValueError as error:
        parser.error(f"--settings: {error}")
    if args.videos is not None and not Path(args.videos).is_dir():
        parser.error(f"--videos {args.videos}: no such folder")
    if args.recipe is not None and not Path(args.recipe).is_file():
        parser.error(f"--recipe {args.recipe}: no such file")
    on_gpu = args.device == "cuda"
    if args.recipe is None:
        args.frames, args.size = args.frames or 8, args.size or 224
        args.batch = args.batch or (64 if on_gpu else 16)
    args.steps = args.steps or (10 if on_gpu else 1)
    args.clock = "cpu" if not on_gpu and args.threads == 1 else "wall"
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    # No log line per weight while configs are loaded and models are built.
    MMLogger.get_instance("train_step", log_level=logging.WARNING)
    init_default_scope("sce_video")
    device = torch.cuda.get_device_name() if args.device == "cuda" else platform.machine() + " CPU"
    print(f"{device}, torch {torch.__version__}, {args.threads} threads, load {os.getloadavg()}")
    recipes = {network: RECIPES[network] for network in args.network}
    if args.recipe is not None:
        recipes = {Path(args.recipe).stem: str(Path(args.recipe).resolve())}
    networks = {}
    try:
        for network, recipe in recipes.items():
            networks[network] = measure(recipe, args)
            show(network, networks[network])
    except ValueError as error:
        print(f"train_step: {error}", file=sys.stderr)
        return 2
    report = dict(
        device=device,
        torch=torch.__version__,
        threads=args.threads,
        clock=args.clock,
        load=os.getloadavg(),
        steps=args.steps * args.rounds,
        videos=args.videos is not None,
        networks=networks,
        ratios=next(iter(networks.values()))["ratios"],
    )
    if args.json:
        write_json(args.json, report)
    return 0 if all(network["settings"] for network in networks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
