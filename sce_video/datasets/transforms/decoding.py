"""Transforms that open a video, and decode the frames of all its clips in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sce_video.datasets.clip_sampling import (
    ClipIndices,
    differing_pair,
    frames_of_clips,
    neighbours_within,
)
from sce_video.datasets.readers import VideoReader, check_backend, open_reader
from sce_video.datasets.readers.base import ArrayFrames, DecodedFrames, check_deadline
from sce_video.datasets.readers.images import FrameFolderReader, open_jpeg, read_image
from sce_video.datasets.readers.limits import (
    MAX_HELD_BYTES,
    MAX_IMAGE_PIXELS,
    MAX_PIXELS,
    DecodeLimits,
)
from sce_video.datasets.transforms.lazy_view import RESIZES, LazyView, is_repeat
from sce_video.datasets.transforms.sampling import check_view_counts
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
        self.backend, self.num_threads = backend, num_threads
        self.limits = DecodeLimits(max_pixels, max_held_bytes)

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``path`` (and ``deadline``, ``correction`` if present), write ``reader, limits``.

        A data set whose videos are no files gives ``open``, called in place of
        :func:`~sce_video.datasets.readers.open_reader` and ``backend``.
        :func:`~sce_video.datasets.run_pipeline` closes the reader after the last transform.
        """
        opener = results.get("open") or partial(open_reader, backend=self.backend)
        reader = opener(
            results["path"],
            num_threads=self.num_threads,
            correction=results.get("correction"),
            deadline=results.get("deadline"),
            limits=self.limits,
        )
        return _with_reader(results, reader, self.limits)


def _with_reader(
    results: dict[str, Any], reader: VideoReader, limits: DecodeLimits
) -> dict[str, Any]:
    """Let ``run_pipeline`` close the reader; whoever calls transforms one by one closes it."""
    if "exit_stack" in results:
        results["exit_stack"].enter_context(reader)
    return results | {"reader": reader, "limits": limits}


@TRANSFORMS.register_module()
class DecodeClips:
    """Decode all frames of all clips in one ordered pass, and return one view per clip.

    Frames that several clips share are decoded once. The views are :class:`LazyView`, uint8
    (T, H, W, 3) arrays that the last transform computes. The frames of an RGB-difference clip are
    ``(grey(frame) - grey(partner) + 255) / 2`` with grey = 0.299 R + 0.587 G + 0.114 B, rounded, in
    three equal channels.

    Where a partner repeats its frame (:func:`~.lazy_view.is_repeat`), as in footage of a raised
    frame rate, the next frame of the clip that differs takes its place; a clip without one within
    0.5 s keeps its colours (:func:`~sce_video.datasets.clip_sampling.differing_pair`).
    """

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``reader``, ``clips``; write ``views``: list of ``LazyView``.

        Where frames repeat, ``clips`` is changed accordingly. ``differences``: clips of RGB
        differences, those of them in which frames repeat, and those that keep their colours.
        """
        reader = results.pop("reader")
        clips = results["clips"]
        indices = frames_of_clips(clips)
        frames = reader.decode(indices)
        repeats = [_repeats(frames, indices, clip) for clip in clips]
        wanted = sum(clip.partners is not None for clip in clips)
        repeating = sum(bool(repeated.any()) for repeated in repeats)
        if repeating:
            clips = _without_repeats(reader, clips, repeats, (frames, indices))
            kept = frames_of_clips(clips)
            if not np.isin(kept, indices).all():
                indices, frames = kept, reader.decode(kept)
        coloured = wanted - sum(clip.partners is not None for clip in clips)
        views = []
        for clip in clips:
            first, second = clip.frames, clip.partners
            partners = None if second is None else np.searchsorted(indices, second)
            views.append(LazyView(frames, np.searchsorted(indices, first), partners))
        differences = (wanted, repeating, coloured)
        return results | {"differences": differences, "clips": clips, "views": views}


@TRANSFORMS.register_module()
class DecodeSharedFrames:
    """Decode the frames of all clips in one ordered pass, and keep each frame once.

    For testing with many clips, which overlap in a short video; the views are cut from the one set
    of frames on the device (see :class:`PackVideo`).
    """

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``reader``, ``clips``; write ``views``, one ``LazyView`` of F frames.

        ``positions``, (K, T) int64, are the index of frame t of clip k among them.
        """
        reader = results.pop("reader")
        wanted = np.stack([clip.frames for clip in results["clips"]])
        if any(clip.partners is not None for clip in results["clips"]):
            raise ValueError("DecodeSharedFrames makes no RGB differences: use DecodeClips")
        indices, positions = np.unique(wanted, return_inverse=True)
        views = [LazyView(reader.decode(indices), np.arange(len(indices)))]
        return results | {"views": views, "positions": positions.reshape(wanted.shape)}


def _repeats(frames: DecodedFrames, indices: np.ndarray, clip: ClipIndices) -> np.ndarray:
    """(T,) whether a frame of a clip is equal to its partner; all False without partners."""
    if clip.partners is None:
        return np.zeros(len(clip.frames), dtype=bool)
    pairs = np.searchsorted(indices, np.stack([clip.frames, clip.partners], axis=1))
    known = {(i, j): is_repeat(frames[i], frames[j]) for i, j in {*map(tuple, pairs.tolist())}}
    return np.array([known[i, j] for i, j in pairs.tolist()])


