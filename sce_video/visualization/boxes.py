"""Person boxes and their actions, drawn on frames."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

from sce_video.datasets.ava_actions import Action

#: RGB, one person after the other.
_COLOURS = ((66, 165, 245), (255, 167, 38), (102, 187, 106), (236, 64, 122), (171, 71, 188))
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_ASCII = {ord(c): "?" for c in map(chr, range(128, 256))}


def top_actions(
    scores: np.ndarray, actions: Sequence[Action], count: int = 3, least: float = 0.0
) -> list[str]:
    """``stand 0.93``, ... : the best scored actions of one person, best first.

    Args:
        scores: (80,) probabilities, column ``id - 1`` for an action.
        actions: Those that may be named.
        count: How many at most.
        least: Lowest probability that is named.
    """
    ranked = sorted(actions, key=lambda action: -scores[action.id - 1])[:count]
    return [f"{a.name} {scores[a.id - 1]:.2f}" for a in ranked if scores[a.id - 1] >= least]


def draw_boxes(
    frame: np.ndarray, boxes: np.ndarray, captions: Sequence[Sequence[str]], min_side: int = 480
) -> np.ndarray:
    """Boxes with lines of text on a frame; a small frame is enlarged so that text is readable.

    Args:
        frame: (H, W, 3) uint8 RGB.
        boxes: (n, 4), x1 y1 x2 y2 from 0 to 1.
        captions: n lists of lines.
        min_side: Short side from which a frame is not enlarged, pixels.

    Returns:
        uint8 RGB of even height and width.
    """
    height, width = frame.shape[:2]
    scale = max(1.0, min_side / min(height, width))
    size = (round(width * scale) // 2 * 2, round(height * scale) // 2 * 2)
    picture = cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC)
    letters = max(0.4, min(size) / 900)
    line = int(30 * letters) + 4
    taken: list[tuple[int, int, int, int]] = []
    for number, (box, lines) in enumerate(zip(boxes, captions, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        x1, y1, x2, y2 = (round(float(v) * size[i % 2]) for i, v in enumerate(box))
        cv2.rectangle(picture, (x1, y1), (x2, y2), colour, max(2, round(3 * letters)))
        texts = [text.translate(_ASCII) for text in lines]
        if not texts:
            continue
        wide = max(cv2.getTextSize(t, _FONT, letters, 1)[0][0] for t in texts) + 8
        left = max(0, min(x1, size[0] - wide))
        top = max(0, min(y1, size[1] - line * len(texts) - 4))
        while any(_overlap((left, top, wide, line * len(texts)), other) for other in taken):
            top += line  # below what is written there already
        taken.append((left, top, wide, line * len(texts)))
        shade = picture[top : top + line * len(texts) + 4, left : left + wide]
        shade[...] = shade // 4
        for i, text in enumerate(texts):
            place = (left + 4, top + line * (i + 1) - 6)
            cv2.putText(picture, text, place, _FONT, letters, colour, 1, cv2.LINE_AA)
    return picture


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def write_clip(path: str | Path, frames: Sequence[np.ndarray], fps: float) -> None:
    """An h264 file of frames (H, W, 3) uint8 RGB, of even height and width."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
