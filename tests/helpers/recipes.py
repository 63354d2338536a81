"""The recipes of the self-supervised methods, shrunk by one rule to steps of milliseconds."""

from __future__ import annotations

import copy
import inspect
from functools import cache
from pathlib import Path
from typing import Any

from helpers.training import REPO
from mmengine.config import Config

from sce_video.engine.config.load import load_config
from sce_video.registry import MODELS

LARGEST = 64  # a larger integer in a recipe's model (channels, queue) becomes SMALL
SMALL = 8  # fewer than the videos: prototypes need a sample each
VIT = "SCE, VisionTransformer3d"
FREE = "SCE, free coefficients"
KEPT = "LeJEPA, VisionTransformer3d, kept tokens"
SWAV_QUEUE = "SwAV, queue"
#: Four views, one backward pass for each, shuffle-BN: bf16 or fp32 only, so not in VARIANTS.
RHO = "rho-MoCo"
_RHO_RECIPE = "configs/moco/moco_rho4_r3d50_8xb64-8x224-200e_k400.py"
#: Name: recipe, and what is changed of its model after it was shrunk.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    VIT: ("configs/sce/sce_vit_folder_small.py", {}),
    KEPT: ("configs/lejepa/lejepa_vit_folder_small.py", {}),
    FREE: (
        "configs/sce/sce_r3d18_8xb64-8x224-200e_k200.py",
        dict(lambda_=(0.3, 0.7, 0.2)),
    ),
    SWAV_QUEUE: (
        "configs/swav/swav_r3d18_folder_small.py",
        dict(num_prototypes=SMALL, queue_size=SMALL, queue_start_steps=1),
    ),
}


@cache
def recipes() -> dict[str, Path]:
    """A recipe of every model type: the first on Kinetics-200, else the first."""
    found: dict[str, Path] = {}
    paths = (REPO / "configs").rglob("*.py")
    for path in sorted(paths, key=lambda path: (not path.name.endswith("_k200.py"), path)):
        if not {"_base_", "sweeps"} & set(path.parts):
            found.setdefault(load_config(path).model.type, path)
    return found


def arguments(part: Any) -> set[str]:
    """Names that the constructor of a part of a model takes."""
    return set(inspect.signature(MODELS.get(part.type)).parameters)


def small_model(node: Any) -> None:
    """Shrink a model's config in place."""
    for key, value in node.items():
        if isinstance(value, dict):
            small_model(value)
        elif key.endswith("_steps"):
            node[key] = min(value, 2)  # of six: what begins or ends in a training is seen to
        elif type(value) is int and value > LARGEST and key != "depth":
            node[key] = SMALL
    if "depth" in node:
        node.depth = 18
        if "base_channels" in arguments(node):
            node.base_channels = 4


@cache
def recipe(method: str) -> Config:
    """The recipe of a method, with a small model and without validation and test."""
    paths = {**recipes(), **{method: REPO / path for method, (path, _) in VARIANTS.items()}}
    paths[RHO] = REPO / _RHO_RECIPE
    assert method in paths, f"{method} has no recipe: no config has model.type={method!r}"
    cfg = load_config(paths[method])
    small_model(cfg.model)
    cfg.model.update(VARIANTS.get(method, ("", {}))[1])
    cfg.train_dataloader.sampler.pop("min_samples", None)  # an epoch is a pass over the videos
    for key in ("val", "test"):
        for part in ("dataloader", "cfg", "evaluator"):
            cfg[f"{key}_{part}"] = None
    cfg.optim_wrapper = dict(
        type="MixedPrecisionOptimWrapper",
        dtype="float32",
        optimizer=dict(type="SGD", lr=0.05, momentum=0.9),
    )
    for hook in cfg.custom_hooks:
        if hook.type == "ScheduleHook":
            hook.lr, hook.base_batch_size = None, None
    return cfg


def small_recipe(method: str, videos: Path, work_dir: Path, **changes: Any) -> Config:
    """The recipe on 4-frame clips of 32x32; ``changes`` are dotted keys with __ for dots."""
    cfg = copy.deepcopy(recipe(method))  # tests change it
    for step in cfg.train_dataloader.dataset.pipeline:
        small = dict(num_frames=4, clip_duration=0.4, size=32)
        step.update({key: value for key, value in small.items() if key in step})
    checkpoint = dict(type="CheckpointHook", interval=1, by_epoch=False, max_keep_ckpts=-1)
    options = {
        "train_dataloader.dataset.data_root": str(videos),
        "train_dataloader.dataset.ann_file": None,
        "train_dataloader.batch_size": 4,
        "train_dataloader.num_workers": 0,
        "train_cfg.max_epochs": 2,
        "default_hooks.logger.interval": 1,
        "default_hooks.checkpoint": checkpoint,
        "default_hooks.online_evaluation": None,
        "visualizer": None,
    }
    options.update({key.replace("__", "."): value for key, value in changes.items()})
    cfg.merge_from_dict(options)
    cfg.work_dir, cfg.launcher = str(work_dir), "none"
    return cfg
