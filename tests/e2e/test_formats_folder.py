"""The folder recipe on files of many formats: it finishes and reports the unreadable files."""

from __future__ import annotations

import json

import pytest
from helpers.run_tool import run_tool

UNREADABLE = {"derived__empty.mp4", "derived__truncated50_test.mp4"}


@pytest.mark.slow
def test_folder_of_files_in_many_formats(repo, shared_videos, tmp_path):
    options = [
        f"train_dataloader.dataset.data_root={shared_videos / 'formats'}",
        "model.backbone.base_channels=4",
        "model.projector.hidden_channels=16",
        "model.predictor.hidden_channels=16",
        "model.queue_size=32",
        "train_cfg.max_epochs=2",
        "train_dataloader.batch_size=6",
        "train_dataloader.sampler.min_samples=0",
        "train_dataloader.num_workers=1",
        "train_dataloader.dataset.pipeline.RandomClips.num_frames=2",
        "run_page=None",
        "train_dataloader.dataset.pipeline.RandomResizedCropClips.size=32",
        "default_hooks.logger.interval=1",
    ]
    config = repo / "configs/sce/sce_r3d18_folder.py"
    done = run_tool("train", config, "--work-dir", tmp_path, "--cfg-options", *options)
    assert done.returncode == 0, done.stderr[-3000:]
    report = [json.loads(x) for x in (tmp_path / "bad_files.jsonl").read_text().splitlines()]
    assert {row["path"].rsplit("/", 1)[-1] for row in report} == UNREADABLE
    assert all(row["error"] for row in report)
    assert (tmp_path / "epoch_2.pth").is_file()
    assert "data_wait" in done.stdout + done.stderr
