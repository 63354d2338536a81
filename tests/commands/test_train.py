"""The command train: what it makes of its arguments, and its errors."""

from __future__ import annotations

import pytest
import torch

from sce_video.commands import train
from sce_video.runs.launch import training_config


@pytest.fixture
def configured(repo):
    def configure(*arguments):
        recipe = str(repo / "configs/sce/sce_r3d18_folder.py")
        options = vars(train.parse_args([recipe, *arguments]))
        assert options.pop("overwrite") is ("--overwrite" in arguments)
        changes = train.pop_options(options, "train", "val")
        return training_config(**options, cfg_options=changes)

    return configure


def test_arguments(configured):
    cfg = configured()
    assert cfg.work_dir == "work_dirs/sce_r3d18_folder" and cfg.load_from is None
    assert cfg.launcher == "none" and not cfg.resume and cfg.optim_wrapper.type == "OptimWrapper"
    cfg = configured(
        *("--work-dir", "here", "--amp", "--seed", "3", "--launcher", "pytorch"),
        *("--cfg-options", "model.tau_m=0.07", "train_dataloader.dataset.pipeline.3.size=112"),
    )
    assert (cfg.work_dir, cfg.launcher, cfg.randomness.seed) == ("here", "pytorch", 3)
    assert cfg.optim_wrapper.type == "MixedPrecisionOptimWrapper"
    assert cfg.optim_wrapper.dtype == "bfloat16" and cfg.model.tau_m == 0.07
    assert cfg.train_dataloader.dataset.pipeline[3].size == 112


def test_resume_with_and_without_a_path(configured, tmp_path):
    latest = configured("--resume", "--work-dir", str(tmp_path))
    assert latest.resume is True and latest.load_from is None
    path = str(tmp_path / "epoch_3.pth")
    torch.save({"state_dict": {}}, path)
    chosen = configured("--resume", path)
    assert chosen.resume is True and chosen.load_from == path
    assert "adopted" not in chosen
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*epoch_4"):
        configured("--resume", str(tmp_path / "epoch_4.pth"))
