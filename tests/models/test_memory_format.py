"""The memory format depends on the device, and changes values only by rounding."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.training import make_videos, planned_pretraining
from torch import nn

from sce_video.inference.model import untrained_model
from sce_video.inference.network_input import ModelSettings
from sce_video.models import memory_format
from sce_video.models.memory_format import computes_channels_last, move_to_device
from sce_video.registry import MODELS

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Pretend that the CPU computes in channels_last memory."""
    monkeypatch.setattr(memory_format, "computes_channels_last", lambda device: True)


def model(**settings) -> nn.ModuleDict:
    torch.manual_seed(0)
    backbone = dict(type="ResNet3dSlowPath", depth=18, base_channels=4, **settings)
    target = MODELS.build(backbone)
    preprocessor = MODELS.build(dict(type="VideoDataPreprocessor"))
    made = nn.ModuleDict(
        dict(backbone=MODELS.build(backbone), target=target, data_preprocessor=preprocessor)
    )
    return made.double().eval()


def test_a_gpu_computes_in_channels_last_and_a_cpu_as_configured():
    assert computes_channels_last(CUDA) and not computes_channels_last(CPU)
    assert not move_to_device(model(), CPU)["backbone"].channels_last
    assert move_to_device(model(channels_last=True), CPU)["backbone"].channels_last


def test_all_networks_of_a_model_and_its_views_change_their_format(as_on_a_gpu):
    plain = model()
    last = move_to_device(copy.deepcopy(plain), CPU)
    assert last.state_dict().keys() == plain.state_dict().keys()
    for name in ("backbone", "target", "data_preprocessor"):
        assert last[name].channels_last, name
    for name in ("backbone", "target"):
        for parameter in last[name].parameters():
            if parameter.ndim == 5:
                assert parameter.is_contiguous(memory_format=torch.channels_last_3d)
    view = torch.rand(2, 3, 4, 32, 32, dtype=torch.float64, generator=torch.manual_seed(1))
    torch.testing.assert_close(last["backbone"](view), plain["backbone"](view), rtol=1e-10, atol=0)


def test_training_steps_of_both_formats_agree(as_on_a_gpu):
    view = torch.rand(2, 3, 4, 32, 32, dtype=torch.float64, generator=torch.manual_seed(1))
    weights = []
    for made in (model(), move_to_device(model(), CPU)):
        optimizer = torch.optim.SGD(made["backbone"].parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            made["backbone"](view).square().mean().backward()
            optimizer.step()
        weights.append(made["backbone"].state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-8, atol=1e-12)


def test_training_and_inference_ask_for_the_format(as_on_a_gpu, tmp_path):
    from sce_video.engine.runner import VideoRunner

    planned = planned_pretraining(make_videos(tmp_path / "videos"), tmp_path / "run")
    planned.config.launcher = "none"
    runner = VideoRunner.from_cfg(planned.config)
    assert runner.model.backbone.channels_last and runner.model.data_preprocessor.channels_last
    settings = ModelSettings(
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4),
        mean=0.45,
        std=0.225,
        clip_duration=1.0,
        num_frames=4,
        short_side=32,
        crop_size=32,
        resize="linear",
    )
    encoder = untrained_model(settings, "cpu").encoder
    assert encoder.backbone.channels_last and encoder.data_preprocessor.channels_last
