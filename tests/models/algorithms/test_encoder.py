"""Encoder: the backbone alone."""

import pytest
import torch

from sce_video.models import VideoDataPreprocessor
from sce_video.registry import MODELS

BACKBONE = {"type": "ResNet3dSlowPath", "depth": 18, "base_channels": 4}


def test_represents_every_view_as_its_mean_over_time_and_space():
    torch.manual_seed(0)
    model = MODELS.build({"type": "Encoder", "backbone": BACKBONE}).eval()
    assert isinstance(model.data_preprocessor, VideoDataPreprocessor)
    views = [torch.randn(2, 3, 2, 32, 32), torch.randn(1, 3, 4, 48, 40)]
    rows = model(inputs=views, mode="tensor")
    assert [tuple(row.shape) for row in rows] == [(2, 32), (1, 32)]
    for row, view in zip(rows, views, strict=True):
        maps = model.backbone(view)
        expected = torch.stack([torch.stack([c.mean() for c in sample]) for sample in maps])
        torch.testing.assert_close(row, expected)
    with pytest.raises(ValueError, match="'loss'"):
        model(inputs=views, mode="loss")


def test_takes_the_backbone_of_a_pretraining():
    options = dict(hidden_channels=8, norm_output=True)
    sce = MODELS.build(
        dict(
            type="SCE",
            backbone=BACKBONE,
            projector=dict(type="MLP", out_channels=8, num_layers=3, **options),
            queue_size=4,
        )
    )
    encoder = MODELS.build({"type": "Encoder", "backbone": BACKBONE})
    missing, unexpected = encoder.load_state_dict(sce.state_dict(), strict=False)
    assert missing == [] and all(not name.startswith("backbone.") for name in unexpected)
