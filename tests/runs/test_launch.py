"""Launching: the queue is shortened to the data set, and an error in a step keeps its traceback."""

from __future__ import annotations

import os

import pytest
import torch
from helpers.recognition import FINETUNE, make_splits, small_options
from helpers.training import make_videos, small_config, train

import sce_video
from sce_video.engine import TrainingStepError
from sce_video.models import SCE
from sce_video.runs import launch
from sce_video.runs.configs import training_config
from sce_video.runs.launch import fit_queue, longest_queue
from sce_video.utils.command import explain
from sce_video.utils.cores import cores_for_workers

RECIPE = "configs/sce/sce_r3d18_folder_small.py"


@pytest.fixture
def folder(tmp_path):
    """36 files that look like videos; nothing reads them."""
    root = tmp_path / "videos"
    root.mkdir()
    for number in range(36):
        (root / f"{number}.mp4").touch()
    return root


def fitted(folder, *options):
    root = f"train_dataloader.dataset.data_root={folder}"
    cfg = training_config(RECIPE, cfg_options=[root, *options], work_dir=folder.parent / "run")
    fit_queue(cfg)
    return cfg.model.queue_size


@pytest.mark.parametrize(
    ("videos", "batch", "keys"), [(36, 16, 32), (32, 16, 16), (17, 16, 16), (16, 16, 8), (1, 16, 1)]
)
def test_fewer_keys_than_videos(videos, batch, keys):
    assert longest_queue(videos, batch) == keys


def test_the_queue_of_the_folder_recipe_follows_the_folder(folder, monkeypatch):
    options = ("train_dataloader.batch_size=5", "optim_wrapper.accumulative_counts=2")
    assert fitted(folder) == 32 and fitted(folder, *options) == 30
    assert fitted(folder, "model.queue_size=64") == 64
    assert fitted(folder, "fit_queue=False") == 256
    with pytest.raises(ValueError, match="batch_size=0 x 1 accumulated"):
        fitted(folder, "train_dataloader.batch_size=0")
    monkeypatch.setattr(launch, "get_world_size", lambda: 3)
    assert fitted(folder) == 18  # 48 videos per step do not fit: half of 36
    for number in range(36, 400):
        (folder / f"{number}.mp4").touch()
    assert fitted(folder) == 256  # the recipe's: large enough a folder


def test_errors_inside_a_step_keep_their_traceback(tmp_path, monkeypatch):
    def fail(model, views):
        raise KeyError("from within")

    monkeypatch.setattr(SCE, "loss", fail)
    with pytest.raises(TrainingStepError, match="iteration 0 failed: .*from within") as raised:
        train(small_config(make_videos(tmp_path / "videos", 4), tmp_path / "run"))
    assert explain(raised.value) is None
    assert type(raised.value.__cause__) is KeyError


@pytest.mark.parametrize(
    ("cores", "workers", "threads"), [(8, 2, 6), (2, 1, 1), (2, 4, 1), (4, 0, 4)]
)
def test_workers_have_cores_of_their_own(monkeypatch, cores, workers, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("sce_video.utils.cores.free_cores", lambda: cores)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        with cores_for_workers(workers):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == cores
    finally:
        torch.set_num_threads(before)


def test_a_training_says_at_its_start_what_differs_from_the_papers(tmp_path):
    root = make_splits(tmp_path / "videos")
    cfg = training_config(
        FINETUNE,
        work_dir=tmp_path / "run",
        pretrained="random",
        cfg_options=[*small_options(root), "train_cfg.max_epochs=1"],
    )
    launch.run_training(cfg)
    text = next((tmp_path / "run").glob("*/*.log")).read_text()
    (line,) = [line for line in text.splitlines() if "with the paper's number" in line]
    assert "WARNING - this run cannot be compared with" in line
    assert "train_cfg.max_epochs: 1 -> 200; " in line and "7 videos in 2 classes" in line
    assert text.index("with the paper's number") < text.index("Epoch(train)")


def test_an_evaluation_writes_through_no_link(tmp_path):
    """The lists of an evaluation have fixed names, which a folder of the user may have, too."""
    run, target = tmp_path / "run", tmp_path / "target"
    run.mkdir()
    target.mkdir()
    videos = tmp_path / "videos"
    videos.mkdir()
    (videos / "a.mp4").touch()
    (run / "epoch_1.pth").touch()
    (run / "evaluation").symlink_to(target)
    with pytest.raises(OSError, match="run/evaluation is a symbolic link"):
        sce_video.evaluate(run, test=videos, gallery=videos)
    assert not os.listdir(target)
