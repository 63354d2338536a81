"""A small AVA data set of two generated films, and the AVA recipe with tiny settings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from helpers.training import REPO
from helpers.videos import write_video

from sce_video.datasets.ava import Action, format_actions
from sce_video.runs import configs, launch

RECIPE = REPO / "configs/downstream/detection/r3d50_8xb8-8x8-32e_ava.py"
BOXES = {"left": [0.05, 0.2, 0.45, 0.9], "right": [0.55, 0.2, 0.95, 0.9]}
ACTIONS = {"left": 12, "right": 80}


def make_root(folder: Path) -> Path:
    """Write two films of 5 s and their lists.

    The person on the left stands (action 12), the person on the right watches (80).
    """
    rng = np.random.default_rng(0)
    lines = []
    for film in ("aa", "bb"):
        frames = rng.integers(0, 60, (50, 48, 64, 3), dtype=np.uint8)
        frames[:, 10:43, 4:28, 0] += 150
        frames[:, 10:43, 36:60, 2] += 150
        write_video(folder / f"videos/{film}.mp4", frames, fps=10)
        for second in (901, 902, 903):
            entry = {"video": film, "timestamp": second, "persons": [0, 1]}
            entry["boxes"] = list(BOXES.values())
            entry["labels"] = [[action] for action in ACTIONS.values()]
            entry["detections"] = [[*box, 0.95] for box in BOXES.values()]
            lines.append(json.dumps(entry) + "\n")
    (folder / "ava_train.jsonl").write_text("".join(lines))
    empty = json.dumps({"video": "bb", "timestamp": 904, "boxes": [], "labels": []}) + "\n"
    (folder / "ava_val.jsonl").write_text("".join([*lines[3:], empty]))
    actions = [
        Action(12, "stand", True),
        Action(80, "watch", True),
        Action(3, "swim", scored=False),
    ]
    (folder / "ava_actions.json").write_text(format_actions(actions))
    return folder


def options(root, **changes) -> list[str]:
    """``--cfg-options`` that make the recipe small; ``changes`` are keys with __ for dots."""
    values = {
        "model.backbone.depth": 18,
        "model.backbone.base_channels": 4,
        "train_dataloader.batch_size": 3,
        "train_dataloader.num_workers": 0,
        "train_dataloader.persistent_workers": False,
        "test_dataloader.num_workers": 0,
        "train_dataloader.dataset.pipeline.KeyFrameClip.num_frames": 2,
        "test_dataloader.dataset.pipeline.KeyFrameClip.num_frames": 2,
        "train_dataloader.dataset.pipeline.ResizeShortSide.size": "(48,56)",
        "train_dataloader.dataset.pipeline.RandomCropClips.size": 48,
        "train_dataloader.dataset.pipeline.FlipWithBoxes.prob": 0.0,
        "test_dataloader.dataset.pipeline.ResizeShortSide.size": 48,
        "train_cfg.max_epochs": 2,
        "test_evaluator.AVAMeanAP.actions": root / "ava_actions.json",
        "visualizer": None,
    }
    for part, ann in (("train", "ava_train.jsonl"), ("test", "ava_val.jsonl")):
        values[f"{part}_dataloader.dataset.data_root"] = root
        values[f"{part}_dataloader.dataset.ann_file"] = root / ann
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return [f"{key}={value}" for key, value in values.items()]


def train_small(root: Path, folder: Path) -> Path:
    """Train for 60 epochs, enough to recognise both actions; returns the checkpoint."""
    changes = {"train_cfg__max_epochs": 60, "optim_wrapper__optimizer__lr": 2.0}
    cfg = configs.training_config(
        RECIPE, work_dir=folder, pretrained="random", amp="float32", seed=0,
        cfg_options=options(
            root, default_hooks__checkpoint__interval=60,
            custom_hooks__ScheduleHook__lr__warmup_epochs=0,
            custom_hooks__ScheduleHook__lr__milestone_epochs="(50,55,58)", **changes,
        ),
    )  # fmt: skip
    launch.run_training(cfg)
    return folder / "epoch_60.pth"
