"""Checkpoints of image networks: one frame per clip, through a 2-D backbone."""

import cv2
import numpy as np
import pytest
import torch
from helpers.tiny_encoder import moving_frames, save_tiny, write_lossless
from torch import nn

from sce_video.inference.embed import ViewOptions, embed_files, embed_videos
from sce_video.inference.model import load_model
from sce_video.registry import MODELS

CHANNELS, MEAN, STD = 8, 0.5, 0.25
CONFIG = """
data_preprocessor = dict(type='VideoDataPreprocessor', mean=0.5, std=0.25)
model = dict(type='SCE', backbone=dict(type='TinyNet2d', channels=8))
train_dataloader = dict(dataset=dict(type='ImageDataset', pipeline=[
    dict(type='LoadImage', num_views=2),
    dict(type='RandomResizedCropClips', size=32)]))
test_dataloader = dict(dataset=dict(type='ImageDataset', pipeline=[
    dict(type='LoadImage', num_views=1),
    dict(type='ResizeShortSide', size=40),
    dict(type='CenterCropClips', size=32)]))
"""


@MODELS.register_module(force=True)
class TinyNet2d(nn.Module):
    """A backbone (N, 3, T, H, W) -> (N, C, T, H', W') that processes every frame by itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, stride=2)
        self.out_channels = channels

    def forward(self, view):
        features = self.conv(view.transpose(1, 2).flatten(0, 1)).relu()
        return features.unflatten(0, (len(view), -1)).transpose(1, 2)

    def pool(self, features):
        return features.mean(dim=(2, 3, 4))


def tiny_backbone():
    torch.manual_seed(0)
    return TinyNet2d(CHANNELS).eval()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "image.pth"
    return load_model(save_tiny(path, tiny_backbone(), CONFIG), device="cpu")


def feature_by_hand(frame):
    """Resize to 40, crop 32, normalise, convolve, average."""
    height, width = frame.shape[:2]
    size = (width * 40 // min(height, width), height * 40 // min(height, width))
    small = cv2.resize(frame, size, interpolation=cv2.INTER_LINEAR)
    top, left = (round((n - 32) / 2) for n in (size[1], size[0]))
    crop = (small[top : top + 32, left : left + 32] / 255.0 - MEAN) / STD
    image = torch.from_numpy(crop.transpose(2, 0, 1)[None].astype(np.float32))
    with torch.no_grad():
        return tiny_backbone().conv(image).relu()[0].mean(dim=(1, 2)).numpy()


@pytest.mark.parametrize(("num_clips", "shown"), [(4, (0, 12, 24, 35)), (1, (18,))])
def test_a_video_is_embedded_with_one_frame_per_clip(model, tmp_path, num_clips, shown):
    """60 frames at 25 per second: clips of 1 s begin at 0, 0.467, 0.933 and 1.4 s, or at 0.7 s."""
    frames = moving_frames(60, 48, 64)
    path = write_lossless(tmp_path / "v.mp4", frames)
    expected = np.mean([feature_by_hand(frames[i]) for i in shown], axis=0)
    feature = embed_videos(model, path, ViewOptions(num_clips=num_clips))[0]
    np.testing.assert_allclose(feature, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(
        embed_videos(model, frames, ViewOptions(num_clips=num_clips), fps=25)[0], feature
    )
    assert embed_files(model, [path]).num_views == 4
