"""Action scores of given person boxes (SlowFast's ``ResNetRoIHead`` with one pathway)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sce_video.models.modules import roi_align
from sce_video.registry import MODELS


@MODELS.register_module()
class RoIActionHead(nn.Module):
    """Mean over time, RoIAlign, maximum over space, dropout, one linear layer.

    Source: facebookresearch/SlowFast, slowfast/models/head_helper.py.

    Args:
        in_channels: C of the features.
        num_classes: Number of actions; several may apply to one box.
        roi_size: Height and width of the grid that a box is sampled to.
        stride: Pixels of the frame per feature cell: 16 with a last stage of stride 1.
        dropout_ratio: Dropout before the linear layer.
        init_std: Standard deviation of the linear layer's initial weights.
        roi_backend: See :func:`sce_video.models.modules.roi_align`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int = 80,
        roi_size: int = 7,
        stride: int = 16,
        dropout_ratio: float = 0.5,
        init_std: float = 0.01,
        roi_backend: str = "auto",
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.roi_size = roi_size
        self.stride = stride
        self.roi_backend = roi_backend
        self.dropout = nn.Dropout(dropout_ratio)
        self.fc_cls = nn.Linear(in_channels, num_classes)
        nn.init.normal_(self.fc_cls.weight, std=init_std)
        nn.init.zeros_(self.fc_cls.bias)

    def forward(self, features: Tensor, boxes: list[Tensor]) -> Tensor:
        """Logits of every box, (sum of n_i, number of classes).

        Args:
            features: (N, C, T, H, W).
            boxes: N tensors (n_i, 4), x1 y1 x2 y2 in pixels of the clip.
        """
        maps = features.mean(dim=2)
        indices = [boxes[i].new_full((len(boxes[i]), 1), i) for i in range(len(boxes))]
        rois = torch.cat([torch.cat(pair, dim=1) for pair in zip(indices, boxes, strict=True)])
        grid = roi_align(
            maps, rois, self.roi_size, 1 / self.stride, aligned=True, backend=self.roi_backend
        )
        return self.fc_cls(self.dropout(grid.amax(dim=(2, 3))))
