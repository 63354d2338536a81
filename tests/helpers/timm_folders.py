"""Folders in timm's layout, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from sce_video.models.backbones.timm_package import timm

#: Input of the networks, as ``pretrained_cfg`` states it.
INPUT = dict(
    input_size=[3, 160, 160],
    mean=[0.5, 0.4, 0.3],
    std=[0.2, 0.25, 0.3],
    crop_pct=1.0,
    interpolation="bicubic",
    crop_mode="center",
)


def save_timm(folder: Path, architecture: str, **changes: Any) -> torch.nn.Module:
    """Write what timm's ``save_for_hf`` writes, which itself needs torchvision.

    Source: huggingface/pytorch-image-models, ``timm/models/_hub.py``.

    Args:
        folder: Folder to make.
        architecture: Network of timm.
        changes: Entries of ``config.json`` that differ, and arguments of the network as
            ``model_args``.

    Returns:
        The network without its classifier, in evaluation mode.
    """
    torch.manual_seed(0)
    network = timm().create_model(architecture, num_classes=5, **changes.get("model_args", {}))
    for parameter in network.parameters():
        if parameter.ndim == 1:  # norms, which begin as the identity
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.contiguous() for name, value in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    config = dict(
        architecture=architecture,
        num_classes=5,
        num_features=network.num_features,
        pretrained_cfg=INPUT,
    )
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    network.reset_classifier(0)
    return network.eval()
