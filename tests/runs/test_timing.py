"""The timing of a plan trains with the settings of the training."""

from __future__ import annotations

import pytest
import torch
from helpers.training import make_videos, small_config

from sce_video.models import data_preprocessors
from sce_video.runs import planned_training as timing


@pytest.mark.parametrize("tuned", [True, False])
def test_steps_are_timed_with_the_cudnn_setting_of_the_training(tmp_path, monkeypatch, tuned):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not tuned)
    videos = make_videos(tmp_path / "videos", count=4)
    cfg = small_config(videos, tmp_path, env_cfg__cudnn_benchmark=tuned)
    seen = []
    prepare = data_preprocessors.VideoDataPreprocessor.forward

    def note(*args, **kwargs):
        seen.append(torch.backends.cudnn.benchmark)
        return prepare(*args, **kwargs)

    monkeypatch.setattr(data_preprocessors.VideoDataPreprocessor, "forward", note)
    assert timing.measure(cfg).step > 0
    assert seen and set(seen) == {tuned}
    assert torch.backends.cudnn.benchmark is not tuned
