"""The last transform: from numpy views to the sample a loader ships."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sce_video.datasets.transforms.spatial import crop_offsets
from sce_video.registry import TRANSFORMS


@TRANSFORMS.register_module()
class PackClips:
    """Turn the views into uint8 tensors; colours and layout are the data preprocessor's work."""

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return ``inputs`` (list of V uint8 tensors (T, H, W, 3)), ``label, index, seed``."""
        inputs = [torch.from_numpy(np.ascontiguousarray(view)) for view in results["views"]]
        kept = {name: int(results[name]) for name in ("label", "index", "seed")}
        return {"inputs": inputs, **kept}


@TRANSFORMS.register_module()
class PackVideo:
    """Ship the resized frames once, and where each of the K x C views of the video lies in them.

    The views themselves are cut on the device, a few at a time
    (:func:`sce_video.evaluation.view_chunks`): 10 clips x 3 crops of an 8-frame clip would be 240
    crops of 256 x 256, of which the frames here hold each pixel once.

    Args:
        crop_size: Side of a crop, pixels.
        num_crops: C; 1 is the centre, 3 lie along the long side, see :func:`crop_offsets`.
    """

    def __init__(self, crop_size: int, num_crops: int = 3) -> None:
        if crop_size < 1:
            raise ValueError(f"crop_size must be a positive number of pixels, got {crop_size}")
        if num_crops not in (1, 3):
            raise ValueError(
                f"num_crops must be 1 (centre) or 3 (along the long side), got {num_crops}"
            )
        self.crop_size = crop_size
        self.num_crops = num_crops

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``views`` (one) and ``positions`` of :class:`DecodeSharedFrames`.

        Returns:
            ``frames`` uint8 (F, H, W, 3), ``positions`` int64 (K, T), ``offsets`` int64 (C, 2) (top
            and left of every crop), ``crop_size``, ``label``, ``index``, ``seed``.
        """
        (frames,) = results["views"]
        offsets = crop_offsets(frames.shape[1:3], self.crop_size, self.num_crops)
        kept = {name: int(results[name]) for name in ("label", "index", "seed")}
        return {
            "frames": torch.from_numpy(np.ascontiguousarray(frames)),
            "positions": torch.from_numpy(results["positions"].astype(np.int64)),
            "offsets": torch.tensor(offsets, dtype=torch.int64),
            "crop_size": self.crop_size,
            **kept,
        }
