"""Measured times of a training run: its steps, its videos, an epoch."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope

from sce_video.datasets.pipeline import PackedSample
from sce_video.datasets.video_dataset import SampleRequest, VideoDataset
from sce_video.models.algorithms import SelfSupervisedModel
from sce_video.models.memory_format import move_to_device
from sce_video.registry import DATASETS, MODELS
from sce_video.runs.choices import samples_of_epoch
from sce_video.runs.teacher import PlannedTeacher
from sce_video.utils.cores import cores_for_workers
from sce_video.utils.tensors import cudnn_benchmark

#: Steps that are timed, after a first one.
_STEPS = 3
#: Maximum number of decoded videos.
_DECODED = 12
#: Seconds after which no further video is decoded.
_MAX_SECONDS = 20.0


@dataclass(frozen=True)
class Timing:
    """Measured times of a training run.

    Attributes:
        step: Seconds of forward and backward of a batch.
        sample: Seconds in which one core makes the views of a video.
        batch: Samples of a step.
        samples: Samples of an epoch.
        on_gpu: Whether the loader works next to the device. On a CPU they share the cores.
    """

    step: float
    sample: float
    batch: int
    samples: int
    on_gpu: bool

    def epoch(self, cores: int, workers: int) -> float:
        """Return the seconds of an epoch, without evaluations and checkpoints.

        On a GPU the slower one of step and loading counts, since they overlap; on a CPU their sum,
        with the loading shared by all cores.
        """
        loading = self.batch * self.sample
        if self.on_gpu:
            return self.samples // self.batch * max(self.step, loading / max(1, workers))
        return self.samples // self.batch * (self.step + loading / cores)

    def loading(self, workers: int) -> float:
        """Return the time in which the workers make a batch, as a multiple of a step's time."""
        return self.batch * self.sample / max(1, workers) / self.step

    def features(self, networks: float) -> float:
        """Return the seconds in which a core reads a video and several networks embed two clips."""
        return self.sample + networks * self.step / self.batch


def measure(cfg: Config, teacher: PlannedTeacher | None = None) -> Timing:
    """Time a few steps and a few videos of a training run's dataset, model and loader.

    Args:
        cfg: Config of the training.
        teacher: Teacher of a distillation.
    """
    loader = cfg.train_dataloader
    dataset, batch = DATASETS.build(loader.dataset), loader.batch_size
    sample, seconds = _decode(dataset)
    step = _time_step(cfg, sample, teacher)
    samples = samples_of_epoch(len(dataset), loader.sampler.get("min_samples") or 0)
    if not loader.get("drop_last"):
        samples = math.ceil(samples / batch) * batch
    return Timing(step, seconds, batch, samples, on_gpu=torch.cuda.is_available())


def _time_step(cfg: Config, sample: PackedSample, teacher: PlannedTeacher | None) -> float:
    """Return the median seconds of a step, forward and backward, on random views.

    Args:
        cfg: Config of the training.
        sample: Sample of the dataset, whose views have the real shapes.
        teacher: Teacher of a distillation.
    """
    batch, on_gpu = cfg.train_dataloader.batch_size, torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    dtype = getattr(torch, cfg.optim_wrapper.get("dtype", "float32"))
    settings = {"data_preprocessor": cfg.get("data_preprocessor"), **cfg.model.to_dict()}
    views = [
        torch.randint(0, 256, (batch, *view.shape), dtype=torch.uint8)
        for view in sample["inputs"] or []
    ]
    first = torch.zeros(batch, dtype=torch.int64)  # labels, videos and clips, of which any will do
    seeds, taken = torch.arange(batch), []
    # Inside mmaction2's recogniser names are looked up in the default scope.
    scope = DefaultScope.overwrite_default_scope("sce_video")
    tuned = cudnn_benchmark(bool(cfg.get("env_cfg", {}).get("cudnn_benchmark")))
    with cores_for_workers(cfg.train_dataloader.num_workers), scope, tuned:
        model = move_to_device(MODELS.build(settings), device).train()
        if teacher is not None:
            teacher.stand_in(model, cfg)
        for _ in range(1 + _STEPS):
            begin = time.monotonic()
            mixed = torch.autocast(device.type, dtype) if dtype != torch.float32 else nullcontext()
            with mixed:
                data = {"inputs": views, "label": first, "index": first, "clip": first}
                data = model.data_preprocessor({**data, "seed": seeds}, training=True)
                loss, _ = model.parse_losses(model(**data, mode="loss"))
            loss.backward()
            if on_gpu:
                torch.cuda.synchronize()
            taken.append(time.monotonic() - begin)
            if isinstance(model, SelfSupervisedModel):
                model.discard_step()
            else:
                model.zero_grad()
    return median(taken[1:])  # the first step allocates memory, compiles and tunes cuDNN


def _decode(dataset: VideoDataset) -> tuple[PackedSample, float]:
    """Return a sample, and the median seconds that this process needs for one.

    If a batch is read ahead, its seconds are shared, since latency is paid once for all of it.
    """
    requests = [SampleRequest(index, index) for index in range(min(_DECODED, len(dataset)))]
    if getattr(dataset, "reads_ahead", False):
        dataset[requests[0]]  # opens the table
        begin = time.monotonic()
        samples = dataset.__getitems__(requests)
        return samples[-1], (time.monotonic() - begin) / len(samples)
    sample: PackedSample = {}
    taken = []
    for request in requests:
        begin = time.monotonic()
        sample = dataset[request]
        taken.append(time.monotonic() - begin)
        if sum(taken) > _MAX_SECONDS:
            break
    return sample, median(taken)
