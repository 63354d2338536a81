"""Projector and predictor: the MLP heads of self-supervised methods."""

from __future__ import annotations

from mmengine.model import BaseModule
from torch import Tensor, nn

from sce_video.registry import MODELS


@MODELS.register_module()
class MLP(BaseModule):
    """Linear layers with ReLU in between, and BN where a method has it.

    A hidden layer is linear, BN (if ``norm_hidden``), ReLU; the last layer is linear, then BN (if
    ``norm_output``). The defaults are those of SCE and MoCo v3: no biases, BN after the hidden
    layers, an output BN without affine parameters. The heads of the methods:

    ====================== ================================ ====================================
    method, sizes          arguments                        source
    ====================== ================================ ====================================
    SCE, projector         3 layers, ``norm_output=True``   paper, tables
    (video, ImageNet)                                       tab:specific-hyper-pretrain-video and
                                                            tab:specifc-hyper-pretrain
    SCE, predictor         2 layers, ``norm_output=False``  the same tables
    SCE on CIFAR, STL10,   2 layers, ``norm_output=False,   paper, tab:specifc-hyper-pretrain;
    Tiny-IN, 512-512-128   bias_output=True``               biases: juliendenize/eztorch
    SCE on ImageNet100,    as MoCo v2                       the same table
    2048-4096-256
    MoCo v2,               2 layers, ``norm_output=False,   arXiv 2003.04297; facebookresearch/moco
    2048-2048-128          norm_hidden=False, bias=True``   moco/builder.py
    ReSSL, 2048-4096-512   as MoCo v2                       KyleZheng1997/ReSSL
    MoCo v3, projector,    2 layers, ``norm_output=True``   facebookresearch/moco-v3
    2048-4096-256                                           moco/builder.py (ResNet)
    MoCo v3, predictor,    2 layers, ``norm_output=False``  the same file
    256-4096-256
    BYOL, both heads,      2 layers, ``norm_output=False,   arXiv 2006.07733; lightly-ai/lightly
    2048 or 256-4096-256   bias_output=True``               lightly/models/modules/heads.py
    SimCLR, 2048-2048-128  2 layers, ``norm_output=True,    arXiv 2002.05709; lightly-ai/lightly
                           affine_output=True``             lightly/models/modules/heads.py
    SwAV, 2048-2048-128    2 layers, ``norm_output=False,   facebookresearch/swav
                           bias=True``                      src/resnet50.py
    LeJEPA,                3 layers, ``norm_output=False,   arXiv 2511.08544; rbalestr-lab/lejepa
    512-2048-2048-16       bias=True``                      MINIMAL.md
    ====================== ================================ ====================================

    Args:
        in_channels: Size of the input.
        hidden_channels: Size of the hidden layers; without effect when there is one layer.
        out_channels: D, size of the output.
        num_layers: Linear layers, at least 1.
        norm_output: BN after the last layer.
        bias: Biases in the linear layers.
        norm_hidden: BN after the hidden layers.
        affine_output: Learned scale and shift in the output BN.
        bias_output: Bias in the last linear layer; None: as ``bias``.
        init_cfg: mmengine's initialisation config; None: torch's. The heads of SlowFast:
            ``dict(type="Caffe2Xavier", layer="Linear")`` (slowfast/utils/weight_init_helper.py).

    Raises:
        ValueError: a size or ``num_layers`` below 1; ``affine_output`` without ``norm_output``.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        norm_output: bool,
        *,
        bias: bool = False,
        norm_hidden: bool = True,
        affine_output: bool = False,
        bias_output: bool | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        sizes = dict(
            in_channels=in_channels,
            hidden_channels=hidden_channels,
            out_channels=out_channels,
            num_layers=num_layers,
        )
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if affine_output and not norm_output:
            raise ValueError("affine_output=True needs an output BN: set norm_output=True too")
        self.in_channels = in_channels
        self.out_channels = out_channels
        layers: list[nn.Module] = []
        for _ in range(num_layers - 1):
            layers.append(nn.Linear(in_channels, hidden_channels, bias=bias))
            if norm_hidden:
                layers.append(nn.BatchNorm1d(hidden_channels))
            layers.append(nn.ReLU(inplace=True))
            in_channels = hidden_channels
        last_bias = bias if bias_output is None else bias_output
        layers.append(nn.Linear(in_channels, out_channels, bias=last_bias))
        if norm_output:
            layers.append(nn.BatchNorm1d(out_channels, affine=affine_output))
        self.layers = nn.Sequential(*layers)

    def forward(self, h: Tensor) -> Tensor:
        """(N, in_channels) to embeddings (N, out_channels), not l2-normalised."""
        return self.layers(h)
