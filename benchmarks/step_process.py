"""One setting of the training step in its own process, for benchmarks/train_step.py.

With one process per setting, the peak memory belongs to this setting.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from torch import nn
from torch.utils.data import DataLoader

import sce_video.engine  # noqa: F401  registers LARS and the optim wrapper
from sce_video.engine.compile import compile_backbones, fold_backbones
from sce_video.engine.config.load import load_config
from sce_video.engine.train_loop import copied_ahead
from sce_video.models.algorithms import sce
from sce_video.models.losses import collapse
from sce_video.registry import MODELS

REPO = Path(__file__).resolve().parents[1]
sys.path.append(str(REPO / "tests"))

from helpers.host_waits import host_waits  # noqa: E402  (a tool of the tests)

CONFIGS = REPO / "configs" / "sce"
RECIPES = {
    "r3d18": "sce_r3d18_8xb64-8x224-200e_k400.py",
    "r3d50": "sce_r3d50_8xb64-8x224-200e_k400.py",
}
# Without these settings, every large tensor is a new mapping whose pages the system zeroes.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
_LOSS_TERMS = sce.sce_terms
# Parts of a step in order. "figures" is the time of the collapse metrics h_std and h_rank.
PARTS = (
    *("data", "augmentation", "online forward", "target forward", "loss", "figures"),
    *("backward", "optimiser", "target update", "queue"),
)


@dataclass(frozen=True)
class Job:
    """The setting that one process measures."""

    recipe: str
    frames: int | None
    size: int | None
    batch: int | None
    flags: frozenset[str] = frozenset()
    device: str = "cpu"
    threads: int = 1
    videos: str | None = None
    workers: int = 0
    cfg_options: tuple[str, ...] = ()
    compiler: str = "inductor"
    """Backend of torch.compile."""


def job_config(job: Job) -> Config:
    """Return the recipe with the sizes and flags of the job."""
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
    cfg.model.backbone.with_cp = "with_cp" in job.flags
    cfg.data_preprocessor.channels_last = "channels_last" in job.flags
    cfg.optim_wrapper.type = "MixedPrecisionOptimWrapper"
    cfg.optim_wrapper.dtype = "bfloat16" if "bf16" in job.flags else "float32"
    # Use the learning rate at the start of the warm-up. The full one gives NaN on random bytes.
    cfg.optim_wrapper.optimizer.lr = 1e-3
    return cfg


def with_sizes(job: Job) -> Job:
    """Return the job with the recipe's frames, size and batch if it has none.

    Raises:
        ValueError: If the recipe is not of SCE with two views of one size.
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
    """Sums of wall and CPU seconds by part of the step, without nested parts."""

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
    """Build the recipe's loader.

    Raises:
        ValueError: If it has no whole batch.
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
            raise ValueError("no video of --videos could be read: check them, sce-video verify")
        epoch += 1


def synthetic_batches(job: Job) -> Iterator[dict]:
    """Yield the same bytes with new seeds, so that all settings get the same augmentations.

    Beyond 64 samples, the bytes repeat.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (min(job.batch, 64), job.frames, job.size, job.size, 3)
    views = [torch.randint(256, shape, dtype=torch.uint8, generator=generator) for _ in range(2)]
    if job.batch > 64:
        rows = torch.arange(job.batch) % 64
        views = [view[rows] for view in views]
    if job.device == "cuda":
        views = [view.pin_memory() for view in views]
    while True:
        yield dict(inputs=views, seed=torch.randint(2**62, (job.batch,), generator=generator))


