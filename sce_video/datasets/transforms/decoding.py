"""Transforms that open a video, and decode the frames of all its clips in one pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from sce_video.datasets.decode_limits import MAX_HELD_BYTES, MAX_PIXELS, DecodeLimits
from sce_video.datasets.pipeline import keep_open
from sce_video.datasets.readers import VideoReader, check_backend, open_reader
from sce_video.datasets.readers.base import ArrayFrames, DecodedFrames
from sce_video.datasets.transforms.lazy_view import LazyView, grey_difference
from sce_video.registry import TRANSFORMS


@TRANSFORMS.register_module()
class OpenVideo:
    """Open the file at ``path``.

    Args:
        backend: Registered name of a reader (``av``, ``decord``, ``torchcodec``, ...); the frames
            are the same.
        num_threads: Threads of the decoder; one is best when loader workers use all cores.
        max_pixels: Height x width of the largest frames that are decoded.
        max_held_bytes: Memory that the decoded frames of a sample may take.
    """

    def __init__(
        self,
        backend: str = "av",
        num_threads: int = 1,
        max_pixels: int = MAX_PIXELS,
        max_held_bytes: int = MAX_HELD_BYTES,
    ) -> None:
        check_backend(backend)
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, got {num_threads}")
        self.backend = backend
        self.num_threads = num_threads
        self.limits = DecodeLimits(max_pixels, max_held_bytes)

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``path`` (and ``deadline``, ``correction`` if present), write ``reader, limits``.

        A data set whose videos are no files gives ``open``, which is called in place of
        :func:`~sce_video.datasets.readers.open_reader`; then ``backend`` is not used.
        :func:`~sce_video.datasets.pipeline.run_pipeline` closes it after the last transform.
        """
        opener = results.get("open") or partial(open_reader, backend=self.backend)
        results["reader"] = opener(
            results["path"],
            num_threads=self.num_threads,
            correction=results.get("correction"),
            deadline=results.get("deadline"),
            limits=self.limits,
        )
        results["limits"] = self.limits
        keep_open(results, results["reader"])
        return results


@TRANSFORMS.register_module()
class DecodeClips:
    """Decode all frames of all clips in one ordered pass, and return one view per clip.

    Frames that several clips share are decoded once. The views are :class:`LazyView`, uint8
    (T, H, W, 3) arrays that the last transform computes. The frames of an RGB-difference clip are
    ``(grey(frame) - grey(partner) + 255) / 2`` with grey = 0.299 R + 0.587 G + 0.114 B, rounded, in
    three equal channels.
    """

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``reader``, ``clips``; write ``views``: list of ``LazyView``."""
        reader = results.pop("reader")
        clips = results["clips"]
        needed = [clip.frames for clip in clips]
        needed += [clip.partners for clip in clips if clip.partners is not None]
        indices = np.unique(np.concatenate(needed))
        frames = _decode(reader, indices)
        results["views"] = [
            LazyView(
                frames,
                np.searchsorted(indices, clip.frames),
                None if clip.partners is None else np.searchsorted(indices, clip.partners),
            )
            for clip in clips
        ]
        return results


@TRANSFORMS.register_module()
class DecodeSharedFrames:
    """Decode the frames of all clips in one ordered pass, and keep each frame once.

    For testing with many clips: the clips of a short video overlap, and the views are cut from the
    one set of frames on the device (see :class:`PackVideo`).
    """

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``reader``, ``clips``; write ``views`` and ``positions``.

        ``views`` holds one ``LazyView`` of F frames; ``positions``, (K, T) int64, the index of
        frame t of clip k among them.
        """
        reader = results.pop("reader")
        wanted = np.stack([clip.frames for clip in results["clips"]])
        if any(clip.partners is not None for clip in results["clips"]):
            raise ValueError("DecodeSharedFrames makes no RGB differences: use DecodeClips")
        indices, positions = np.unique(wanted, return_inverse=True)
        results["views"] = [LazyView(_decode(reader, indices), np.arange(len(indices)))]
        results["positions"] = positions.reshape(wanted.shape)
        return results


def rgb_difference(frames: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Grey differences of frames, shifted to the middle of the uint8 range.

    Args:
        frames: (n, H, W, 3) uint8.
        first: (T,) indices into ``frames``.
        second: (T,) indices into ``frames``.

    Returns:
        (T, H, W, 3) uint8, three equal channels; equal frames give 128.
    """
    differences = np.empty((len(first), *frames.shape[1:]), dtype=np.uint8)
    for difference, i, j in zip(differences, first, second, strict=True):
        difference[...] = grey_difference(frames[i], frames[j])[..., None]
    return differences


def _decode(reader: VideoReader, indices: np.ndarray) -> DecodedFrames:
    """Frames of a reader; any object with ``read`` is accepted."""
    if isinstance(reader, VideoReader):
        return reader.decode(indices)
    return ArrayFrames(reader.read(indices))
