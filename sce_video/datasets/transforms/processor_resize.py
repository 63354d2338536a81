"""Resize and centre crop as the image processors of transformers do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image

from sce_video.datasets.readers.limits import DecodeLimits
from sce_video.datasets.transforms.lazy_view import LazyView, resized_as_pil
from sce_video.registry import TRANSFORMS

_INTERPOLATIONS = ("bilinear", "bicubic")


@TRANSFORMS.register_module()
class ResizeAsProcessor:
    """Resize every frame, antialiased, and cut the central square, as transformers does.

    Pixels are those of its torchvision backend; its Pillow backend differs by 1 of 255 (bicubic:
    2). The long side becomes ``int(size * long / short)``, the offset ``int((length - crop) / 2)``
    (transformers, image_processing_backends.py). ``ResizeShortSide`` does not filter.

    Args:
        size: Short side in pixels; two equal numbers squash the frame to a square.
        crop: Side of the central square, pixels; None does not crop.
        interpolation: "bilinear" or "bicubic".

    Raises:
        ValueError: a size below 1, a crop larger than ``size``, or an unknown interpolation.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        crop: int | None = None,
        interpolation: str = "bilinear",
    ) -> None:
        sides = (size, size) if isinstance(size, int) else tuple(size)
        if len(sides) != 2 or sides[0] != sides[1] or not 1 <= (crop or 1) <= sides[0]:
            raise ValueError(f"sizes must be 1 <= crop <= size, got crop {crop} and size {size}")
        if interpolation not in _INTERPOLATIONS:
            raise ValueError(
                f"interpolation must be one of {', '.join(_INTERPOLATIONS)}, got {interpolation!r}"
            )
        self.size = sides[0]
        self.square = not isinstance(size, int)
        self.crop = crop
        self.interpolation = interpolation

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Replace every view by uint8 (T, H, W, 3) of the new size."""
        limits = results.get("limits") or DecodeLimits()
        views = []
        for view in results["views"]:
            resized = self._resized(*view.shape[1:3])
            limits.check_frame(results.get("path", "frames"), *resized)
            sides = resized if self.crop is None else (self.crop, self.crop)
            resized_view = np.empty((len(view), *sides, 3), dtype=np.uint8)
            for target, frame in zip(resized_view, _frames(view), strict=True):
                target[...] = self._frame(frame, resized)
            views.append(resized_view)
        results["views"] = views
        return results

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if self.square:
            return self.size, self.size
        short = min(height, width)
        return int(self.size * height / short), int(self.size * width / short)

    def _frame(self, frame: np.ndarray, resized: tuple[int, int]) -> np.ndarray:
        if frame.shape[:2] != resized:
            frame = resized_as_pil(frame, resized, self.interpolation)
        if self.crop is None:
            return frame
        top, left = ((side - self.crop) // 2 for side in resized)
        return frame[top : top + self.crop, left : left + self.crop]


def _frames(view: np.ndarray | LazyView) -> Iterable[np.ndarray]:
    """The frames one after the other: each is resized while it is in the cache."""
    if not isinstance(view, LazyView) or view.steps or view.partners is not None:
        return np.asarray(view)
    if len(np.unique(view.order)) < len(view):  # render_views converts a frame once
        return np.asarray(view)
    view.frames.reduce(1.0)
    return (view.frames[index] for index in view.order.tolist())


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
