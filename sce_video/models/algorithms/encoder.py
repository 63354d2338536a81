"""The backbone alone: all that retrieval, feature extraction and search use of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmengine.model import BaseModel
from torch import Tensor

from sce_video.models.modules.pooling import represent
from sce_video.registry import MODELS


@MODELS.register_module()
class Encoder(BaseModel):
    """A backbone that computes representations and cannot be trained.

    Its weights come from the ``backbone.`` part of any checkpoint: of a pretraining, a linear
    evaluation or a finetuning.

    Args:
        backbone: Config of a backbone (N, 3, T, H, W) -> (N, C, T', H', W').
        data_preprocessor: Config of the data preprocessor; by default a
            :class:`~sce_video.models.data_preprocessors.VideoDataPreprocessor` that normalises.
    """

    def __init__(
        self, backbone: dict[str, Any], data_preprocessor: dict[str, Any] | None = None
    ) -> None:
        if data_preprocessor is None:
            data_preprocessor = {"type": "VideoDataPreprocessor"}
        super().__init__(data_preprocessor=MODELS.build(data_preprocessor))
        self.backbone = MODELS.build(backbone)

    def forward(
        self, inputs: Sequence[Tensor], data_samples: Any = None, mode: str = "tensor"
    ) -> list[Tensor]:
        """Representation h of every view.

        Args:
            inputs: V views (N, 3, T, H, W).
            data_samples: Not used.
            mode: "tensor".

        Returns:
            V tensors (N, C).

        Raises:
            ValueError: another mode.
        """
        if mode != "tensor":
            raise ValueError(f"mode must be 'tensor', got {mode!r}: an Encoder is not trained")
        return [self.represent(view) for view in inputs]

    def represent(self, view: Tensor) -> Tensor:
        """Representation h (N, C) of a view (N, 3, T, H, W)."""
        return represent(self.backbone, view)
