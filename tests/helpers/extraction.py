"""Extractions of a tiny network, for the tests of the loop and of batch jobs."""

from __future__ import annotations

from pathlib import Path

import torch
from helpers.recognition import RETRIEVAL
from mmengine.config import Config

from sce_video.evaluation import load_features
from sce_video.registry import MODELS
from sce_video.runs import launch

OPTIONS = {
    "model.backbone.base_channels": 4,
    "test_dataloader.dataset.pipeline.UniformClips.clip_duration": 0.4,
    "test_dataloader.dataset.pipeline.UniformClips.num_frames": 2,
    "test_dataloader.dataset.pipeline.UniformClips.num_clips": 3,
    "test_dataloader.dataset.pipeline.ResizeShortSide.size": 36,
    "test_dataloader.dataset.pipeline.PackVideo.crop_size": 36,
    "test_dataloader.num_workers": 0,
    "test_dataloader.pin_memory": False,
    "visualizer": None,
}


def save_encoder(path: Path) -> Path:
    """Write the weights of a tiny encoder."""
    torch.manual_seed(4)
    backbone = {"type": "ResNet3dSlowPath", "depth": 18, "base_channels": 4}
    model = MODELS.build({"type": "Encoder", "backbone": backbone})
    torch.save({"state_dict": model.state_dict(), "meta": {}}, path)
    return path


def configure(
    videos: Path,
    checkpoint: Path,
    out: Path,
    ann_file: str = "test_split1.txt",
    config: Path = RETRIEVAL,
    backend: str | None = None,
    **changes: object,
) -> Config:
    """The config of an extraction; ``changes`` are arguments of its loop."""
    cfg = launch.extraction_config(
        config, str(checkpoint), out, data_root=str(videos), ann_file=ann_file, backend=backend,
        cfg_options=[f"{key}={value}" for key, value in OPTIONS.items()], processes=changes,
    )  # fmt: skip
    cfg.experiment_name = out.stem
    return cfg


def check_equal(*files: Path) -> None:
    """Two files of features are equal bit for bit, in the order of the list."""
    (one, first), (two, second) = map(load_features, files)
    assert one.values.equal(two.values) and one.labels.equal(two.labels)
    assert one.paths == two.paths and one.failures == two.failures
    assert one.indices.equal(two.indices) and first["views"] == second["views"]
