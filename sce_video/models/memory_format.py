"""Memory format of a model, which depends on the device that it is moved to."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def move_to_device(model: Model, device: torch.device) -> Model:
    """Move a model to a device, and give it the memory format that suits this device.

    Values change by rounding only. On a CPU, the format stays as the config states it, so that a
    recipe keeps its values bit for bit.

    Args:
        model: Model, which is changed in place.
        device: Device to move it to.
    """
    model.to(device)
    if computes_channels_last(device):
        use_channels_last(model)
    return model


def computes_channels_last(device: torch.device) -> bool:
    """Return whether convolutions on a device compute in ``channels_last`` memory.

    cuDNN computes with tensor cores in this format, and converts every input in another one.
    """
    return device.type == "cuda"


def use_channels_last(model: nn.Module) -> None:
    """Set the option ``channels_last`` of every part of a model that has it, in place.

    These are the convolutional backbones, whose weights are converted, and the data preprocessor,
    which then allocates its views in this format.
    """
    for module in model.modules():
        if hasattr(module, "channels_last"):
            module.channels_last = True  # type: ignore[assignment]
        if isinstance(module, nn.Conv3d):
            _convert(module.weight, torch.channels_last_3d)
        elif isinstance(module, nn.Conv2d):
            _convert(module.weight, torch.channels_last)


def _convert(weight: torch.Tensor, memory_format: torch.memory_format) -> None:
    """Change the memory format of a weight, which stays the same parameter for an optimiser."""
    weight.data = weight.data.contiguous(memory_format=memory_format)
