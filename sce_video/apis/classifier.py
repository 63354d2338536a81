"""Sizes of a classifier that a config leaves open: its classes and its input channels."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import print_log

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.registry import DATASETS, MODELS

#: The weights of a classifier, of the first one of a grid.
_WEIGHTS = ("cls_head.fc_cls.weight", "cls_head.probes.0.fc_cls.weight")


def complete_classifier(cfg: Config, checkpoint: str | None = None) -> None:
    """Fill in ``num_classes`` and ``in_channels`` of ``model.cls_head`` where they are None.

    ``in_channels`` is the backbone's number of channels; ``num_classes`` that of the checkpoint's
    classifier, or, without a checkpoint, that of the training data.

    Args:
        cfg: The config; other models than classifiers are left as they are.
        checkpoint: A file whose classifier will be loaded.

    Raises:
        ValueError: the training data has no labels, one class only or more classes than videos, or
            the checkpoint has no classifier.
    """
    head = (cfg.get("model") or {}).get("cls_head")
    if head is None:
        return
    if head.get("in_channels", 0) is None:
        with torch.device("meta"):  # no memory for weights
            head.in_channels = MODELS.build(cfg.model.backbone).out_channels
    if head.get("num_classes", 0) is None:
        if checkpoint is not None:
            head.num_classes = _outputs(checkpoint)
        else:
            head.num_classes = _count_classes(cfg.train_dataloader.dataset)


def _outputs(checkpoint: str) -> int:
    content = load_checkpoint_file(checkpoint)
    weights = content.get("state_dict", content)
    weight = next((weights[name] for name in _WEIGHTS if name in weights), None)
    if weight is None:
        raise ValueError(
            f"{checkpoint} has no classifier (no {_WEIGHTS[0]}): train one from it first, python "
            f"tools/train.py CONFIG --pretrained {checkpoint}"
        )
    return len(weight)


def _count_classes(settings: dict[str, Any]) -> int:
    """Classes of a data set: its class names, or its labels from 0 to the largest."""
    dataset = DATASETS.build({**settings, "pipeline": []})
    source = settings.get("ann_file") or settings.get("data_root")
    names, labels = dataset.metainfo["classes"], np.asarray(dataset.labels)
    count = len(names) or int(labels.max()) + 1
    if count < 2:
        raise ValueError(
            f"{source!r} has {count} classes, a classifier needs two or more: give a folder with a "
            "sub-folder for each class, or a list with 'path label' on every line"
        )
    if count > max(len(names), len(dataset)):
        raise ValueError(
            f"{source!r} has the label {count - 1}, but only {len(dataset)} videos: labels are the "
            "numbers of the classes, from 0"
        )
    shown = f": {', '.join(names)}" if names else ""
    print_log(f"{count} classes in {len(dataset)} videos of {source}{shown}", logger="current")
    empty = sorted(set(range(count)) - set(labels.tolist()))
    if empty:
        print_log(
            f"no training video of {source} has the label {', '.join(map(str, empty[:5]))}"
            f"{', ...' if empty[5:] else ''}; labels count from 0 to {count - 1}",
            logger="current",
            level=logging.WARNING,
        )
    return count
