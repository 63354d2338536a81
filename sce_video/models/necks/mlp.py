"""Projector and predictor."""

from __future__ import annotations

from mmengine.model import BaseModule
from torch import Tensor, nn

from sce_video.registry import MODELS


@MODELS.register_module()
class MLP(BaseModule):
    """Linear layers without bias, each hidden one followed by BN and ReLU.

    Source: paper, table ``tab:specific-hyper-pretrain-video``. The projector has 3 layers and BN
    after the last one too ("all"; that BN has no affine parameters, SETTINGS 2); the predictor has
    2 layers and no BN after the last ("hid").

    Args:
        in_channels: Length of the input.
        hidden_channels: Width of the hidden layers.
        out_channels: D, length of the output.
        num_layers: Linear layers, at least 1.
        norm_output: BN without affine parameters after the last layer.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        norm_output: bool,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        layers: list[nn.Module] = []
        for _ in range(num_layers - 1):
            layers += [
                nn.Linear(in_channels, hidden_channels, bias=False),
                nn.BatchNorm1d(hidden_channels),
                nn.ReLU(inplace=True),
            ]
            in_channels = hidden_channels
        layers.append(nn.Linear(in_channels, out_channels, bias=False))
        if norm_output:
            layers.append(nn.BatchNorm1d(out_channels, affine=False))
        self.layers = nn.Sequential(*layers)

    def forward(self, h: Tensor) -> Tensor:
        """(N, in_channels) to (N, out_channels), not normalised."""
        return self.layers(h)
