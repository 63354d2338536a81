"""Clips with boxes, from the collated batch to what the network sees."""

from __future__ import annotations

from typing import Any

import torch

from sce_video.models.data_preprocessors.video import VideoDataPreprocessor
from sce_video.registry import MODELS


@MODELS.register_module()
class BoxDataPreprocessor(VideoDataPreprocessor):
    """Move to the device and normalise; boxes and actions travel along.

    Augmentation that moves pixels happens in the pipeline, where the boxes follow it; colours may
    change here. A view that flips is refused.

    Args: as of :class:`VideoDataPreprocessor`.
    """

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        """Prepare a batch.

        Args:
            data: ``inputs``, one view uint8 (N, T, H, W, 3), ``boxes`` and ``actions``, N tensors
                each, as :func:`sce_video.collate_boxes` makes them.
            training: Augment.

        Returns:
            ``inputs`` float32 (N, 3, T, H, W) and ``data_samples`` with ``boxes`` and ``actions``.
        """
        if any(view.flip_prob > 0 for view in self.views):
            raise ValueError("a view of BoxDataPreprocessor must not flip: boxes would not follow")
        prepared = super().forward(data, training)
        if torch.is_tensor(prepared["inputs"]) or len(prepared["inputs"]) != 1:
            raise ValueError(f"one view is expected, got {len(prepared['inputs'])}")
        samples = {key: self.cast_data(data[key]) for key in ("boxes", "actions") if key in data}
        return {"inputs": prepared["inputs"][0], "data_samples": samples}
