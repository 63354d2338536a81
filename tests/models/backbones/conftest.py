"""Functions that the tests of convolutional backbones share."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@pytest.fixture
def randomised():
    """Put a model into evaluation mode, with random BN parameters and statistics."""

    def make(model: nn.Module) -> nn.Module:
        torch.manual_seed(0)
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                nn.init.uniform_(module.running_var, 0.5, 1.5)
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.running_mean, 0, 0.2)
                nn.init.normal_(module.bias, 0, 0.2)
        return model.eval()

    return make


class Read(dict):
    """A state dict that records which of its entries were read."""

    def __init__(self, model: nn.Module) -> None:
        names = {name: value for name, value in model.state_dict().items() if value.ndim}
        super().__init__(names)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        self.read.add(name)
        return super().__getitem__(name)


@pytest.fixture
def read():
    """Return the state of a model for a functional forward pass, which must read all entries."""
    return Read
