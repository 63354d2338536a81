"""Memory format of a model, which depends on the device that it is moved to."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def move_to_device(model: Model, device: torch.device) -> Model:
    """Move a model to a device, and convert it to the memory format that suits this device.

    Values change only by rounding. On a CPU, the config decides the format, so that the values of a
    recipe stay bit-identical.

    Args:
        model: Model to move, which is changed in place.
        device: Device of the model afterwards.
    """
    model.to(device)
    if computes_channels_last(device):
        use_channels_last(model)
    return model


def computes_channels_last(device: torch.device) -> bool:
    """Return whether convolutions on a device compute in ``channels_last`` memory.

    In this format, cuDNN uses tensor cores directly. In any other, it converts every input first.
    """
    return device.type == "cuda"


def use_channels_last(model: nn.Module) -> None:
    """Set ``channels_last`` in all parts of a model that have this option, in place.

    These parts are convolutional backbones, whose weights are converted, and the data preprocessor,
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
    """Change the memory format of a weight, and keep the parameter that an optimiser refers to."""
    weight.data = weight.data.contiguous(memory_format=memory_format)