def _without_repeats(
    reader: VideoReader,
    clips: Sequence[ClipIndices],
    repeats: Sequence[np.ndarray],
    decoded: tuple[DecodedFrames, np.ndarray],
) -> list[ClipIndices]:
    """The clips with other partners where frames repeat, or without any."""
    # The frames around are compared in one more pass, a few in memory at a time.
    frames, indices = decoded
    around: dict[int, set[int]] = {}
    for clip, repeated in zip(clips, repeats, strict=True):
        for frame in clip.frames[repeated].tolist():
            for other in np.concatenate(neighbours_within(reader.timestamps, clip, frame)).tolist():
                around.setdefault(other, set()).add(frame)
    differing = set()
    for part, images in reader.stream(np.array(sorted(around))) if around else ():
        for number, other in enumerate(part.tolist()):
            image = images[number]
            for frame in around[other]:
                if not is_repeat(frames[int(np.searchsorted(indices, frame))], image):
                    differing.add((frame, other))
    found = []
    for clip, repeated in zip(clips, repeats, strict=True):
        chosen = [
            differing_pair(reader.timestamps, clip, frame, differing)
            for frame in clip.frames[repeated].tolist()
        ]
        if None in chosen:
            clip = replace(clip, partners=None)
        elif chosen:
            assert clip.partners is not None
            pairs = np.stack([clip.frames, clip.partners], axis=1)
            pairs[repeated] = chosen
            clip = replace(clip, frames=pairs[:, 0], partners=pairs[:, 1])
        found.append(clip)
    return found


@TRANSFORMS.register_module()
class OpenFrameFolder:
    """Open the folder of frames at ``path``; replaces ``OpenVideo``, whose limits it has.

    ``fps``: frames per second, 30 for the frames of AVA; ``first``: number of the image at 0 s.
    """

    backend = "frames"

    def __init__(
        self,
        fps: float = 30.0,
        first: int = 1,
        max_pixels: int = MAX_PIXELS,
        max_held_bytes: int = MAX_HELD_BYTES,
    ) -> None:
        if fps <= 0:
            raise ValueError(f"fps must be positive, got {fps}")
        self.fps, self.first = fps, first
        self.limits = DecodeLimits(max_pixels, max_held_bytes)

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``path`` (and ``deadline`` if present), write ``reader, limits``."""
        reader = FrameFolderReader(
            results["path"],
            fps=self.fps,
            first=self.first,
            deadline=results.get("deadline"),
            limits=self.limits,
        )
        return _with_reader(results, reader, self.limits)


@TRANSFORMS.register_module()
class LoadImage:
    """Decode the image at ``path`` once, as V views (1, H, W, 3) of it, 8-bit RGB by OpenCV.

    The EXIF orientation is applied, greyscale is repeated to three channels, CMYK is converted, an
    alpha channel is dropped, of 16 bits the upper 8 are kept. An image of an
    :class:`~sce_video.datasets.ImageArrayDataset` is taken as it is.

    Args:
        num_views: V, with the local views.
        max_pixels: Height x width of the largest image that is decoded.
        num_local_views: L, the last views, to which :class:`RandomResizedCropClips` gives a smaller
            size: multi-crop (SwAV, arXiv 2006.09882).
        resize: How later steps resize. ``pil``: bilinear with antialiasing, within 1 of 255 of
            Pillow and torchvision; ``pil_bicubic``: within 2; ``linear``: without antialiasing.
        reduced: Decode a JPEG file at 1/2, 1/4 or 1/8 if all views have enough pixels then. Faster
            for large images; a crop may be shifted by half a pixel of its output.
    """

    def __init__(
        self,
        num_views: int = 2,
        max_pixels: int = MAX_IMAGE_PIXELS,
        num_local_views: int = 0,
        resize: str = "pil",
        reduced: bool = False,
    ) -> None:
        check_view_counts(num_views, num_local_views)
        if resize not in RESIZES:
            raise ValueError(f"resize must be one of {', '.join(RESIZES)}, got {resize!r}")
        self.num_views, self.num_local_views = num_views, num_local_views
        self.limits = DecodeLimits(max_pixels)
        self.resize, self.reduced = resize, reduced

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``image``, or ``path`` (and ``deadline``); write ``views``: list of V ``LazyView``.

        Raises:
            VideoDecodeError: The file cannot be opened or decoded, is too large, or the deadline
                has passed.
        """
        image, deadline = results.pop("image", None), results.get("deadline")
        if image is None and self.reduced:
            image = open_jpeg(results["path"], self.limits, deadline)
        elif image is None:
            image = read_image(results["path"], self.limits)
        frames = image if isinstance(image, DecodedFrames) else ArrayFrames(image[None])
        check_deadline(results["path"], deadline)
        first, resize = np.zeros(1, dtype=np.int64), RESIZES[self.resize]
        views = [LazyView(frames, first, resize=resize) for _ in range(self.num_views)]
        counts = {"num_local_views": self.num_local_views}
        return results | {"limits": self.limits, "views": views, **counts}
