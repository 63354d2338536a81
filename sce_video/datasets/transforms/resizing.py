"""How one frame is resized: as OpenCV does, or antialiased as Pillow and torchvision do."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import cv2
import numpy as np
import torch
from torch.nn import functional

#: Resizes a frame (H, W, 3) uint8 and writes it to the second argument (h, w, 3) uint8.
Resize = Callable[[np.ndarray, np.ndarray], None]

_LARGEST = 2.2  # reduction for which three taps are wide enough


def resize_linear(frame: np.ndarray, target: np.ndarray) -> None:
    """Bilinear, without antialiasing: every pixel is computed from 2 x 2 of the frame."""
    result = cv2.resize(frame, target.shape[1::-1], dst=target, interpolation=cv2.INTER_LINEAR)
    if result is not target:  # OpenCV cannot write to every layout
        target[...] = result


def resize_as_pil(frame: np.ndarray, target: np.ndarray, mode: str = "bilinear") -> None:
    """As ``PIL.Image.resize``, within 1 of 255 (bicubic: 2): the filter widens with the reduction.

    torch has Pillow's algorithm with the CPU's vector instructions: 2 to 4 times as fast.
    """
    # torch copies a part of a larger image pixel by pixel; numpy does it row by row
    image = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)[None]
    result = functional.interpolate(image, target.shape[:2], mode=mode, antialias=True)
    target[...] = result[0].permute(1, 2, 0).numpy()


def resize_smoothed(frame: np.ndarray, target: np.ndarray) -> None:
    """Nearly :func:`resize_as_pil`, bilinear, at a third to a half of its time.

    Pillow's filter for a reduction by s is a triangle of half-width s, with variance s^2 / 6
    pixels; bilinear interpolation alone has 1 / 6. The rest, (s^2 - 1) / 6, is that of the three
    taps a, 1 - 2a, a with a = (s^2 - 1) / 12, by which the frame is smoothed before. At s = 2 both
    together are Pillow's weights 1/8, 3/8, 3/8, 1/8. Larger reductions are left to Pillow's filter.
    """
    vertical, horizontal = (frame.shape[i] / target.shape[i] for i in (0, 1))
    if max(vertical, horizontal) > _LARGEST:
        return resize_as_pil(frame, target)
    if max(vertical, horizontal) > 1:
        sigmas = (_sigma(horizontal), _sigma(vertical))
        frame = cv2.GaussianBlur(
            frame, (3, 3), sigmas[0], sigmaY=sigmas[1], borderType=cv2.BORDER_REPLICATE
        )
    return resize_linear(frame, target)


def _sigma(reduction: float) -> float:
    """The sigma by which OpenCV's three taps exp(-x^2 / 2 sigma^2) are a, 1 - 2a, a."""
    outer = (reduction**2 - 1) / 12
    if outer < 1e-3:
        return 0.1  # the taps 0, 1, 0
    return math.sqrt(-0.5 / math.log(outer / (1 - 2 * outer)))


#: By the name in configs.
RESIZES: dict[str, Resize] = {
    "smoothed": resize_smoothed,
    "pil": resize_as_pil,
    "pil_bicubic": partial(resize_as_pil, mode="bicubic"),
    "linear": resize_linear,
}
