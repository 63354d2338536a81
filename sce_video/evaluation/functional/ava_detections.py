"""Detections in AVA's key frames, and their checks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Key = tuple[str, int]
"""Video id and second of the key frame."""
Detections = Mapping[Key, tuple[np.ndarray, np.ndarray]]
"""Boxes (n, 4) and scores (n, 80) of a key frame."""


def check_boxes(boxes: np.ndarray, what: str, key: Key) -> np.ndarray:
    """Boxes (n, 4) float64; ValueError, with the key frame, if they are not finite boxes."""
    boxes = np.asarray(boxes, dtype=np.float64)
    if boxes.size == 0:
        return np.zeros((0, 4))
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{name_of(key)}: {what} boxes must be (n, 4), got {boxes.shape}")
    if not np.isfinite(boxes).all():
        raise ValueError(f"{name_of(key)}: a coordinate of the {what} boxes is not finite")
    return boxes


def check_scores(scores: np.ndarray, count: int, width: int, key: Key) -> np.ndarray:
    """Scores (count, at least width); ValueError if they are others, NaN or +inf."""
    scores = np.asarray(scores)
    if scores.size == 0 and count == 0:
        return np.zeros((0, width))
    if scores.ndim != 2 or scores.shape[0] != count or scores.shape[1] < width:
        raise ValueError(
            f"{name_of(key)}: scores must be ({count}, {width} or more), a row per box and a "
            f"column per action, got {scores.shape}"
        )
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise ValueError(f"{name_of(key)}: a score is NaN or +inf")
    return scores


def name_of(key: Key) -> str:
    """A key frame, for messages."""
    return f"video {key[0]}, second {key[1]}"