class Step:
    """The training step of one setting, with timed parts.

    Args:
        job: Setting to measure.
        wrap: Function that wraps the model on its device, for training with several processes.
    """

    def __init__(self, job: Job, wrap: Callable[[nn.Module], nn.Module] | None = None) -> None:
        torch.set_num_threads(job.threads)
        torch.manual_seed(0)
        if not MMLogger.check_instance_created("train_step"):
            MMLogger.get_instance("train_step", log_level=logging.WARNING)  # no line per weight
        init_default_scope("sce_video")
        cfg = job_config(job)
        tuned = bool(cfg.env_cfg.cudnn_benchmark) and "no_benchmark" not in job.flags
        torch.backends.cudnn.benchmark = tuned
        tf32 = "tf32" in job.flags
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        self.job = job
        self.watch = watch = Stopwatch(job.device)
        self.model = MODELS.build({**cfg.model, "data_preprocessor": cfg.data_preprocessor})
        self.model.init_weights()
        self.model.to(job.device).train()
        self.wrapped = self.model if wrap is None else wrap(self.model)
        self.optim_wrapper = build_optim_wrapper(self.wrapped, cfg.optim_wrapper)
        if "conv_2d" in job.flags:
            fold_backbones(self.model)
        if "graphs" in job.flags:  # compiled, and replayed as CUDA graphs
            compile_backbones(self.model, {"mode": "reduce-overhead"})
        elif "compile" in job.flags:
            compile_backbones(self.model, {"backend": job.compiler})
        model = self.model
        model.target.forward = watch.timed("target forward", model.target.forward)
        sce.sce_terms = watch.timed("loss", _LOSS_TERMS)  # of this process
        model.collapse_metrics = watch.timed("figures", model.collapse_metrics)
        model.queue.stage = watch.timed("queue", model.queue.stage)
        model.queue.commit = watch.timed("queue", model.queue.commit)
        model.target.update = watch.timed("target update", model.target.update)
        self.total_steps: int | None = None  # of the recipe's epochs
        if job.videos:
            loader = build_loader(cfg)
            self.total_steps = cfg.train_cfg.max_epochs * len(loader)
            self.batches = copied_ahead(endless(loader), torch.device(job.device))
        else:
            self.use_batches_of(job.batch)

    def use_batches_of(self, samples: int) -> None:
        """Use synthetic batches of another size from now on."""
        batches = synthetic_batches(replace(self.job, batch=samples))
        self.batches = copied_ahead(batches, torch.device(self.job.device))

    def __call__(self) -> dict[str, Any]:
        """Run one step, wait for it, and return its time and the times of its parts, in seconds."""
        watch = self.watch
        if self.job.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter(), time.process_time()
        with watch.part("data"):
            batch = next(self.batches)
        waited = time.perf_counter() - start[0]
        loss = self._advance(batch)
        if self.job.device == "cuda":
            torch.cuda.synchronize()
        wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss is {value}")
        videos = len(batch["inputs"][0])
        return dict(wall=wall, cpu=cpu, waited=waited, videos=videos, parts=watch.take())

    def _advance(self, batch: dict) -> torch.Tensor:
        """Train on a batch without waiting for the device, and return the loss."""
        watch = self.watch
        if "graphs" in self.job.flags:  # they reuse the outputs of a step
            torch.compiler.cudagraph_mark_step_begin()
        with watch.part("augmentation"):
            data = self.model.data_preprocessor(batch, True)
        # The same calls as BaseModel.train_step and the hook that updates the target.
        with self.optim_wrapper.optim_context(self.wrapped), watch.part("online forward"):
            losses = self.wrapped(**data, mode="loss")
            loss, _ = self.model.parse_losses(losses)
        with watch.part("backward"):
            self.optim_wrapper.backward(loss)
        with watch.part("optimiser"):
            self.optim_wrapper.step()
            self.optim_wrapper.zero_grad()
        self.model.after_optimizer_step()
        return loss.detach()

    def block(self, steps: int) -> dict[str, Any]:
        """Run steps without waiting between them, as in a training, and return their mean."""
        self.watch.on = False
        if self.job.device == "cuda":
            torch.cuda.synchronize()
        start, waited = (time.perf_counter(), time.process_time()), 0.0
        for _ in range(steps):
            begin = time.perf_counter()
            batch = next(self.batches)
            waited += time.perf_counter() - begin
            loss = self._advance(batch)
        if self.job.device == "cuda":
            torch.cuda.synchronize()
        wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
        self.watch.on = True
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"the loss is {loss.item()}")
        mean = dict(wall=wall / steps, cpu=cpu / steps, waited=waited / steps)
        return dict(**mean, videos=len(batch["inputs"][0]), parts={})

    def waits(self) -> dict[str, int]:
        """Count how often the host waits for the device in a step on a given batch, by line.

        On a CPU, these are the waits that a GPU would have.
        """
        batch = next(self.batches)
        self.watch.on = False
        tensors = [*self.model.parameters(), *self.model.buffers()]
        as_on_gpu = mock.patch.object(collapse, "_is_on_host", return_value=False)
        with as_on_gpu, host_waits(tensors) as found:
            self._advance(batch)
        self.watch.on = True
        return dict(found)

    def run(self, steps: int) -> list[dict[str, Any]]:
        """Run some steps. A GPU times parts in an extra step, because timing synchronises."""
        if self.job.device != "cuda":
            return [self() for _ in range(steps)]
        self.watch.on = False
        self()  # allocates again what the last round returned
        results = [self.block(steps)]
        results[-1]["parts"] = self()["parts"]
        torch.cuda.empty_cache()  # for the other settings
        return results

    def memory(self) -> int:
        """Return peak bytes: allocated on the GPU, or resident in the process."""
        if self.job.device == "cuda":
            return torch.cuda.max_memory_allocated()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def measured_tflops(job: Job) -> float:
    """Return TFLOP/s of the fastest matrix product or 3x3 convolution in the setting's dtype.

    Both are measured, because a library can be slow on some CPUs (MKL's fp32 product on AMD).
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
    """Run a setting's process, which answers "run", "memory" and "measured"."""
    try:
        step = Step(job)
        answers: dict[str, Callable[[Any], Any]] = {
            "run": step.run,
            "memory": lambda _: step.memory(),
            "measured": lambda _: measured_tflops(job),
            "total_steps": lambda _: step.total_steps,
        }
        pipe.send(("ready", None))
        while True:
            name, argument = pipe.recv()
            if name == "end":
                return
            pipe.send((name, answers[name](argument)))
    except Exception as error:  # a setting that does not run is a result
        pipe.send(("error", f"{type(error).__name__}: {str(error).splitlines()[0]}"))


class SettingProcess:
    """A setting and its process."""

    def __init__(self, name: str, job: Job) -> None:
        self.name = name
        self.steps: list[dict[str, Any]] = []
        self.flags = job.flags
        self.error: str | None = None
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        # Loader workers are children of this process, so it cannot be a daemon.
        self.process = context.Process(target=serve, args=(other, job))
        with mock.patch.dict(os.environ, KEEP_MEMORY if "keep_memory" in job.flags else {}):
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
