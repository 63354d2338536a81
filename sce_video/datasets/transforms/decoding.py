"""Transforms that open a video and decode the frames of all its clips in one pass."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

from sce_video.datasets.readers import check_backend, open_reader
from sce_video.registry import TRANSFORMS

# Half of the luma of BT.601, and half of 255: maps grey(a) - grey(b) + 255, halved, in one step.
_HALF_GREY = np.array([[0.1495, 0.2935, 0.057, 127.5]])


@TRANSFORMS.register_module()
class OpenVideo:
    """Open the file at ``path``.

    Args:
        backend: ``av``, ``decord``, ``torchcodec`` or ``auto``; see
            :func:`~sce_video.datasets.readers.open_reader`.
        num_threads: Threads of the decoder; one is best when loader workers fill the cores.
    """

    def __init__(self, backend: str = "av", num_threads: int = 1) -> None:
        check_backend(backend)
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, got {num_threads}")
        self.backend = backend
        self.num_threads = num_threads

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``path`` (and ``deadline``, ``correction`` where present), write ``reader``."""
        results["reader"] = open_reader(
            results["path"],
            self.backend,
            num_threads=self.num_threads,
            correction=results.get("correction"),
            deadline=results.get("deadline"),
        )
        return results


@TRANSFORMS.register_module()
class DecodeClips:
    """Decode all frames of all clips in one ordered pass, then lay them out clip by clip.

    Frames that several clips share are decoded once. Where a clip asks for RGB differences, its
    pictures are ``(grey(frame) - grey(partner) + 255) / 2`` with grey = 0.299 R + 0.587 G +
    0.114 B, rounded, in three equal channels. Closes the reader.
    """

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``reader``, ``clips``; write ``views``: list of uint8 (T, H, W, 3)."""
        reader = results.pop("reader")
        clips = results["clips"]
        with reader:
            needed = [clip.frames for clip in clips]
            needed += [clip.partners for clip in clips if clip.partners is not None]
            indices = np.unique(np.concatenate(needed))
            frames = reader.read(indices)
        views = []
        for clip in clips:
            own = np.searchsorted(indices, clip.frames)
            if clip.partners is None:
                views.append(frames[own])
            else:
                views.append(rgb_difference(frames, own, np.searchsorted(indices, clip.partners)))
        results["views"] = views
        return results


@TRANSFORMS.register_module()
class DecodeSharedFrames:
    """Decode the frames of all clips in one ordered pass and keep each just once.

    For testing with many clips: the clips of a short video overlap, and cutting views out of one
    set of frames is the device's work (see :class:`PackVideo`). Closes the reader.
    """

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``reader``, ``clips``; write ``views``, one uint8 (F, H, W, 3), and ``positions``.

        ``positions``, (K, T) int64, says which of the F frames clip k shows at time t.
        """
        reader = results.pop("reader")
        wanted = np.stack([clip.frames for clip in results["clips"]])
        if any(clip.partners is not None for clip in results["clips"]):
            raise ValueError("DecodeSharedFrames makes no RGB differences: use DecodeClips")
        with reader:
            indices, positions = np.unique(wanted, return_inverse=True)
            results["views"] = [reader.read(indices)]
        results["positions"] = positions.reshape(wanted.shape)
        return results


def rgb_difference(frames: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Grey differences of frames, moved to the middle of the uint8 range.

    Args:
        frames: (n, H, W, 3) uint8.
        first: (T,) indices into ``frames``.
        second: (T,) indices into ``frames``.

    Returns:
        (T, H, W, 3) uint8, three equal channels; equal frames give 128.
    """
    pictures = np.empty((len(first), *frames.shape[1:]), dtype=np.uint8)
    for picture, i, j in zip(pictures, first, second, strict=True):
        change = cv2.subtract(frames[i], frames[j], dtype=cv2.CV_32F)
        grey = np.rint(cv2.transform(change, _HALF_GREY)).astype(np.uint8)
        picture[...] = grey[..., None]
    return pictures
