"""How one frame is resized: as OpenCV does, or antialiased as Pillow and torchvision do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cv2
import numpy as np
import torch
from torch.nn import functional

#: Resizes a frame (H, W, 3) uint8 and writes it to the second argument (h, w, 3) uint8.
Resize = Callable[[np.ndarray, np.ndarray], None]


def resize_linear(frame: np.ndarray, target: np.ndarray) -> None:
    """Bilinear, without antialiasing: every pixel is computed from 2 x 2 of the frame."""
    result = cv2.resize(frame, target.shape[1::-1], dst=target, interpolation=cv2.INTER_LINEAR)
    if result is not target:  # OpenCV cannot write to every layout
        target[...] = result


def resized_as_pil(frame: np.ndarray, size: tuple[int, int], mode: str = "bilinear") -> np.ndarray:
    """As ``PIL.Image.resize``, within 1 of 255 (bicubic: 2): the filter widens with the reduction.

    torch has Pillow's algorithm with the vector instructions of the CPU (AVX2), about five times as
    fast.

    Args:
        frame: (H, W, 3) uint8.
        size: Height and width of the result.
        mode: "bilinear" or "bicubic".
    """
    # numpy copies a part of a larger image row by row, torch pixel by pixel. The batch axis must be
    # torch's: with numpy's or [None] after the permutation, whose strides differ, torch returns
    # separate colour planes, and interleaving them takes as long as resizing.
    image = torch.from_numpy(np.ascontiguousarray(frame)).unsqueeze(0).permute(0, 3, 1, 2)
    result = functional.interpolate(image, size, mode=mode, antialias=True)
    return result[0].permute(1, 2, 0).numpy()


def resize_as_pil(frame: np.ndarray, target: np.ndarray, mode: str = "bilinear") -> None:
    """Write :func:`resized_as_pil` to ``target``."""
    height, width = target.shape[:2]
    target[...] = resized_as_pil(frame, (height, width), mode)


#: By the name in configs.
RESIZES: dict[str, Resize] = {
    "pil": resize_as_pil,
    "pil_bicubic": partial(resize_as_pil, mode="bicubic"),
    "linear": resize_linear,
}
