"""AVA from the official files to a drawn key frame: prepare, train, test and draw by the tools."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import cv2
import pytest
from helpers.official_trees import make_ava
from helpers.run_tool import prepare

from sce_video.datasets import read_key_frames

pytestmark = pytest.mark.slow

RECIPE = "configs/downstream/detection/r3d50_8xb8-8x8-32e_ava.py"
NETWORK = {
    "model.backbone.depth": 18,
    "model.backbone.base_channels": 8,
    "model.backbone.zero_init_residual": False,
    "visualizer": None,
    "run_page": None,
    **{f"{part}_dataloader.num_workers": 0 for part in ("train", "test")},
    **{
        f"{part}_dataloader.dataset.pipeline.KeyFrameClip.num_frames": 4
        for part in ("train", "test")
    },
    **{
        f"{part}_dataloader.dataset.pipeline.KeyFrameClip.frame_interval": 4
        for part in ("train", "test")
    },
    "train_dataloader.persistent_workers": False,
    "train_dataloader.dataset.pipeline.ResizeShortSide.size": "(96,104)",
    "train_dataloader.dataset.pipeline.RandomCropClips.size": 96,
    "test_dataloader.dataset.pipeline.ResizeShortSide.size": 96,
}
TRAINING = {"train_cfg.max_epochs": 2, "default_hooks.checkpoint.interval": 2}


@pytest.fixture(scope="module")
def folder(repo, tmp_path_factory):
    root = tmp_path_factory.mktemp("ava")
    (root / "tools").symlink_to(repo / "tools")
    (root / "configs").symlink_to(repo / "configs")
    make_ava(root / "data/ava")
    return root


def run(tool, *arguments, options=None):
    """Run a tool in this process and in the current folder."""
    path = Path("tools", tool)
    spec = importlib.util.spec_from_file_location(f"{path.stem}_e2e", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    command = list(arguments)
    if options:
        command += ["--cfg-options", *(f"{key}={value}" for key, value in options.items())]
    assert module.main(command) == 0


def test_prepare_train_test_and_draw(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert prepare("ava", "data/ava") == 0
    run("train.py", RECIPE, "--pretrained", "random", "--amp", "float32", "--seed", "0",
        "--work-dir", "work", options={**NETWORK, **TRAINING})  # fmt: skip
    run("test.py", RECIPE, "work/epoch_2.pth", "--work-dir", "trained", options=NETWORK)
    results = json.loads((folder / "trained/results.json").read_text())
    assert 0 < results["metrics"]["mAP"] <= 1  # that it learns: tests/evaluation
    protocol = results["protocol"]
    frames = list(read_key_frames(str(folder / "data/ava/ava_val.jsonl")))
    assert protocol["key_frames"] == len(frames) and protocol["failures"] == 0
    assert protocol["boxes"] == sum(int((f.detections[:, 4] >= 0.9).sum()) for f in frames)
    assert (folder / "trained/ava_results.csv").read_text().count("\n") > len(frames)
    key = f"{frames[3].video},{frames[3].timestamp}"
    # --key=...: a YouTube id may begin with a minus sign.
    capsys.readouterr()
    run("analysis/show_ava.py", RECIPE, "work/epoch_2.pth", f"--key={key}", "--out", "key.png",
        options=NETWORK)  # fmt: skip
    printed = capsys.readouterr().out
    assert "person 1" in printed and "true: " in printed
    assert min(cv2.imread(str(folder / "key.png")).shape[:2]) >= 480
