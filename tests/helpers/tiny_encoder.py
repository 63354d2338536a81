"""A tiny pretrained checkpoint, and losslessly encoded videos."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import torch

from sce_video.engine.checkpoint import save_checkpoint_file
from sce_video.engine.config.snapshot import parse_config_text, plain
from sce_video.models.backbones import ResNet3dSlowPath

#: Values that differ from all defaults, so that tests detect a setting that is ignored.
CONFIG = """
data_preprocessor = dict(
    mean=(0.4, 0.45, 0.5), std=0.2, type='VideoDataPreprocessor',
    views=[dict(name='strong-alpha', strength=1.0)])
model = dict(
    backbone=dict(
        type='ResNet3dSlowPath', depth=18, base_channels=4, zero_init_residual=False,
        init_cfg=dict(type='Pretrained', checkpoint='nowhere.pth')),
    tau=0.1,
    type='SCE')
test_dataloader = dict(
    dataset=dict(
        pipeline=[
            dict(type='OpenVideo'),
            dict(clip_duration=0.48, num_clips=10, num_frames=4, type='UniformClips'),
            dict(type='DecodeSharedFrames'),
            dict(size=40, type='ResizeShortSide'),
            dict(crop_size=32, num_crops=3, type='PackVideo'),
        ],
        type='VideoDataset'))
train_dataloader = dict(
    dataset=dict(
        pipeline=[
            dict(type='OpenVideo'),
            dict(clip_duration=0.48, num_frames=4, num_views=2, type='RandomClips'),
            dict(size=32, type='RandomResizedCropClips'),
        ],
        type='VideoDataset'))
"""
#: The same for a network that does not keep the features of single frames
S3D_CONFIG = CONFIG.replace("'ResNet3dSlowPath', depth=18", "'S3D'").replace(
    " zero_init_residual=False,", ""
)
CLIP_DURATION, NUM_FRAMES, SHORT_SIDE, CROP_SIZE = 0.48, 4, 40, 32
MEAN, STD = np.array([0.4, 0.45, 0.5]), 0.2
FEATURE_SIZE = 32


def tiny_backbone(seed: int = 0, depth: int = 18, base_channels: int = 4) -> ResNet3dSlowPath:
    """A backbone with random weights and BN statistics: training mode gives other features."""
    torch.manual_seed(seed)
    backbone = ResNet3dSlowPath(depth, base_channels, zero_init_residual=False)
    for name, value in backbone.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 1.5)
        elif name.endswith("running_mean"):
            value.normal_(0, 0.2)
    return backbone.eval()


def as_json(text: str) -> str:
    """The config of a text as a checkpoint holds it; what is not plain data stays as it is."""
    try:
        return json.dumps(plain(parse_config_text(text, "a text")))
    except ValueError:
        return text


def save_tiny(
    path: Path,
    backbone: torch.nn.Module | None = None,
    text: str | None = CONFIG,
    prefix: str = "backbone.",
) -> Path:
    """Write a checkpoint like that of a pretraining, with weights of a projector, too."""
    backbone = backbone or tiny_backbone()
    weights = {prefix + key: value for key, value in backbone.state_dict().items()}
    weights["projector.layers.0.weight"] = torch.zeros(3, 3)
    meta = {"epoch": 1} if text is None else {"epoch": 1, "config": as_json(text)}
    save_checkpoint_file({"state_dict": weights, "meta": meta}, path)
    return path


def moving_frames(count: int = 40, height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """Frames (count, height, width, 3) uint8 of a moving smooth pattern and some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / 10.0
    phase, speed = rng.uniform(0, 6, 3), rng.uniform(0.05, 0.4, 3)
    t = np.arange(count)[:, None, None, None]
    waves = np.sin(x[None, :, :, None] + phase + speed * t) + np.cos(y[None, :, :, None] + speed)
    noise = rng.normal(0, 5, (count, height, width, 3))
    return np.clip(128 + 50 * waves + noise, 0, 255).astype(np.uint8)


def write_lossless(path: Path, frames: np.ndarray, fps: int = 25) -> Path:
    """Write an mp4 whose decoded frames equal ``frames`` bit for bit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", rate=fps, options={"qp": "0"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "rgb24"
        for array in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(array, format="rgb24")))
        container.mux(stream.encode())
    return path
