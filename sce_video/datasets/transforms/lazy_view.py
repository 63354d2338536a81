"""Views whose crops and resizing are first recorded, and later computed frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from torch.nn import functional

from sce_video.datasets.readers.base import DecodedFrames

Box = tuple[int, int, int, int]  # top, left, height and width
Size = tuple[int, int]  # height and width
Steps = tuple[tuple[Box, Size], ...]  # boxes to cut, each with the size to which it is resized

#: Function that resizes the first frame, uint8 (H, W, 3), into the second one, uint8 (h, w, 3).
Resize = Callable[[np.ndarray, np.ndarray], None]


def resize_linear(frame: np.ndarray, target: np.ndarray) -> None:
    """Resize bilinearly without antialiasing: a pixel depends on 2 x 2 pixels of the frame."""
    result = cv2.resize(frame, target.shape[1::-1], dst=target, interpolation=cv2.INTER_LINEAR)
    if result is not target:  # OpenCV cannot write to all memory layouts
        target[...] = result


def resized_as_pil(frame: np.ndarray, size: Size, mode: str = "bilinear") -> np.ndarray:
    """Resize a frame (H, W, 3) uint8 with antialiasing, like ``PIL.Image.resize``.

    Pixels match Pillow to within 1 level of 255 (bicubic: 2). torch implements Pillow's algorithm
    with vector instructions (AVX2), which is about five times as fast as Pillow.
    """
    # Copy the part of the image with NumPy, because NumPy copies row by row, but torch copies pixel
    # by pixel. Add the batch axis before the permutation. Otherwise, torch would return separate
    # colour planes, and interleaving them takes as long as resizing.
    image = torch.from_numpy(np.ascontiguousarray(frame)).unsqueeze(0).permute(0, 3, 1, 2)
    result = functional.interpolate(image, size, mode=mode, antialias=True)
    return result[0].permute(1, 2, 0).numpy()


def _resize_as_pil(frame: np.ndarray, target: np.ndarray, mode: str) -> None:
    target[...] = resized_as_pil(frame, (target.shape[0], target.shape[1]), mode)


#: Interpolation functions by their names in configs.
RESIZES: dict[str, Resize] = {
    "pil": partial(_resize_as_pil, mode="bilinear"),
    "pil_bicubic": partial(_resize_as_pil, mode="bicubic"),
    "linear": resize_linear,
}

# Half of the BT.601 luma weights and half of 255, so that one product gives (grey(a) - grey(b) +
# 255) / 2.
_HALF_GREY = np.array([[0.1495, 0.2935, 0.057, 127.5]])
_GREY = np.array([[0.299, 0.587, 0.114]])
# Largest grey difference between a frame and its repetition, plus float32's rounding error.
_REPEAT = 8 + 1e-3


def grey_difference(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compute ``(grey(first) - grey(second) + 255) / 2`` of (H, W, 3) uint8, rounded: (H, W)."""
    change = cv2.subtract(first, second, dtype=cv2.CV_32F)
    return np.rint(cv2.transform(change, _HALF_GREY)).astype(np.uint8)


