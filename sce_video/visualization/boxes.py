"""Draws person boxes and their actions on frames."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

from sce_video.datasets.ava_actions import Action
from sce_video.datasets.readers.containers import file_url

#: RGB, by person.
_COLOURS = ((66, 165, 245), (255, 167, 38), (102, 187, 106), (236, 64, 122), (171, 71, 188))
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_ASCII = {ord(c): "?" for c in map(chr, range(128, 256))}


def top_actions(
    scores: np.ndarray, actions: Sequence[Action], count: int = 3, least: float = 0.0
) -> list[str]:
    """The highest-scoring actions of one person, as ``stand 0.93``, best first.

    Args:
        scores: (80,) probabilities; action ``id`` is entry ``id - 1``.
        actions: Candidate actions.
        count: Largest number of actions.
        least: Lowest probability that is listed.
    """
    ranked = sorted(actions, key=lambda action: -scores[action.id - 1])[:count]
    return [f"{a.name} {scores[a.id - 1]:.2f}" for a in ranked if scores[a.id - 1] >= least]


def draw_boxes(
    frame: np.ndarray, boxes: np.ndarray, captions: Sequence[Sequence[str]], min_side: int = 480
) -> np.ndarray:
    """A copy of a frame with boxes and captions; small frames are enlarged to keep text readable.

    Args:
        frame: (H, W, 3) uint8 RGB.
        boxes: (n, 4), x1 y1 x2 y2 from 0 to 1.
        captions: Lines of text for each of the n boxes.
        min_side: Frames with a shorter short side are enlarged to it, pixels.

    Returns:
        (H', W', 3) uint8 RGB, of even height and width.
    """
    height, width = frame.shape[:2]
    scale = max(1.0, min_side / min(height, width))
    size = (round(width * scale) // 2 * 2, round(height * scale) // 2 * 2)
    image = cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC)
    letters = max(0.4, min(size) / 900)
    line = int(30 * letters) + 4
    taken: list[tuple[int, int, int, int]] = []
    for number, (box, lines) in enumerate(zip(boxes, captions, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        x1, y1, x2, y2 = (round(float(v) * size[i % 2]) for i, v in enumerate(box))
        cv2.rectangle(image, (x1, y1), (x2, y2), colour, max(2, round(3 * letters)))
        texts = [text.translate(_ASCII) for text in lines]
        if not texts:
            continue
        wide = max(cv2.getTextSize(t, _FONT, letters, 1)[0][0] for t in texts) + 8
        left = max(0, min(x1, size[0] - wide))
        top = max(0, min(y1, size[1] - line * len(texts) - 4))
        while any(_overlap((left, top, wide, line * len(texts)), other) for other in taken):
            top += line  # below the captions drawn so far
        taken.append((left, top, wide, line * len(texts)))
        shade = image[top : top + line * len(texts) + 4, left : left + wide]
        shade[...] = shade // 4
        for i, text in enumerate(texts):
            origin = (left + 4, top + line * (i + 1) - 6)
            cv2.putText(image, text, origin, _FONT, letters, colour, 1, cv2.LINE_AA)
    return image


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def write_clip(path: str | Path, frames: Sequence[np.ndarray], fps: float) -> None:
    """Write frames (H, W, 3) uint8 RGB, of even height and width, as an h264 video."""
    with av.open(file_url(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            image = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(image))
        container.mux(stream.encode())
