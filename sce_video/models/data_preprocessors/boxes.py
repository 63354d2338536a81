"""From the collated batch of clips with boxes to the input of a detector, on its device."""

from __future__ import annotations

from typing import Any

import torch

from sce_video.models.data_preprocessors.video import VideoDataPreprocessor
from sce_video.registry import MODELS


@MODELS.register_module()
class BoxDataPreprocessor(VideoDataPreprocessor):
    """Move clips, boxes and actions to the device; augment the colours and normalise the clips.

    Geometric augmentation is done in the pipeline, which moves the boxes too; this class changes
    colours only and refuses a view that flips.

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

        Raises:
            ValueError: a configured view flips, or the batch does not have exactly one view.
        """
        if any(view.flip_prob > 0 for view in self.views):
            raise ValueError(
                "a view of BoxDataPreprocessor must not flip: boxes stay where they are"
            )
        prepared = super().forward(data, training)
        if torch.is_tensor(prepared["inputs"]) or len(prepared["inputs"]) != 1:
            raise ValueError(f"expected one view per clip, got {len(prepared['inputs'])}")
        samples = {key: self.cast_data(data[key]) for key in ("boxes", "actions") if key in data}
        return {"inputs": prepared["inputs"][0], "data_samples": samples}
