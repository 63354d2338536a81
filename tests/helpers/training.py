"""Small trainings on generated videos with the real configs, about a second each."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.videos import write_video
from mmengine.config import Config
from mmengine.hooks import Hook

from sce_video.engine import BudgetHook, VideoRunner
from sce_video.engine.config.load import load_config
from sce_video.options.training import PretrainOptions
from sce_video.runs.plan_pretraining import plan_pretraining
from sce_video.runs.planned_training import PlannedTraining, RunFolder, write_plan
from sce_video.utils.run_files import has_public_teacher

REPO = Path(__file__).resolve().parents[2]
#: Mark of tests that need the weights of EfficientNet-Lite0
needs_teacher = pytest.mark.skipif(
    not has_public_teacher(), reason="the weights of the extra teacher are not installed"
)


def make_videos(
    root: Path, count: int = 12, frames: int = 20, write: Callable = write_video
) -> Path:
    """Write ``count`` tiny h264 files of moving noise in two class folders, with ``write``."""
    for i in range(count):
        rng = np.random.default_rng(i)
        texture = rng.integers(0, 255, (40, 48 + frames, 3), dtype=np.uint8)
        clip = np.stack([texture[:, t : t + 48] for t in range(frames)])
        write(root / f"class{i % 2}" / f"v{i:02d}.mp4", clip)
    return root


def planned_pretraining(videos: str | Path, out: str | Path, **options: Any) -> PlannedTraining:
    """Plan what ``sce_video.pretrain`` with these options would train."""
    given = PretrainOptions(videos=str(videos), out=str(out), **options)
    return plan_pretraining(given, time.monotonic())


def write_planned(planned: PlannedTraining) -> Path:
    """Write a plan into the folder of its run, and return the folder."""
    folder = Path(planned.config.work_dir)
    write_plan(planned, [RunFolder(folder)])
    return folder


def small_config(data_root: Path, work_dir: Path, **changes) -> Config:
    """The folder recipe with tiny settings; ``changes`` are dotted keys with __ for dots."""
    cfg = load_config(
        REPO / "configs/sce/sce_r3d18_folder.py",
        {
            "train_dataloader.dataset.data_root": str(data_root),
            "train_dataloader.batch_size": 4,
            "train_dataloader.sampler.min_samples": 0,
            "train_dataloader.num_workers": 0,
            "train_dataloader.persistent_workers": False,
            "train_dataloader.dataset.pipeline.RandomClips.clip_duration": 0.4,
            "train_dataloader.dataset.pipeline.RandomClips.num_frames": 2,
            "train_dataloader.dataset.pipeline.RandomResizedCropClips.size": 32,
            "model.backbone.base_channels": 4,
            "model.projector.hidden_channels": 16,
            "model.projector.out_channels": 8,
            "model.predictor.hidden_channels": 16,
            "model.queue_size": 20,
            "train_cfg.max_epochs": 3,
            "default_hooks.logger.interval": 1,
            "default_hooks.checkpoint": dict(
                type="CheckpointHook", interval=1, by_epoch=False, max_keep_ckpts=-1
            ),
            "visualizer": None,
        },
    )
    cfg.merge_from_dict({key.replace("__", "."): value for key, value in changes.items()})
    cfg.work_dir = str(work_dir)
    cfg.launcher = "none"
    return cfg


class Recorder(Hook):
    """Records all logged values and sample indices; can interrupt the run after an iteration.

    ``rows`` has a tuple per iteration: its number, the loss, then the other values.
    """

    priority = "LOWEST"

    def __init__(self, stop_after: int | None = None) -> None:
        self.rows: list[tuple] = []
        self.indices: list[list[int]] = []
        self.stop_after = stop_after

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.rows.append((runner.iter, *outputs.values()))
        self.indices.append(data_batch["index"].tolist())
        if self.stop_after is not None and runner.iter + 1 == self.stop_after:
            raise KeyboardInterrupt


def train(
    cfg: Config, stop_after: int | None = None, recorder: Recorder | None = None
) -> tuple[VideoRunner, Recorder]:
    """Train with a config; with ``stop_after`` the run is interrupted after that iteration."""
    recorder = recorder or Recorder(stop_after)
    cfg = cfg.copy()
    cfg.experiment_name = f"{Path(cfg.work_dir).name}_{id(recorder)}"
    runner = VideoRunner.from_cfg(cfg)
    runner.register_hook(recorder)
    try:
        runner.train()
    except KeyboardInterrupt:
        assert stop_after is not None
    return runner, recorder


def clock_of_steps(monkeypatch: Any) -> type[Recorder]:
    """A hook with which a second passes in every step, for a budget of time."""
    now = [0.0]
    monkeypatch.setattr(BudgetHook, "clock", staticmethod(lambda: now[0]))

    class Clock(Recorder):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            now[0] += 1.0

    return Clock
