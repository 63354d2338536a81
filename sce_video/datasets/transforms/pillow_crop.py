"""Resize and centre crop with pillow's filters, as torchvision's transforms of PIL images."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.registry import TRANSFORMS

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@TRANSFORMS.register_module()
class PillowResizeCenterCrop:
    """Resize the short side, antialiased, and cut the central square.

    Sizes and offsets are those of ``torchvision.transforms.Resize(size)`` and ``CenterCrop(crop)``
    on PIL images: the long side becomes ``floor(size * long / short)``, the offset is ``(length -
    crop) / 2`` rounded half to even. ``ResizeShortSide`` does not filter.

    Args:
        size: Short side in pixels.
        crop: Side of the square in pixels, at most ``size``.
        interpolation: "bilinear" or "bicubic".

    Raises:
        ValueError: sizes that are not 1 <= crop <= size, or an unknown interpolation.
    """

    def __init__(self, size: int, crop: int, interpolation: str = "bilinear") -> None:
        if not 1 <= crop <= size:
            raise ValueError(f"sizes must be 1 <= crop <= size, got crop {crop} and size {size}")
        if interpolation not in _FILTERS:
            raise ValueError(
                f"interpolation must be one of {', '.join(_FILTERS)}, got {interpolation!r}"
            )
        self.size = size
        self.crop = crop
        self.interpolation = interpolation

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Replace every view by uint8 (T, crop, crop, 3)."""
        limits = results.get("limits") or DecodeLimits()
        views = []
        for view in results["views"]:
            height, width = view.shape[1:3]
            short = min(height, width)
            resized = int(self.size * height / short), int(self.size * width / short)
            limits.check_frame(results.get("path", "frames"), *resized)
            views.append(np.stack([self._cut(frame, resized) for frame in np.asarray(view)]))
        results["views"] = views
        return results

    def _cut(self, frame: np.ndarray, resized: tuple[int, int]) -> np.ndarray:
        height, width = resized
        image = Image.fromarray(frame).resize((width, height), _FILTERS[self.interpolation])
        top, left = round((height - self.crop) / 2), round((width - self.crop) / 2)
        return np.asarray(image.crop((left, top, left + self.crop, top + self.crop)))