def is_repeat(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether a frame (H, W, 3) uint8 repeats another, so that greys differ by at most 8.

    A repeated frame is not exactly equal, because the encoder refines it. In h264 of medium
    quality, some pixels differ by 5. Motion changes some pixels by more than 8.
    """
    for step in (8, 1):  # for most frames, a 64th of the pixels shows a difference
        change = cv2.subtract(
            first[::step, ::step].copy(), second[::step, ::step].copy(), dtype=cv2.CV_32F
        )
        if np.abs(cv2.transform(change, _GREY)).max() > _REPEAT:
            return False
    return True


class LazyView:
    """A view, uint8 (T, H, W, 3), whose pixels are computed when they are needed.

    ``DecodeClips`` returns decoded frames that are not converted to RGB yet. Crops and resizing are
    only recorded, and ``PackClips`` computes each frame once, in its final memory. The pixels are
    the same as with eager transforms. ``np.asarray(view)`` computes an array.

    Args:
        frames: Decoded frames of the video.
        order: (T,) indices into ``frames``.
        partners: (T,) indices into ``frames``. If they are given, the view consists of RGB
            differences, see :func:`grey_difference`.
        steps: Boxes and sizes. In each step, a box is cut and resized to the size.
        resize: Function that resizes a frame.
    """

    def __init__(
        self,
        frames: DecodedFrames,
        order: np.ndarray,
        partners: np.ndarray | None = None,
        steps: Steps = (),
        resize: Resize = resize_linear,
    ) -> None:
        self.frames = frames
        self.order, self.partners = order, partners
        self.steps, self.resize = steps, resize

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return (T, H, W, 3)."""
        return (len(self.order), *(self.steps[-1][1] if self.steps else self.frames.size), 3)

    def __len__(self) -> int:
        return len(self.order)

    def crop_and_resize(self, box: Box, size: Size) -> LazyView:
        """Return this view with another step, a box and its new size. No pixels are computed."""
        top, left, height, width = box
        steps = self.steps
        if (height, width) == self.shape[1:3] == size:
            return self
        if steps and steps[-1][0][2:] == steps[-1][1]:  # merge this step with a preceding crop
            outer = steps[-1][0]
            steps, top, left = steps[:-1], top + outer[0], left + outer[1]
        steps = (*steps, ((top, left, height, width), size))
        return LazyView(self.frames, self.order, self.partners, steps, self.resize)

    @property
    def reduction(self) -> float:
        """Return the factor by which frames can be reduced and the first step has enough pixels."""
        if not self.steps:
            return 1.0
        (_, _, height, width), size = self.steps[0]
        return max(1.0, min(height / size[0], width / size[1]))

    @property
    def shown_area(self) -> float:
        """Return the share of the frame's area that is left after all crops."""
        size, share = self.frames.size, 1.0
        for (_, _, height, width), resized in self.steps:
            share *= height * width / (size[0] * size[1])
            size = resized
        return min(share, 1.0)

    def render(self) -> np.ndarray:
        """Compute the view, uint8 (T, H, W, 3)."""
        out = np.empty(self.shape, dtype=np.uint8)
        render_views([self], [out])
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(
                "a LazyView contains no array, so np.array(view, copy=False) is impossible"
            )
        return self.render().astype(dtype or np.uint8, copy=False)


def render_views(views: Sequence[LazyView], outs: Sequence[np.ndarray]) -> None:
    """Compute views in ``outs``. A decoded frame that views share is converted to RGB once."""
    groups: dict[int, list[int]] = {}
    for number, view in enumerate(views):
        if view.partners is not None:
            _render_differences(view, outs[number])
        else:
            groups.setdefault(id(view.frames), []).append(number)
    for members in groups.values():
        uses: dict[int, list[tuple[int, int]]] = {}
        for number in members:
            for time, index in enumerate(views[number].order.tolist()):
                uses.setdefault(index, []).append((number, time))
        frames = views[members[0]].frames
        factor = frames.reduce(min(views[number].reduction for number in members))
        for index in sorted(uses):
            frame = frames[index]
            for number, time in uses[index]:
                steps = _reduced(views[number].steps, factor, frame.shape)
                _apply(steps, frame, outs[number][time], views[number].resize)


def _reduced(steps: Steps, factor: int, shape: tuple[int, ...]) -> Steps:
    """Adapt the steps to a frame that was decoded at 1/factor, rounding the first box to pixels."""
    if factor == 1 or not steps:
        return steps
    (top, left, height, width), size = steps[0]
    bottom = min(round((top + height) / factor), shape[0])
    right = min(round((left + width) / factor), shape[1])
    top, left = round(top / factor), round(left / factor)
    return (((top, left, bottom - top, right - left), size), *steps[1:])


def _render_differences(view: LazyView, out: np.ndarray) -> None:
    assert view.partners is not None
    steps, rows, columns = view.steps, slice(None), slice(None)
    if steps:  # compute only the pixels that the first step cuts out
        (top, left, height, width), size = steps[0]
        rows, columns = slice(top, top + height), slice(left, left + width)
        steps = (((0, 0, height, width), size), *steps[1:])
    for target, i, j in zip(out, view.order.tolist(), view.partners.tolist(), strict=True):
        grey = grey_difference(view.frames[i][rows, columns], view.frames[j][rows, columns])
        _apply(steps, np.repeat(grey[..., None], 3, axis=-1), target, view.resize)


def _apply(steps: Steps, frame: np.ndarray, target: np.ndarray, resize: Resize) -> None:
    """Apply all steps to a frame (H, W, 3), and write the result to ``target``."""
    for number, ((top, left, height, width), size) in enumerate(steps, start=1):
        frame = frame[top : top + height, left : left + width]
        if (height, width) == size:
            continue
        if number == len(steps):
            return resize(frame, target)
        result = np.empty((*size, 3), dtype=np.uint8)
        resize(frame, result)
        frame = result
    target[...] = frame
    return None
