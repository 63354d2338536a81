"""Models that are not methods: an encoder for search and evaluation, and an action detector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor

from sce_video.models.backbones.common import init_info_to_file, represent
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import PartConfig


@MODELS.register_module()
class Encoder(BaseModel):
    """A backbone that computes representations and cannot be trained.

    It loads the weights named ``backbone.*`` from any checkpoint. By default, the data preprocessor
    is a ``VideoDataPreprocessor`` that only normalises.
    """

    _dump_init_info = init_info_to_file

    def __init__(self, backbone: PartConfig, data_preprocessor: PartConfig | None = None) -> None:
        prepared = data_preprocessor or {"type": "VideoDataPreprocessor"}
        super().__init__(data_preprocessor=MODELS.build(prepared))
        self.backbone = MODELS.build(backbone)

    def forward(
        self, inputs: Sequence[Tensor], data_samples: Any = None, mode: str = "tensor"
    ) -> list[Tensor]:
        """Return representations h (N, C) of V views (N, 3, T, H, W).

        Raises:
            ValueError: If ``mode`` is not "tensor".
        """
        if mode != "tensor":
            raise ValueError(f"mode must be 'tensor', got {mode!r}. An Encoder cannot be trained")
        return [self.represent(view) for view in inputs]

    def represent(self, view: Tensor) -> Tensor:
        """Return the representation h (N, C) of a view (N, 3, T, H, W)."""
        return represent(self.backbone, view)


@MODELS.register_module()
class ActionDetector(BaseModel):
    """A backbone and a head that scores actions per box, with sigmoid and binary cross-entropy.

    Args:
        backbone: Config of the encoder. For AVA, use ``last_stage_stride=1,
            last_stage_dilation=2``.
        roi_head: Config of the :class:`~sce_video.models.heads.RoIActionHead`.
        data_preprocessor: Config of a ``BoxDataPreprocessor``, which is the default.
    """

    _dump_init_info = init_info_to_file

    def __init__(
        self,
        backbone: PartConfig,
        roi_head: PartConfig,
        data_preprocessor: PartConfig | None = None,
    ) -> None:
        prepared = data_preprocessor or {"type": "BoxDataPreprocessor"}
        super().__init__(data_preprocessor=MODELS.build(prepared))
        self.backbone = MODELS.build(backbone)
        self.roi_head = MODELS.build({"in_channels": self.backbone.out_channels, **roi_head})

    def forward(
        self, inputs: Tensor, data_samples: dict[str, list[Tensor]], mode: str = "tensor"
    ) -> dict[str, Tensor] | Tensor:
        """Compute the loss or the scores of clips with person boxes.

        Args:
            inputs: (N, 3, T, H, W).
            data_samples: ``boxes``, N tensors (n_i, 4) in pixels of the clip. The loss also needs
                ``actions``, N tensors (n_i, number of classes) of 0 and 1.
            mode: "loss", or "tensor" for probabilities.

        Returns:
            A dict with ``loss``, or probabilities (sum of n_i, number of classes).

        Raises:
            ValueError: If the mode is unknown.
        """
        boxes = data_samples["boxes"]
        logits = self.roi_head(self.backbone(inputs), boxes).float()
        if mode == "tensor":
            return logits.sigmoid()
        if mode != "loss":
            raise ValueError(f"mode must be 'loss' or 'tensor', got {mode!r}")
        actions = torch.cat(data_samples["actions"])
        # Return a loss with a graph even for a batch without boxes, because
        # DistributedDataParallel waits for a gradient of every parameter.
        if len(actions) == 0:
            return {"loss": logits.sum()}
        return {"loss": F.binary_cross_entropy_with_logits(logits, actions)}
