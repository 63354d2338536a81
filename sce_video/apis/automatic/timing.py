"""How long an epoch will take: a few training steps and a few decoded videos, measured."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median

import torch
from mmengine.config import Config

from sce_video.apis.automatic.choices import samples_of_epoch
from sce_video.datasets import SampleRequest, VideoDataset
from sce_video.registry import DATASETS, MODELS
from sce_video.utils.threads import cores_for_workers

_STEPS = 3
_DECODED = 12
_MAX_SECONDS = 20.0


@dataclass(frozen=True)
class Timing:
    """Measured times of a pretraining.

    Attributes:
        step: Seconds of forward and backward of a batch.
        sample: Seconds in which one core makes the views of a video.
        batch: Samples of a step.
        samples: Of an epoch.
        on_gpu: Whether the loader works beside the device; on a CPU they share the cores.
    """

    step: float
    sample: float
    batch: int
    samples: int
    on_gpu: bool

    def epoch(self, cores: int, workers: int) -> float:
        """Seconds of an epoch, without evaluation and checkpoints."""
        loading = self.batch * self.sample
        if self.on_gpu:
            return self.samples // self.batch * max(self.step, loading / max(1, workers))
        return self.samples // self.batch * (self.step + loading / cores)

    def loading(self, workers: int) -> float:
        """Time in which the workers make a batch, in that of a step."""
        return self.batch * self.sample / max(1, workers) / self.step

    def features(self, networks: int) -> float:
        """Seconds in which one core reads a video and several networks embed its two clips."""
        return self.sample + networks * self.step / self.batch

    def workers(self) -> int:
        """Loader workers that make a batch in the time of a step."""
        return max(1, math.ceil(self.batch * self.sample / self.step))


def measure(cfg: Config) -> Timing:
    """Time a few steps and a few videos.

    The first step is not counted: it allocates memory and tunes cuDNN.

    Args:
        cfg: Config of the training; its data set, model and loader are used.
    """
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    sample, seconds = _decode(dataset)
    batch = cfg.train_dataloader.batch_size
    with cores_for_workers(cfg.train_dataloader.num_workers):
        step = _step_seconds(cfg, [tuple(view.shape) for view in sample["inputs"]], batch)
    return Timing(
        step=step,
        sample=seconds,
        batch=batch,
        samples=samples_of_epoch(
            len(dataset), cfg.train_dataloader.sampler.get("min_samples") or 0
        ),
        on_gpu=torch.cuda.is_available(),
    )


def _decode(dataset: VideoDataset) -> tuple[dict, float]:
    """A sample, and the median seconds of one in this process.

    Where a batch is read ahead, its seconds are shared, since latency is paid once for all of it.
    """
    sample, taken = {}, []
    if getattr(dataset, "reads_ahead", False):
        dataset[SampleRequest(0, 0)]  # opens the table
        requests = [SampleRequest(index, index) for index in range(min(_DECODED, len(dataset)))]
        begin = time.monotonic()
        samples = dataset.__getitems__(requests)
        return samples[-1], (time.monotonic() - begin) / len(samples)
    start = time.monotonic()
    for index in range(min(_DECODED, len(dataset))):
        begin = time.monotonic()
        sample = dataset[SampleRequest(index, index)]
        taken.append(time.monotonic() - begin)
        if time.monotonic() - start > _MAX_SECONDS:
            break
    return sample, median(taken)


def _step_seconds(cfg: Config, shapes: list[tuple[int, ...]], batch: int) -> float:
    """Median seconds of forward and backward on random views (T, H, W, 3) of these shapes."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model_cfg = cfg.model.to_dict()
    model_cfg.setdefault("data_preprocessor", cfg.get("data_preprocessor"))
    model = MODELS.build(model_cfg).to(device).train()
    views = [torch.randint(0, 256, (batch, *shape), dtype=torch.uint8) for shape in shapes]
    dtype = getattr(torch, cfg.optim_wrapper.get("dtype", "float32"))
    taken = []
    for _ in range(1 + _STEPS):
        begin = time.monotonic()
        data = {"inputs": views}
        mixed = torch.autocast(device.type, dtype) if dtype != torch.float32 else nullcontext()
        with mixed:
            losses = model(**model.data_preprocessor(data, training=True), mode="loss")
        losses["loss"].backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.monotonic() - begin)
        model.discard_step()
    return median(taken[1:])
