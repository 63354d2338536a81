"""The queue is shortened to the data set where a recipe asks for it."""

from __future__ import annotations

import pytest

from sce_video.runs import launch as fit
from sce_video.runs.launch import fit_queue, longest_queue, training_config

RECIPE = "configs/sce/sce_r3d18_folder_small.py"


@pytest.fixture
def folder(tmp_path):
    """36 files that look like videos; nothing reads them."""
    root = tmp_path / "videos"
    root.mkdir()
    for number in range(36):
        (root / f"{number}.mp4").touch()
    return root


def config(folder, *options, **arguments):
    root = f"train_dataloader.dataset.data_root={folder}"
    cfg = training_config(
        RECIPE, cfg_options=[root, *options], work_dir=folder.parent / "run", **arguments
    )
    fit_queue(cfg)
    return cfg


@pytest.mark.parametrize(
    ("videos", "batch", "keys"),
    [(36, 16, 32), (33, 16, 32), (32, 16, 16), (17, 16, 16), (16, 16, 8), (2, 16, 1), (1, 16, 1)],
)
def test_fewer_keys_than_videos(videos, batch, keys):
    assert longest_queue(videos, batch) == keys


def test_the_queue_of_the_folder_recipe_follows_the_folder(folder):
    assert config(folder).model.queue_size == 32
    assert config(folder, "train_dataloader.batch_size=5").model.queue_size == 35
    options = ("train_dataloader.batch_size=5", "optim_wrapper.accumulative_counts=2")
    assert config(folder, *options).model.queue_size == 30
    assert config(folder, "model.queue_size=64").model.queue_size == 64
    assert config(folder, "fit_queue=False").model.queue_size == 256
    for number in range(36, 400):
        (folder / f"{number}.mp4").touch()
    assert config(folder).model.queue_size == 256  # the recipe's: large enough a folder


def test_all_processes_fill_the_queue(folder, monkeypatch):
    for processes, keys in ((2, 32), (3, 18)):  # 48 videos per step do not fit: half of 36
        monkeypatch.setattr(fit, "get_world_size", lambda n=processes: n)
        assert config(folder).model.queue_size == keys
