"""Frames as images inside a page: strips that a style sheet plays, and animations, in a budget."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image

#: Seconds a frame is shown at least and at most, where a strip plays.
_FASTEST, _SLOWEST = 0.06, 0.4


@dataclass(frozen=True)
class Strip:
    """Frames of one size side by side in one image, which ``parts.css`` shows and plays.

    Attributes:
        uri: ``data:`` URI of the image; empty where the budget did not suffice.
        count: Frames.
        width: Of a frame, pixels.
        height: Likewise.
        seconds: That all frames are played in.
    """

    uri: str
    count: int
    width: int
    height: int
    seconds: float

    @property
    def positions(self) -> list[str]:
        """Of each frame in the image, as CSS positions a background: 0% to 100%."""
        return [f"{100 * i / max(1, self.count - 1):.4g}%" for i in range(self.count)]

    @property
    def middle(self) -> str:
        """Position of the middle frame."""
        return self.positions[self.count // 2]


class Quality(NamedTuple):
    """How much of the frames is kept."""

    height: int
    """Largest, pixels."""
    quality: int
    """Of WebP, 0 to 100."""
    frames: int
    """Largest number, at equal steps."""


T = TypeVar("T")


def make_strip(frames: Sequence[np.ndarray], seconds: float, quality: Quality) -> Strip:
    """A strip of frames (h, w, 3) uint8 RGB of one size.

    Args:
        frames: At least one.
        seconds: Length of the clip; frames are shown between 0.06 and 0.4 seconds each.
        quality: Frames are reduced to it, never enlarged.
    """
    small = _reduced(frames, quality)
    height, width = small[0].shape[:2]
    played = min(max(seconds / len(small), _FASTEST), _SLOWEST) * len(small)
    image = _image(np.concatenate(small, axis=1))
    encoded = io.BytesIO()
    image.save(encoded, "WEBP", quality=quality.quality, method=4)
    return Strip(_uri(encoded), len(small), width, height, round(played, 3))


def animation_uri(frames: Sequence[np.ndarray], seconds: float, quality: Quality) -> str:
    """Frames (h, w, 3) uint8 RGB of one size as an animated WebP inside a ``data:`` URI.

    Args:
        frames: At least one.
        seconds: Length of the clip; frames are shown between 0.06 and 0.4 seconds each.
        quality: Frames are reduced to it, never enlarged.
    """
    small = [_image(frame) for frame in _reduced(frames, quality)]
    shown = round(1000 * min(max(seconds / len(small), _FASTEST), _SLOWEST))
    encoded = io.BytesIO()
    small[0].save(
        encoded,
        "WEBP",
        save_all=True,
        append_images=small[1:],
        duration=shown,
        loop=0,
        quality=quality.quality,
        method=4,
    )
    return _uri(encoded)


def fitting(
    items: Sequence[T],
    encode: Callable[[T, Quality], Strip],
    levels: Sequence[Quality],
    budget: int,
) -> list[Strip]:
    """Strips of all items in the best of the qualities whose total size fits into the budget.

    Where even the last does not, the last items have strips without image.

    Args:
        items: What is encoded.
        encode: Makes the strip of an item.
        levels: Qualities, best first.
        budget: Bytes of all ``data:`` URIs together.
    """
    strips: list[Strip] = []
    for quality in levels:
        strips = [encode(item, quality) for item in items]
        if sum(len(strip.uri) for strip in strips) <= budget:
            return strips
    kept, used = [], 0
    for strip in strips:
        used += len(strip.uri)
        kept.append(strip if used <= budget else replace(strip, uri=""))
    return kept


def _reduced(frames: Sequence[np.ndarray], quality: Quality) -> list[np.ndarray]:
    import cv2

    chosen = np.linspace(0, len(frames) - 1, min(quality.frames, len(frames))).round().astype(int)
    height, width = frames[0].shape[:2]
    scale = min(1.0, quality.height / height, 2 * quality.height / width)
    if scale == 1.0:
        return [frames[i] for i in chosen]
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return [cv2.resize(frames[i], size, interpolation=cv2.INTER_AREA) for i in chosen]


def _image(array: np.ndarray) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(array))


def _uri(encoded: io.BytesIO) -> str:
    return "data:image/webp;base64," + base64.b64encode(encoded.getvalue()).decode("ascii")
