"""Crops and resizing of uint8 clips. Random numbers are drawn once per view, for all frames."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import cv2
import numpy as np
from PIL import Image

from sce_video.datasets.pipeline import PipelineResults
from sce_video.datasets.readers.base import DecodeLimits
from sce_video.datasets.transforms.lazy_view import Box, LazyView, resized_as_pil
from sce_video.registry import TRANSFORMS
from sce_video.utils.stored_arguments import PixelRange, Pixels, Word

#: A view, uint8 (T, H, W, 3). Its pixels may not have been computed yet.
View = np.ndarray | LazyView


def _check_size(size: int) -> int:
    if size < 1:
        raise ValueError(f"size must be a positive number of pixels, got {size}")
    return size


def _check_area(name: str, area: Sequence[float]) -> tuple[float, float]:
    if len(area) != 2 or not 0 < area[0] <= area[1] <= 1:
        raise ValueError(f"{name} must be 0 < low <= high <= 1, got {area}")
    return float(area[0]), float(area[1])


def crop_and_resize(view: View, box: Box, size: tuple[int, int]) -> View:
    """Cut ``box`` (top, left, height, width) from all frames, and resize it bilinearly to ``size``.

    There is no antialiasing. For a :class:`LazyView`, the result is a lazy view, and no pixels are
    computed.
    """
    if isinstance(view, LazyView):
        return view.crop_and_resize(box, size)
    top, left, height, width = box
    window = view[:, top : top + height, left : left + width]
    if (height, width) == size:
        return np.ascontiguousarray(window)
    result = np.empty((len(view), *size, 3), dtype=np.uint8)
    for source, target in zip(window, result, strict=True):
        cv2.resize(source, size[::-1], dst=target, interpolation=cv2.INTER_LINEAR)
    return result


def _check_resized(results: PipelineResults, height: int, width: int) -> None:
    """Raise VideoDecodeError if frames of this size exceed the reader's limit."""
    limits = results.get("limits", DecodeLimits())
    limits.check_frame(results.get("path", "frames"), height, width)


def _check_fits(frame_size: tuple[int, int], size: int) -> None:
    height, width = frame_size
    if height < size or width < size:
        raise ValueError(
            f"a crop of {size} pixels does not fit into frames of {height} x {width}. Put "
            "ResizeShortSide before the crop"
        )


def crop_offsets(frame_size: tuple[int, int], size: int, num_crops: int) -> list[tuple[int, int]]:
    """Return top and left of one square in the centre, or of three squares along the long side.

    One square begins at ``(length - size) / 2`` rounded half to even, as in torchvision's
    ``CenterCrop``. Three squares begin at 0, ``ceil((long - size) / 2)`` and ``long - size`` along
    the long side, and at ``ceil((short - size) / 2)`` along the short side. In a square frame, the
    width is the long side::

        width >= height   +------+------+------+        height > width   +------+  0
                          |  0   |  1   |  2   |                         +------+  1
                          +------+------+------+                         +------+  2

    The three squares equal SlowFast's ``uniform_crop`` (datasets/transform.py) and pytorchvideo's
    crops. ValueError is raised if the frame is smaller than the crop.
    """
    _check_fits(frame_size, size)
    height, width = frame_size
    if num_crops == 1:
        return [(round((height - size) / 2), round((width - size) / 2))]
    top, left = math.ceil((height - size) / 2), math.ceil((width - size) / 2)
    if width >= height:
        return [(top, 0), (top, left), (top, width - size)]
    return [(0, left), (top, left), (height - size, left)]


