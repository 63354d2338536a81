"""Crop, resizing and flip of a clip together with its boxes (AVA)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sce_video.datasets.transforms.packing import pack_views
from sce_video.datasets.transforms.spatial import crop_and_resize
from sce_video.registry import TRANSFORMS


def _scaled(height: int, width: int, side: int) -> tuple[int, int]:
    """Height and width resized to a short side of ``side``; the long side is rounded down."""
    short = min(height, width)
    return height * side // short, width * side // short


def _to_pixels(boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    height, width = size
    return boxes * np.array([width, height, width, height], dtype=np.float32)


@TRANSFORMS.register_module()
class RandomCropWithBoxes:
    """Resize the short side to a random size and cut a random square, for training.

    Boxes are clipped to the square. A box outside of it is dropped with its actions.

    Args:
        short_side: Range of the short side, pixels, both ends included.
        size: Side of the square, pixels.
    """

    def __init__(self, short_side: tuple[int, int] = (256, 320), size: int = 224) -> None:
        low, high = short_side
        if not 0 < size <= low <= high:
            raise ValueError(
                f"need 0 < size <= short_side[0] <= short_side[1], got {size}, {short_side}"
            )
        self.short_side = (int(low), int(high))
        self.size = size

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``views`` (one), ``boxes`` in [0, 1], ``actions``; boxes are returned in pixels."""
        (view,) = results["views"]
        height, width = view.shape[1:3]
        u_side, u_top, u_left = results["rng"].random(3)
        low, high = self.short_side
        size = _scaled(height, width, low + int(u_side * (high - low + 1)))
        top = int(u_top * (size[0] - self.size + 1))
        left = int(u_left * (size[1] - self.size + 1))
        view = crop_and_resize(view, (0, 0, height, width), size)
        square = (self.size, self.size)
        results["views"] = [crop_and_resize(view, (top, left, *square), square)]
        corner = np.array([left, top, left, top], dtype=np.float32)
        boxes = np.clip(_to_pixels(results["boxes"], size) - corner, 0, self.size)
        kept = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        results["boxes"], results["actions"] = boxes[kept], results["actions"][kept]
        return results


@TRANSFORMS.register_module()
class ResizeWithBoxes:
    """Resize the short side without a crop, for testing.

    Args:
        short_side: Pixels.
    """

    def __init__(self, short_side: int = 256) -> None:
        if short_side < 1:
            raise ValueError(f"short_side must be positive pixels, got {short_side}")
        self.short_side = short_side

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``views`` (one) and ``boxes`` in [0, 1]; boxes are returned in pixels."""
        (view,) = results["views"]
        height, width = view.shape[1:3]
        size = _scaled(height, width, self.short_side)
        results["views"] = [crop_and_resize(view, (0, 0, height, width), size)]
        results["boxes"] = _to_pixels(results["boxes"], size)
        return results


@TRANSFORMS.register_module()
class FlipWithBoxes:
    """Flip clip and boxes horizontally; the pixels are flipped when the clip is packed.

    Args:
        prob: Probability of a flip.
    """

    def __init__(self, prob: float = 0.5) -> None:
        if not 0 <= prob <= 1:
            raise ValueError(f"prob must lie in [0, 1], got {prob}")
        self.prob = prob

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``views`` and ``boxes`` in pixels, write ``flipped``."""
        results["flipped"] = bool(results["rng"].random() < self.prob)
        if results["flipped"]:
            width = results["views"][0].shape[2]
            x1, y1, x2, y2 = results["boxes"].T
            results["boxes"] = np.stack([width - x2, y1, width - x1, y2], axis=1)
        return results


@TRANSFORMS.register_module()
class PackBoxes:
    """Pack the clip and its boxes into the sample of a data loader."""

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return ``inputs`` (one uint8 (T, H, W, 3)), ``boxes`` (n, 4) in pixels, ``actions``.

        ``actions`` is (n, 80) float32 of 0 and 1; ``label``, ``index`` and ``seed`` are kept. The
        clip is written to ``targets`` as in :class:`PackClips`.
        """
        (clip,) = pack_views(results["views"], results.get("targets"))
        if results.get("flipped"):
            clip.copy_(clip.flip(2))
        return {
            "inputs": [clip],
            "boxes": torch.from_numpy(results["boxes"].astype(np.float32)),
            "actions": torch.from_numpy(results["actions"].astype(np.float32)),
            **{name: int(results[name]) for name in ("label", "index", "seed")},
        }
