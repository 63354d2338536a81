"""Actions of persons in any video, from an AVA checkpoint and given person boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sce_video.datasets.loading.batches import collate_boxes
from sce_video.datasets.pipeline import PipelineResults, run_pipeline
from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.config.load import check_config, load_config
from sce_video.engine.weights import (
    check_backbone_weights,
    check_classifier_weights,
    checkpoint_weights,
)
from sce_video.inference.model import select_device
from sce_video.models.memory_format import move_to_device
from sce_video.registry import MODELS, TRANSFORMS
from sce_video.utils.records import at


@dataclass(frozen=True)
class ActionModel:
    """An action detector with its test pipeline, made by :func:`load_action_model`.

    Attributes:
        detector: The network, in eval mode.
        pipeline: Configs of the test pipeline of its recipe.
        device: Device of the network.
    """

    detector: Any
    pipeline: list[dict]
    device: torch.device


def load_action_model(
    config: str | Path,
    checkpoint: str | Path,
    cfg_options: Sequence[str] = (),
    device: str | torch.device | None = None,
) -> ActionModel:
    """Load the detector of a checkpoint trained by a recipe of ``configs/downstream/detection``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the weights do not fit the network of the recipe.
    """
    cfg = load_config(config, cfg_options)
    check_config(cfg)
    model = dict(cfg.model)
    model.setdefault("data_preprocessor", at(cfg, "data_preprocessor"))
    detector = MODELS.build(model)
    stored = load_checkpoint_file(checkpoint)
    check_backbone_weights(detector, stored, str(checkpoint))
    check_classifier_weights(detector, stored, str(checkpoint))
    detector.load_state_dict(checkpoint_weights(stored))
    selected = select_device(device)
    pipeline = [dict(step) for step in cfg.test_dataloader.dataset.pipeline]
    return ActionModel(move_to_device(detector.eval(), selected), pipeline, selected)


def score_boxes(
    model: ActionModel,
    path: str | Path,
    second: float,
    boxes: np.ndarray,
    begins_at: float = 0.0,
) -> np.ndarray:
    """Compute (n, 80) float32 probabilities of AVA actions for persons at a moment of a video.

    Args:
        model: From :func:`load_action_model`.
        path: A video, or a folder of frames (30 per second).
        second: Time of the moment in seconds. The file begins at second ``begins_at``.
        boxes: (n, 4), x1 y1 x2 y2 from 0 to 1.
        begins_at: Second at which the file begins: 0, or 900 for the 15-minute cuts of AVA.

    Raises:
        ValueError: If a box is outside the frame or has inverted corners.
        VideoDecodeError: If the file cannot be decoded or does not contain the second.
    """
    boxes = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
    for box in boxes:
        if not (0 <= box[0] < box[2] <= 1 and 0 <= box[1] < box[3] <= 1):
            raise ValueError(
                f"box {box.tolist()} must have 0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1"
            )
    results: PipelineResults = {
        "path": str(path),
        "timestamp": second,
        "boxes": boxes.copy(),
        "actions": np.zeros((len(boxes), 80), dtype=np.float32),
        "rng": np.random.default_rng(0),
        "label": -1,
        "index": 0,
        "seed": 0,
    }
    pipeline = []
    for step in model.pipeline:
        step = dict(step)
        if step["type"] == "KeyFrameClip":
            step["begins_at"] = begins_at
        if step["type"] == "OpenVideo" and Path(path).is_dir():
            step = {"type": "OpenFrameFolder"}
        pipeline.append(TRANSFORMS.build(step))
    sample = run_pipeline(pipeline, results)
    with torch.no_grad():
        data = model.detector.data_preprocessor(collate_boxes([sample]), False)
        return model.detector(**data, mode="tensor").float().cpu().numpy()
