"""From the collated uint8 batch to the input of mmaction2's recognisers."""

from __future__ import annotations

from typing import Any

import torch

from sce_video.models.data_preprocessors.video import VideoDataPreprocessor
from sce_video.registry import MODELS


@MODELS.register_module()
class RecognizerDataPreprocessor(VideoDataPreprocessor):
    """A :class:`VideoDataPreprocessor` for mmaction2's ``Recognizer3D``.

    Arguments and augmentation are the same; the output has mmaction2's format.
    """

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        """Prepare a batch.

        Args:
            data: As for :class:`VideoDataPreprocessor`; all V views have the same shape.
            training: Augment.

        Returns:
            ``inputs`` float32 (N, V, 3, T, H, W) and ``data_samples``, N ``ActionDataSample`` with
            the label.
        """
        # Here, so that a project without recognisers does not import mmaction2.
        from mmaction.structures import ActionDataSample

        prepared = super().forward(data, training)
        samples = [
            ActionDataSample().set_gt_labels(label)
            for label in prepared["data_samples"]["label"].reshape(-1, 1)
        ]
        return {"inputs": torch.stack(prepared["inputs"], dim=1), "data_samples": samples}
