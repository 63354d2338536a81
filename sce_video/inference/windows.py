"""Features of the windows of a long video, in one ordered pass over its frames.

Frames are resized as they are decoded and dropped when no further window needs them, so memory
depends on the windows and not on the length of the video.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets import VideoDecodeError, VideoReader, open_video
from sce_video.datasets.clip_sampling import ClipIndices
from sce_video.datasets.readers.base import ArrayFrames, DecodedFrames
from sce_video.datasets.sources import is_table, list_videos, video_exists
from sce_video.datasets.transforms.lazy_view import LazyView
from sce_video.datasets.windows import Windows, clips_of_span, find_cuts, window_spans
from sce_video.evaluation.features import write_npz
from sce_video.inference.model import VideoModel
from sce_video.inference.model_settings import pack_step, resize_steps
from sce_video.inference.views import (
    ArrayReader,
    EmbedOptions,
    Video,
    VideoNetwork,
    as_list,
    checked_frames,
    embed_sample,
    is_path,
)

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


def windows_of_videos(
    network: VideoNetwork,
    videos: Video | Sequence[Video],
    windows: Windows,
    options: EmbedOptions,
    fps: float | None = None,
) -> list[WindowFeatures]:
    """The windows of every video; arguments and errors as of :func:`~sce_video.inference.embed`."""
    items = as_list(videos)
    arrays = {i: checked_frames(item, i) for i, item in enumerate(items) if not is_path(item)}
    if arrays and not (fps is not None and 0 < fps < float("inf")):
        raise ValueError(f"windows of arrays need their positive frames per second, got fps={fps}")
    if arrays and windows.shots:
        raise ValueError("shots are found in files: give windows of arrays without shots")
    for i, item in enumerate(items):
        if is_path(item) and not video_exists(item):
            raise FileNotFoundError(f"no video at {os.fspath(item)} (position {i})")
    found = []
    for i, item in enumerate(items):
        if i in arrays:
            reader = ArrayReader(arrays[i], fps or 1.0)
            spans = window_spans_of(reader, windows)
            found.append(windows_of_reader(network, reader, spans, options))
        else:
            found.append(embed_windows(network, item, windows, options))
    return found


_SAVE_SECONDS = 60.0


def embed_to_file(
    model: VideoModel,
    videos: str,
    out: str | os.PathLike,
    windows: Windows,
    options: EmbedOptions,
) -> tuple[int, list[str]]:
    """Embed the windows of a folder or a video into a file; returns their number, and
    what could not be embedded.

    The file is written every minute, and at the end however it comes: what was embedded before
    Ctrl-C is kept. It holds ``features`` (N, D), ``paths``, ``starts`` and ``ends``
    (N,), ``labels`` (all -1).

    Args:
        model: From :func:`~sce_video.inference.model.load_model`.
        videos: A folder, a table, a file, a URL.
        out: The ``.npz`` file.
        windows: Length and stride.
        options: Views of a window.

    Raises:
        ValueError, FileNotFoundError: There is no such video, or no frame of it was embedded.
    """
    paths: list[str] = []
    rows: list[WindowFeature] = []
    problems: list[str] = []

    def save() -> None:
        if rows:
            _write(Path(out), model, windows, options, paths, rows, problems)

    saved = time.monotonic()
    try:
        for path, row in _windows(model, videos, windows, options, problems):
            paths.append(path)
            rows.append(row)
            if time.monotonic() - saved > _SAVE_SECONDS:
                save()
                saved = time.monotonic()
    except KeyboardInterrupt:
        problems.append("interrupted: the windows until then are in the file")
    finally:
        save()
    if not rows:
        raise ValueError(f"no window was embedded: {'; '.join(problems[:3]) or videos}")
    return len(rows), problems


def _windows(
    model: VideoModel,
    videos: str,
    windows: Windows,
    options: EmbedOptions,
    problems: list[str],
) -> Iterator[tuple[str, WindowFeature]]:
    """Path and window of everything that can be embedded; ``problems`` collects the rest."""
    for path in _list(videos):
        file = path if path == videos else os.path.join(videos, path)
        try:
            found = embed_windows(model, file, windows, options)
        except VideoDecodeError as error:
            problems.append(f"{path}: {error.reason}")
            continue
        if found.reason:
            problems.append(f"{path}: {found.reason}")
        for feature, start, end in zip(found.features, found.starts, found.ends, strict=True):
            yield path, WindowFeature(feature, float(start), float(end))


def _list(videos: str) -> list[str]:
    if os.path.isdir(videos) or is_table(videos):
        found = list_videos(videos)
        return [found.path(i) for i in range(len(found))]
    if not video_exists(videos):
        raise FileNotFoundError(f"no video or folder at {videos}")
    return [videos]


def _write(
    out: Path,
    model: VideoModel,
    windows: Windows,
    options: EmbedOptions,
    paths: list[str],
    rows: list[WindowFeature],
    problems: list[str],
) -> None:
    found = gather_windows(rows, model.row_size)
    provenance = {
        "checkpoint": {"path": model.checkpoint, "sha256": model.checkpoint_sha256},
        "clips": options.num_clips,
        "crops": options.num_crops,
        "num_views": options.num_clips * options.num_crops,
        "windows": windows.to_dict(),
        "decoder": "av",
        "decoder_version": importlib.metadata.version("av"),
        "failures": [],
        "problems": list(problems),
    }
    arrays = {
        "features": found.features,
        "paths": np.array(paths, dtype=np.str_),
        "labels": np.full(len(rows), -1, dtype=np.int64),
        "starts": found.starts,
        "ends": found.ends,
    }
    write_npz(out, arrays, provenance)
