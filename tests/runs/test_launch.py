"""Which errors a user is told in one line, and which keep their traceback."""

from __future__ import annotations

import pytest
from helpers.training import make_videos, small_config, train
from torch.utils.data import DataLoader

from sce_video.datasets import VideoDataset, VideoDecodeError
from sce_video.engine import TrainingStepError
from sce_video.models import SCE
from sce_video.utils.command import explain


@pytest.mark.parametrize("kind", [ValueError, KeyError])
def test_errors_inside_a_step_keep_their_traceback(tmp_path, monkeypatch, kind):
    def fail(model, views):
        raise kind("from within")

    monkeypatch.setattr(SCE, "loss", fail)
    with pytest.raises(TrainingStepError, match="iteration 0 failed: .*from within") as raised:
        train(small_config(make_videos(tmp_path / "videos", 4), tmp_path / "run"))
    assert explain(raised.value) is None
    assert type(raised.value.__cause__) is kind


def test_a_bad_file_is_one_line_with_a_worker(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"")
    dataset = VideoDataset(str(tmp_path), pipeline=[dict(type="OpenVideo")], on_error="raise")
    with pytest.raises(VideoDecodeError) as raised:
        list(DataLoader(dataset, num_workers=1))
    assert raised.value.path == str(tmp_path / "a.mp4")
    assert raised.value.reason.startswith("is empty (0 bytes)")
    assert explain(raised.value) == f"{raised.value.path}: {raised.value.reason}"
    assert "\n" not in str(raised.value)
