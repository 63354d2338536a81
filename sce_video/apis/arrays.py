"""Videos given as arrays of frames in memory, or as paths."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from torch import Tensor

from sce_video.datasets import VideoReader
from sce_video.datasets.clip_sampling import ClipIndices, uniform_positions

#: A video: a path, or frames (T, H, W, 3) uint8 RGB.
Video = str | os.PathLike | np.ndarray | Tensor


class ArrayReader(VideoReader):
    """A reader of frames in memory.

    Args:
        frames: (T, H, W, 3) uint8.
        fps: Frames per second.
    """

    def __init__(self, frames: np.ndarray, fps: float) -> None:
        self.path = "array"
        self.timestamps = np.arange(len(frames)) / fps
        self.duration = len(frames) / fps
        self._frames = frames
        self._size = (frames.shape[1], frames.shape[2])

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Copies of the frames at ``indices``."""
        return np.ascontiguousarray(self._frames[self._check_indices(indices)])

    def close(self) -> None:
        """Do nothing: no file is open."""


class OneClip:
    """One clip of T frames at equal steps over the whole array.

    Args:
        num_frames: T.
    """

    def __init__(self, num_frames: int) -> None:
        self.num_frames = num_frames

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``reader``, write ``clips``."""
        reader = results["reader"]
        frames = uniform_positions(len(reader.timestamps), self.num_frames)
        results["clips"] = [ClipIndices(frames, None, 0.0, reader.duration)]
        return results


def is_path(item: Any) -> bool:
    """Whether a video is given as a path."""
    return isinstance(item, str | os.PathLike)


def as_list(videos: Any) -> list[Any]:
    """The videos as a list; a single path or array becomes a list of one."""
    if is_path(videos) or (isinstance(videos, np.ndarray | Tensor) and videos.ndim != 5):
        return [videos]
    items = list(videos)
    if not items:
        raise ValueError("no video to embed: the list is empty")
    return items


def checked_frames(item: Any, position: int) -> np.ndarray:
    """The item as an array of frames, or ValueError with its position and the problem."""
    name = f"video {position}"
    if not isinstance(item, np.ndarray | Tensor):
        raise ValueError(
            f"{name} must be a path or an array (T, H, W, 3) uint8, got {type(item).__name__}"
            + ("; stack its frames: np.stack(frames)" if isinstance(item, list | tuple) else "")
        )
    array = item.detach().cpu().numpy() if isinstance(item, Tensor) else item
    shape = tuple(array.shape)
    if array.ndim != 4 or shape[-1] != 3:
        advice = ""
        if array.ndim == 4 and 3 in shape[:2]:
            advice = f": put the channels last, np.moveaxis(array, {shape.index(3)}, -1)"
        elif array.ndim == 3 and shape[-1] == 3:
            advice = ": for one frame give array[None], for a list np.stack(frames)"
        raise ValueError(f"{name} must be (T, H, W, 3), got shape {shape}{advice}")
    if 0 in shape:
        raise ValueError(f"{name} is empty, shape {shape}")
    if array.dtype != np.uint8:
        advice = "convert it to uint8"
        if array.dtype.kind == "f":
            advice = "values in 0..1: np.uint8(np.rint(255 * array)); in 0..255: without the 255"
        raise ValueError(f"{name} must be uint8 (0 to 255), got {array.dtype}; {advice}")
    return array