def random_box(
    frame_size: tuple[int, int],
    area: tuple[float, float],
    aspect: tuple[float, float],
    draws: np.ndarray,
) -> Box:
    """Return a box of random area and aspect ratio inside a frame: top, left, height, width.

    As in torchvision's ``RandomResizedCrop``, the share of the frame's area is uniform in ``area``,
    width / height is log-uniform in ``aspect``, and the first draw that fits is used. If none fits,
    the result is the largest central box whose aspect ratio lies in the range. ``draws``, (tries,
    4) in [0, 1), determine area, aspect, top and left.
    """
    height, width = frame_size
    low, high = math.log(aspect[0]), math.log(aspect[1])
    for u_area, u_aspect, u_top, u_left in draws.tolist():
        target = height * width * (area[0] + (area[1] - area[0]) * u_area)
        ratio = math.exp(low + (high - low) * u_aspect)
        box_width = round(math.sqrt(target * ratio))
        box_height = round(math.sqrt(target / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(u_top * (height - box_height + 1))
            left = int(u_left * (width - box_width + 1))
            return top, left, box_height, box_width
    box_height, box_width = height, width
    if width / height < aspect[0]:
        box_height = round(width / aspect[0])
    elif width / height > aspect[1]:
        box_width = round(height * aspect[1])
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


@TRANSFORMS.register_module()
class RandomResizedCropClips:
    """Random box, resized to a square. One box is drawn per view, for all of its frames.

    Args:
        size: Side of the output in pixels.
        area: Range of the box's share of the frame's area.
        aspect: Range of width / height, which is drawn log-uniformly.
        local_size: Side of the local views (:class:`RandomClips`), or a list with a side for each.
            None means ``size``.
        local_area: Range of the area of the local views, or a list with a range for each. None
            means ``area``.
    """

    tries = 10

    def __init__(
        self,
        size: Pixels,
        area: tuple[float, float] = (0.2, 0.766),
        aspect: tuple[float, float] = (3 / 4, 4 / 3),
        local_size: int | Sequence[int] | None = None,
        local_area: tuple[float, float] | Sequence[tuple[float, float]] | None = None,
    ) -> None:
        if not 0 < aspect[0] <= aspect[1]:
            raise ValueError(f"aspect must be 0 < low <= high, got {aspect}")
        self.size = _check_size(size)
        self.area = _check_area("area", area)
        self.aspect = (float(aspect[0]), float(aspect[1]))
        sizes: Any = self.size if local_size is None else local_size
        areas: Any = self.area if local_area is None else local_area
        one_size, one_area = isinstance(sizes, int), areas and isinstance(areas[0], int | float)
        self.local_size: Any = _check_size(sizes) if one_size else [*map(_check_size, sizes)]
        check = partial(_check_area, "local_area")
        self.local_area: Any = check(areas) if one_area else [*map(check, areas)]

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Replace every view by uint8 (T, size, size, 3), or local_size for local views.

        Raises:
            ValueError: If the number of local views does not match the settings for local views.
        """
        num_local = results.get("num_local_views", 0)
        sizes, areas = self.local_size, self.local_area
        named = f"local_size={sizes} and local_area={areas} of RandomResizedCropClips"
        if not num_local and (sizes, areas) != (self.size, self.area):
            raise ValueError(
                f"cannot use {named} without local views. Set num_local_views of the step that "
                "makes the views"
            )
        sizes = sizes if isinstance(sizes, list) else [sizes] * num_local
        areas = areas if isinstance(areas, list) else [areas] * num_local
        if not len(sizes) == len(areas) == num_local:
            advice = "Use one value for all views, or a list with a value for each"
            raise ValueError(f"cannot use {named} for {num_local} local views. {advice}")
        num_global = len(results["views"]) - num_local
        settings = [(self.size, self.area)] * num_global + list(zip(sizes, areas, strict=True))
        views = []
        for view, (size, area) in zip(results["views"], settings, strict=True):
            draws = results["rng"].random((self.tries, 4))
            box = random_box(view.shape[1:3], area, self.aspect, draws)
            views.append(crop_and_resize(view, box, (size, size)))
        results["views"] = views
        return results


@TRANSFORMS.register_module()
class ResizeShortSide:
    """Bilinear resizing of every view so that its short side has ``size`` pixels.

    The long side becomes ``floor(long * size / short)``. :class:`VideoDecodeError` is raised if the
    result has more pixels than the reader's limit, as for frames with few rows. If a clip has
    ``boxes`` in [0, 1], they are converted to pixels.

    Args:
        size: Length of the short side in pixels, or an inclusive range (low, high), from which a
            length is drawn per view.
        inverse_uniform: Whether to draw 1 / size uniformly, instead of size. This is SlowFast's
            ``INV_UNIFORM_SAMPLE`` (datasets/transform.py).
    """

    def __init__(self, size: PixelRange, inverse_uniform: bool = False) -> None:
        low, high = (size, size) if isinstance(size, int) else size
        if not 0 < low <= high:
            raise ValueError(f"size must be positive, or a range low <= high, got {size}")
        self.low, self.high = int(low), int(high)
        self.inverse_uniform = inverse_uniform

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Replace every view. A random number is drawn per view, also for a fixed size."""
        views = []
        for view in results["views"]:
            height, width = view.shape[1:3]
            draw = results["rng"].random()
            side = self.low + int(draw * (self.high - self.low + 1))
            if self.inverse_uniform:
                low, high = 1 / self.high, 1 / self.low
                side = round(1 / (low + (high - low) * draw))
            short = min(height, width)
            size = height * side // short, width * side // short  # rounds the long side down
            _check_resized(results, *size)
            views.append(crop_and_resize(view, (0, 0, height, width), size))
        if "boxes" in results:  # there is only one view
            results["boxes"] = results["boxes"] * np.array([*size[::-1]] * 2, dtype=np.float32)
        results["views"] = views
        return results


@TRANSFORMS.register_module()
class CenterCropClips:
    """Central square of ``size`` pixels, at the same place as torchvision's ``CenterCrop``."""

    def __init__(self, size: Pixels) -> None:
        self.size = _check_size(size)

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Replace every view by uint8 (T, size, size, 3)."""
        square = (self.size, self.size)
        results["views"] = [
            crop_and_resize(
                view, (*crop_offsets(view.shape[1:3], self.size, 1)[0], *square), square
            )
            for view in results["views"]
        ]
        return results


@TRANSFORMS.register_module()
class RandomCropClips:
    """Square at a uniformly random position, which is drawn once per view.

    If a clip has ``boxes``, they are clipped to the square. A box outside the square is dropped
    with its ``actions``.

    Args:
        size: Side of the crop in pixels. Frames with their border must be at least as large.
        padding: Width in pixels of a black border that is first added on all sides. The usual
            augmentation of CIFAR is ``size=32, padding=4``, like torchvision's
            ``RandomCrop(32, padding=4)``.
    """

    def __init__(self, size: Pixels, padding: int = 0) -> None:
        self.size = _check_size(size)
        if padding < 0:
            raise ValueError(f"padding must be at least 0 pixels, got {padding}")
        self.padding = padding

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Replace every view by uint8 (T, size, size, 3)."""
        views, square = [], (self.size, self.size)
        for view in results["views"]:
            if self.padding:  # padding computes a lazy view
                border = (self.padding, self.padding)
                view = np.pad(np.asarray(view), ((0, 0), border, border, (0, 0)))
            _check_fits(view.shape[1:3], self.size)
            height, width = view.shape[1:3]
            u_top, u_left = results["rng"].random(2)
            top = int(u_top * (height - self.size + 1))
            left = int(u_left * (width - self.size + 1))
            views.append(crop_and_resize(view, (top, left, *square), square))
        if "boxes" in results:  # there is only one view
            corner = np.array([left, top, left, top], dtype=np.float32) - self.padding
            boxes = np.clip(results["boxes"] - corner, 0, self.size)
            kept = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
            results |= {"boxes": boxes[kept], "actions": results["actions"][kept]}
        results["views"] = views
        return results


@TRANSFORMS.register_module()
class ResizeAsProcessor:
    """Antialiased resizing of every frame, followed by a central crop, as in transformers.

    Pixels equal those of the torchvision backend, and differ from the Pillow backend by 1 level of
    255 (bicubic: 2). The long side becomes ``int(size * long / short)``, and the offset of the crop
    ``int((length - crop) / 2)`` (transformers, image_processing_backends.py).

    Args:
        size: Length of the short side in pixels. Two equal numbers squash the frame to a square.
        crop: Side of the central square in pixels. None does not crop.
        interpolation: Method, "bilinear" or "bicubic".
    """

    def __init__(
        self, size: PixelRange, crop: int | None = None, interpolation: Word = "bilinear"
    ) -> None:
        sides = (size, size) if isinstance(size, int) else tuple(size)
        whole = sides[0] if crop is None else crop
        if len(sides) != 2 or sides[0] != sides[1] or not 1 <= whole <= sides[0]:
            raise ValueError(f"sizes must be 1 <= crop <= size, got crop {crop} and size {size}")
        if interpolation not in ("bilinear", "bicubic"):
            raise ValueError(
                f"interpolation must be one of bilinear, bicubic, got {interpolation!r}"
            )
        self.size, self.square = sides[0], not isinstance(size, int)
        self.crop, self.interpolation = crop, interpolation

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Replace every view by uint8 (T, H, W, 3) of the new size."""
        views: list[View] = []
        for view in results["views"]:
            sides = view.shape[1:3]
            height, width = (int(self.size * side / min(sides)) for side in sides)
            resized = (self.size, self.size) if self.square else (height, width)
            _check_resized(results, *resized)
            sides = resized if self.crop is None else (self.crop, self.crop)
            resized_view = np.empty((len(view), *sides, 3), dtype=np.uint8)
            for target, frame in zip(resized_view, _frames(view), strict=True):
                target[...] = self._frame(frame, resized)
            views.append(resized_view)
        results["views"] = views
        return results

    def _frame(self, frame: np.ndarray, resized: tuple[int, int]) -> np.ndarray:
        if frame.shape[:2] != resized:
            frame = resized_as_pil(frame, resized, self.interpolation)
        if self.crop is None:
            return frame
        top, left = ((side - self.crop) // 2 for side in resized)
        return frame[top : top + self.crop, left : left + self.crop]


def _frames(view: np.ndarray | LazyView) -> Iterable[np.ndarray]:
    """Return the frames one after the other, so that each is resized while it is in the cache."""
    if not isinstance(view, LazyView) or view.steps or view.partners is not None:
        return np.asarray(view)
    if len(np.unique(view.order)) < len(view):  # render_views converts repeated frames only once
        return np.asarray(view)
    view.frames.reduce(1.0)
    return (view.frames[index] for index in view.order.tolist())


@TRANSFORMS.register_module()
class PillowResizeCenterCrop(ResizeAsProcessor):
    """Antialiased resizing of the short side and a central crop, as in torchvision on PIL images.

    Sizes and offsets equal ``torchvision.transforms.Resize(size)`` and ``CenterCrop(crop)``. The
    long side becomes ``floor(size * long / short)``, and the offset is ``(length - crop) / 2``
    rounded half to even. ``crop`` is at most ``size``, and ``interpolation`` is "bilinear" or
    "bicubic".
    """

    def __init__(self, size: Pixels, crop: int, interpolation: Word = "bilinear") -> None:
        super().__init__(size, crop, interpolation)
        self._filter = Image.Resampling[interpolation.upper()]

    def _frame(self, frame: np.ndarray, resized: tuple[int, int]) -> np.ndarray:
        side: Any = self.crop
        top, left = (round((length - side) / 2) for length in resized)
        image = Image.fromarray(frame).resize(resized[::-1], self._filter)
        return np.asarray(image.crop((left, top, left + side, top + side)))


@TRANSFORMS.register_module()
class FlipWithBoxes:
    """Flip of a clip and its boxes with probability ``prob``. Packing flips the pixels."""

    def __init__(self, prob: float = 0.5) -> None:
        if not 0 <= prob <= 1:
            raise ValueError(f"prob must lie in [0, 1], got {prob}")
        self.prob = prob

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Read ``views`` and ``boxes`` in pixels, and write ``flipped``."""
        results["flipped"] = bool(results["rng"].random() < self.prob)
        if results["flipped"]:
            width = results["views"][0].shape[2]
            x1, y1, x2, y2 = results["boxes"].T
            results["boxes"] = np.stack([width - x2, y1, width - x1, y2], axis=1)
        return results
