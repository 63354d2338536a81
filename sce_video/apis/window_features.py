"""Features of the windows of a long video, in one ordered pass over its frames.

Frames are resized as they are decoded and dropped when no further window needs them, so memory
depends on the windows and not on the length of the video.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sce_video.apis.embed_options import EmbedOptions, VideoNetwork, embed_sample
from sce_video.apis.view_steps import pack_step, resize_steps
from sce_video.datasets import VideoDecodeError, VideoReader, open_video
from sce_video.datasets.clip_sampling import ClipIndices
from sce_video.datasets.readers.base import ArrayFrames, DecodedFrames
from sce_video.datasets.shots import find_cuts
from sce_video.datasets.transforms.lazy_view import LazyView
from sce_video.datasets.windows import Windows, clips_of_span, window_spans

#: Of the frames of a window, those that must exist; the others of a damaged file are replaced by
#: the nearest.
_FRACTION_NEEDED = 0.75
#: Seconds that a video may be shorter than its container states: durations are rounded.
_CUT_OFF = 0.5


@dataclass(frozen=True, eq=False)
class WindowFeatures:
    """Features of the windows of a video.

    Attributes:
        features: (W, D) float32, not normalised.
        starts: (W,) float64, seconds.
        ends: (W,) float64, seconds.
        reason: Why windows are missing, as in a file that was cut off; empty if none is.
    """

    features: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    reason: str = ""

    def __len__(self) -> int:
        return len(self.features)

    @property
    def spans(self) -> np.ndarray:
        """(W, 2), starts and ends."""
        return np.stack([self.starts, self.ends], axis=1)


@dataclass(frozen=True, eq=False)
class WindowFeature:
    """Feature (D,) float32 of one window, and its start and end in seconds."""

    feature: np.ndarray
    start: float
    end: float


def gather_windows(rows: Sequence[WindowFeature], size: int, reason: str = "") -> WindowFeatures:
    """The features of windows, of ``size`` numbers each, as arrays."""
    return WindowFeatures(
        features=np.stack([row.feature for row in rows])
        if rows
        else np.empty((0, size), dtype=np.float32),
        starts=np.array([row.start for row in rows], dtype=np.float64),
        ends=np.array([row.end for row in rows], dtype=np.float64),
        reason=reason,
    )


def embed_windows(
    network: VideoNetwork, path: str | os.PathLike, windows: Windows, options: EmbedOptions
) -> WindowFeatures:
    """Features of the windows of a file, a URL or a row of a table.

    The feature of a window equals that of a video of its frames alone, bit for bit, but in damaged
    files, where missing frames are replaced by their neighbours; windows of which more than a
    quarter of the frames is missing are left out, and ``reason`` says so.

    Raises:
        VideoDecodeError: no window can be decoded, or decoding stops for ``options.timeout``.
    """
    name = os.fspath(path)
    cuts = find_cuts(name, options.timeout) if windows.shots else None
    with open_patiently(name, options) as reader:
        return windows_of_reader(network, reader, window_spans_of(reader, windows, cuts), options)


def window_spans_of(
    reader: VideoReader, windows: Windows, cuts: np.ndarray | None = None
) -> np.ndarray:
    """(W, 2), see :func:`window_spans`."""
    return window_spans(reader.duration, windows, cuts)


def embed_span(
    network: VideoNetwork, path: str, start: float, end: float, options: EmbedOptions
) -> np.ndarray:
    """The feature (D,) of the moment ``[start, end)`` of a video, decoded by itself.

    Raises:
        VideoDecodeError: it cannot be decoded.
        ValueError: the video ends before ``start``.
    """
    with open_patiently(path, options) as reader:
        if start >= reader.duration:
            raise ValueError(
                f"{path} ends at {reader.duration:.2f} s, before the moment {start:g}-{end:g}"
            )
        span = np.array([[start, min(end, reader.duration)]])
        found = windows_of_reader(network, reader, span, options)
    return found.features[0]


def open_patiently(path: str, options: EmbedOptions) -> VideoReader:
    """A reader whose time limit is that of opening alone."""
    import time

    deadline = None if options.timeout is None else time.monotonic() + options.timeout
    return open_video(path, deadline=deadline)


def windows_of_reader(
    network: VideoNetwork, reader: VideoReader, spans: np.ndarray, options: EmbedOptions
) -> WindowFeatures:
    """Features of windows with these spans; errors as of :func:`embed_windows`."""
    # One array from the beginning: a small block of memory for each window, between the large ones
    # of the network, would keep malloc from using these again.
    features = np.empty((len(spans), network.row_size), dtype=np.float32)
    kept = np.zeros(len(spans), dtype=bool)
    for i, sample in enumerate(pack_windows(network, reader, spans, options)):
        if sample is not None:
            name = f"{reader.path} at {spans[i, 0]:g} s"
            features[i] = embed_sample(network, sample, options, name)
            kept[i] = True
    if not kept.any():
        raise VideoDecodeError(reader.path, "no frame can be decoded")
    reasons = []
    if not kept.all():
        reasons.append(
            f"{(~kept).sum()} of {len(spans)} windows cannot be decoded, the first begins at "
            f"{spans[~kept][0, 0]:.2f} s: the file is damaged"
        )
    stated = reader.stated_duration
    if stated is not None and reader.duration < stated - _CUT_OFF:
        reasons.append(f"it ends at {reader.duration:.2f} s of {stated:.2f} s: it was cut off")
    starts, ends = spans[kept].T
    return WindowFeatures(features[kept], starts.copy(), ends.copy(), "; ".join(reasons))


def pack_windows(
    network: VideoNetwork, reader: VideoReader, spans: np.ndarray, options: EmbedOptions
) -> Iterator[dict[str, Any] | None]:
    """The packed views of each window, None for one that cannot be decoded."""
    settings = network.settings
    plans = [
        clips_of_span(
            reader.timestamps,
            start,
            end,
            clip_duration=settings.clip_duration,
            num_frames=settings.num_frames,
            num_clips=options.num_clips,
        )
        for start, end in spans.tolist()
    ]
    wanted = [np.unique([clip.frames for clip in clips]) for clips in plans]
    resized = small_frames(reader, np.unique(np.concatenate(wanted)), network, options)
    earliest = np.minimum.accumulate([w[0] for w in wanted[::-1]])[::-1].tolist()
    packer = WindowPacker(network, options)
    held: dict[int, np.ndarray] = {}
    ahead = next(resized, None)
    for clips, needed, first in zip(plans, wanted, earliest, strict=True):
        while ahead is not None and ahead[0] <= needed[-1]:
            held[ahead[0]] = ahead[1]
            ahead = next(resized, None)
        held = {number: frame for number, frame in held.items() if number >= first}
        yield packer.pack(held, needed, clips)


def small_frames(
    reader: VideoReader, indices: np.ndarray, network: VideoNetwork, options: EmbedOptions
) -> Iterator[tuple[int, np.ndarray]]:
    """Number and frame, resized for the network, of those of ``indices`` that exist."""
    resize = ResizeFrames(network, options)
    for numbers, frames in reader.stream(indices, options.timeout):
        yield from zip(numbers.tolist(), resize(frames), strict=True)


class ResizeFrames:
    """Resizes frames as they are for a video of one clip.

    Args:
        network: What they are resized for.
        options: Crops.
    """

    def __init__(self, network: VideoNetwork, options: EmbedOptions) -> None:
        self._steps = resize_steps(network.settings, options.num_crops)
        self._rng = np.random.default_rng(0)

    def __call__(self, frames: DecodedFrames) -> np.ndarray:
        """(n, h, w, 3) uint8."""
        views = [LazyView(frames, np.arange(len(frames)))]
        results: dict[str, Any] = {"views": views, "rng": self._rng}
        for step in self._steps:
            results = step(results)
        return np.asarray(results["views"][0])


class WindowPacker:
    """Packs the clips of a window as ``PackVideo`` packs those of a video.

    Args:
        network: What it is packed for.
        options: Crops.
    """

    def __init__(self, network: VideoNetwork, options: EmbedOptions) -> None:
        self._pack = pack_step(network.settings, options.num_crops)

    def pack(
        self, held: dict[int, np.ndarray], needed: np.ndarray, clips: Sequence[ClipIndices]
    ) -> dict[str, Any] | None:
        """Views of a window.

        Args:
            held: Resized frames by their number.
            needed: Numbers of all frames of the clips, ascending.
            clips: Frames by their number.

        Returns:
            As of ``PackVideo``; None where too many frames are missing.
        """
        known = np.array([number in held for number in needed.tolist()])
        if known.sum() < max(1.0, _FRACTION_NEEDED * len(needed)):
            return None
        there = needed[known]
        nearest = there[np.abs(there[None] - needed[:, None]).argmin(axis=1)]
        frames = np.stack([held[number] for number in nearest.tolist()])
        positions = np.searchsorted(needed, np.stack([clip.frames for clip in clips]))
        view = LazyView(ArrayFrames(frames), np.arange(len(frames)))
        facts = {"label": -1, "index": 0, "seed": 0}
        return self._pack({"views": [view], "positions": positions, **facts})
