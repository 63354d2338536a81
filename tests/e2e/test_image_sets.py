"""From the unpacked archives of the image data sets to a training step, by the commands of docs."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import image_trees
from helpers.run_tool import prepare, run_tool

pytestmark = pytest.mark.slow

# As a recipe would: only the data differ from the recipe of image folders.
CIFAR = """
_base_ = "{recipe}"
train_dataloader = dict(
    batch_size=32,
    dataset=dict(
        _delete_=True,
        type="ImageArrayDataset",
        name="cifar10",
        data_root="{root}",
        split="train",
        check_counts=False,
        pipeline=[
            dict(type="LoadImage", num_views=2),
            dict(type="RandomResizedCropClips", size=32, area=(0.2, 1.0)),
            dict(type="PackClips"),
        ],
    ),
)
"""
TINY_IMAGENET = [
    "train_dataloader.dataset.ann_file=train.txt",
    "train_dataloader.dataset.class_file=classes.txt",
    "train_dataloader.batch_size=4",
    "train_dataloader.dataset.pipeline.RandomResizedCropClips.size=32",
]
SMALL = [
    "visualizer=None",
    "run_page=None",
    "model.backbone.base_channels=4",
    "model.backbone.stem=small",
    "model.projector.hidden_channels=16",
    "model.projector.out_channels=8",
    "model.predictor.hidden_channels=16",
    "model.queue_size=20",
    "train_dataloader.sampler.min_samples=0",
    "train_dataloader.num_workers=2",
    "train_cfg.max_epochs=1",
    "default_hooks.checkpoint.interval=1",
]


def train(config: object, work_dir: Path, *options: str) -> str:
    done = run_tool("train.py", config, "--work-dir", work_dir, "--cfg-options", *SMALL, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (work_dir / "epoch_1.pth").is_file()
    return done.stdout + done.stderr


def test_cifar_to_a_training_step(repo, tmp_path):
    root = image_trees.make_cifar10(tmp_path / "cifar10")
    config = tmp_path / "sce_r18_cifar10.py"
    recipe = repo / "configs/sce/sce_r18_image_folder.py"
    config.write_text(CIFAR.format(recipe=recipe, root=root))
    shown = train(config, tmp_path / "run")
    assert "100 images of 10 classes" in shown


def test_tiny_imagenet_to_a_training_step(repo, tmp_path):
    root = image_trees.make_tiny_imagenet(tmp_path / "tiny")
    assert prepare("tiny_imagenet", str(root), "--no-check") == 0
    options = [*TINY_IMAGENET, f"train_dataloader.dataset.data_root={root}"]
    shown = train(repo / "configs/sce/sce_r18_image_folder.py", tmp_path / "run", *options)
    assert "9 images of 3 classes" in shown
