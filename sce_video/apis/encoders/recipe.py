"""Recipes of this package with an encoder of others in place of their network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from sce_video.apis.encoders.processor import ProcessorSettings
from sce_video.apis.encoders.source import EncoderError
from sce_video.engine.config import load_config
from sce_video.engine.recipes import find_recipe
from sce_video.registry import MODELS
from sce_video.utils.atomic_file import write_text

#: Entries that say what a recipe reproduces, and names of settings of the replaced network.
_DROPPED = ("benchmark", "split", "settings")
_TEST_CROPS = {"CenterCropClips": "size", "ThreeCrops": "size", "PackVideo": "crop_size"}
_TRAIN_CROPS = ("RandomResizedCropClips", "RandomCropClips")


def write_recipe(
    recipe: str | os.PathLike,
    out: str | os.PathLike,
    encoder: dict[str, Any],
    settings: ProcessorSettings,
    checkpoint: str,
) -> Path:
    """Write a recipe with an encoder, its weights, its normalisation and its clips.

    Optimiser, schedule, augmentation and heads stay those of the recipe. A recipe that finetunes
    takes the weights as ``pretrained``, any other one as the initialisation of its backbone.

    Args:
        recipe: File or name of a config that trains: a pretraining by any method, a linear
            evaluation, a finetuning.
        out: Folder for the new config, NAME.py of a recipe NAME.
        encoder: Config of the backbone.
        settings: Of its processor.
        checkpoint: Its weights.

    Raises:
        EncoderError: the recipe trains nothing, or has views that the encoder cannot take.
    """
    cfg = load_config(str(recipe))
    model = cfg.get("model") or {}
    if cfg.get("train_cfg") is None or not isinstance(model.get("backbone"), dict):
        raise EncoderError(f"{recipe} trains no backbone: give a pretraining or a finetuning")
    backbone = {k: v for k, v in encoder.items() if k != "resize_to"}
    with torch.device("meta"):  # no memory for weights
        built = MODELS.build(backbone)
    frozen = model["backbone"].get("frozen_stages", -1)
    checkpoint = os.path.abspath(checkpoint)
    if "pretrained" in cfg:
        cfg.pretrained = checkpoint
    else:
        backbone["init_cfg"] = {
            "type": "Pretrained",
            "checkpoint": checkpoint,
            "prefix": "backbone.",
        }
    cfg.model.backbone = {**backbone, "frozen_stages": frozen}
    if isinstance(model.get("cls_head"), dict):
        cfg.model.cls_head.in_channels = built.out_channels
    for holder in (cfg, cfg.model):
        if isinstance(holder.get("data_preprocessor"), dict):
            holder.data_preprocessor.update(mean=settings.mean, std=settings.std)
            holder.data_preprocessor.pop("channels_last", None)
    for holder, key in _pipelines(cfg._cfg_dict):
        holder[key] = [_step(step, settings, built, str(recipe)) for step in holder[key]]
    for name in _DROPPED:
        cfg.pop(name, None)
    path = Path(out, f"{find_recipe(str(recipe)).stem}.py")
    write_text(path, cfg.pretty_text)
    return path


def _pipelines(node: Any) -> Iterator[tuple[dict, str]]:
    """Where the pipelines of a config are."""
    for key, value in list(node.items()):
        if key.endswith("pipeline") and isinstance(value, list | tuple):
            yield node, key
        elif isinstance(value, dict):
            yield from _pipelines(value)


def _step(step: dict, settings: ProcessorSettings, encoder: Any, recipe: str) -> dict:
    """A step of a pipeline with the frames and sizes of the encoder."""
    step = dict(step)
    kind = str(step.get("type")).rpartition(".")[2]
    if step.get("num_local_views") and encoder.takes_one_size:
        raise EncoderError(
            f"{recipe} has local views, which are smaller, and the encoder takes views of "
            f"{settings.crop_size}x{settings.crop_size} pixels only: take a recipe without them"
        )
    if "num_frames" in step:
        step["num_frames"] = settings.num_frames
        if "clip_duration" in step and settings.clip_duration is not None:
            step["clip_duration"] = settings.clip_duration
    if kind == "ResizeShortSide" and isinstance(step.get("size"), int):
        side = settings.short_side
        return {
            "type": "ResizeAsProcessor",
            "size": (side, side) if settings.square else side,
            "interpolation": settings.interpolation,
        }
    if kind == "ResizeShortSide":  # a range of a training, before a random crop
        low, high = step["size"]
        factor = max(1.0, settings.crop_size / low)
        step["size"] = (round(low * factor), round(high * factor))
    if kind in _TEST_CROPS:
        step[_TEST_CROPS[kind]] = settings.crop_size
    if kind in _TRAIN_CROPS:
        step["size"] = settings.crop_size
    return step
