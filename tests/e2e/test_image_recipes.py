"""Image recipes of every kind on generated trees of the official layouts, by the tools."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from helpers import image_trees
from helpers.run_tool import run_tool

from sce_video.engine.checkpoint import load_checkpoint_file

pytestmark = pytest.mark.slow

SMALL = [
    "visualizer=None",
    "run_page=None",
    "model.backbone.base_channels=4",
    "model.projector.hidden_channels=16",
    "model.projector.out_channels=8",
    "train_dataloader.num_workers=1",
    "train_cfg.max_epochs=2",
    "default_hooks.logger.interval=1",
    "default_hooks.online_evaluation.gallery.num_workers=0",
    "default_hooks.online_evaluation.gallery.batch_size=8",
]


def train(repo: Path, recipe: str, folder: Path, *options: str) -> tuple[str, dict, list[dict]]:
    """What is shown, the last checkpoint, and the lines of the online evaluation."""
    config = repo / f"configs/{recipe}.py"
    done = run_tool("train.py", config, "--work-dir", folder, "--cfg-options", *SMALL, *options)
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    lines = (folder / "online_evaluation.jsonl").read_text().splitlines()
    checkpoint = load_checkpoint_file(folder / "epoch_2.pth")
    return shown, checkpoint, [json.loads(line) for line in lines]


def logged(shown: str, name: str) -> list[float]:
    """A value of every step, as it is shown."""
    lines = [line for line in shown.splitlines() if "Epoch(train)" in line]
    return [float(re.search(rf" {name}: (\S+)", line)[1]) for line in lines]


@pytest.mark.parametrize("method", ["sce", "moco"])
def test_baselines_on_cifar10(repo, tmp_path, method):
    """Not symmetric, shuffle-BN of eight groups: 6 steps of 32 images, which fill a queue of 64."""
    root = image_trees.make_cifar10(tmp_path / "cifar10", per_class=2)
    data = [
        f"{part}.dataset.{option}"
        for part in (
            "train_dataloader",
            "default_hooks.online_evaluation.gallery",
            "default_hooks.online_evaluation.queries",
        )
        for option in (f"data_root={root}", "check_counts=False")
    ]
    shown, checkpoint, evaluated = train(
        repo,
        f"{method}/{method}_r18_1xb256-32-200e_cifar10",
        tmp_path / "run",
        *data,
        "train_dataloader.batch_size=32",
        "model.queue_size=64",
        "default_hooks.online_evaluation.queries.num_workers=0",
    )
    state = checkpoint["state_dict"]
    assert int(state["target.shuffle.step"]) == 6
    assert int(state["queue.pointer"]) == 6 * 32 % 64
    assert "learning rate 0.06 x 0.125 = 0.0075, 6 optimiser steps" in shown
    warm_up = [0.0075 * step / 15 for step in range(1, 7)]  # of 5 epochs
    assert logged(shown, "lr") == pytest.approx(warm_up, rel=1e-3)
    momentum = [1 - 0.1 * (math.cos(math.pi * step / 6) + 1) / 2 for step in range(6)]
    assert logged(shown, "momentum") == pytest.approx(momentum, abs=1e-4)
    assert all(math.isfinite(loss) for loss in logged(shown, "loss"))
    assert [line["epoch"] for line in evaluated] == [0, 2]
    assert all(0 <= line["knn_top1"] <= 1 and line["videos"] == 20 for line in evaluated)
