"""Embeds videos and arrays of frames: one feature per video.

A network here is a :class:`~sce_video.inference.network_input.VideoNetwork`: an encoder gives
features, a classifier class probabilities, from the same views.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import overload

import numpy as np

from sce_video.datasets.clip_sampling import Windows, window_spans
from sce_video.datasets.readers.base import VideoDecodeError
from sce_video.inference.embed_job import iterate_features
from sce_video.inference.features import Features, join_features
from sce_video.inference.model import VideoModel, check_model
from sce_video.inference.network_input import (
    ArrayReader,
    Video,
    VideoNetwork,
    ViewOptions,
    embed_sample,
    pack_array,
    split_videos,
    view_steps,
)
from sce_video.inference.windows import windows_of_reader


@overload
def embed_videos(
    model: VideoModel,
    videos: Video | Sequence[Video],
    options: ViewOptions | None = None,
    *,
    fps: float | None = None,
    windows: None = None,
) -> np.ndarray: ...


@overload
def embed_videos(
    model: VideoModel,
    videos: Video | Sequence[Video],
    options: ViewOptions | None = None,
    *,
    fps: float | None = None,
    windows: Windows,
) -> list[Features]: ...


def embed_videos(
    model: VideoModel,
    videos: Video | Sequence[Video],
    options: ViewOptions | None = None,
    *,
    fps: float | None = None,
    windows: Windows | None = None,
) -> np.ndarray | list[Features]:
    """Features of videos: the mean of the representation h over the views of each.

    A feature is **not** normalised: divide by its l2 norm before comparing by dot products. It is
    a function of its video alone, bit for bit, whatever else is embedded in the same call.

    Args:
        model: From :func:`~sce_video.inference.model.load_model`.
        videos: Paths (URLs, rows of a table as ``videos.lance/a.mp4``), arrays (T, H, W, 3) uint8
            RGB, or a mix; or a single one.
        options: Views and workers; None for the defaults of :class:`ViewOptions`.
        fps: Frames per second of the arrays, which are then treated as videos and have the feature
            of a file with the same frames. None: an array is one clip, of which T frames are taken
            at equal steps from first to last.
        windows: Give the features of the windows of each video, with their times; arrays then need
            ``fps``, and a camera (``rtsp://...``) or a pipe is embedded until it ends.

    Returns:
        (N, D) float32; with ``windows``, for each video its
        :class:`~sce_video.inference.features.Features`.

    Raises:
        ValueError: no video, an array that is empty or not uint8 (T, H, W, 3), or a wrong option.
        FileNotFoundError: a file does not exist.
        VideoDecodeError: a file cannot be decoded. :func:`embed_files` skips such files.
    """
    check_model(model)
    if windows is None:
        return rows_of_videos(model, videos, options or ViewOptions(), fps)
    return windows_of_videos(model, videos, windows, options or ViewOptions(), fps)


def embed_files(
    model: VideoModel,
    paths: str | os.PathLike | Sequence[str | os.PathLike],
    options: ViewOptions | None = None,
) -> Features:
    """Embed one or many files; files that cannot be decoded are listed, not raised.

    Returns:
        ``values`` (M, D), ``paths`` and ``indices`` of the M files that could be decoded, and
        ``failures``, (path, reason) of the others.
    """
    check_model(model)
    return features_of_files(model, paths, options or ViewOptions())


def rows_of_videos(
    network: VideoNetwork,
    videos: Video | Sequence[Video],
    options: ViewOptions,
    fps: float | None = None,
) -> np.ndarray:
    """The row of every video, (N, D) float32; arguments and errors as of :func:`embed_videos`."""
    count, arrays, paths = split_videos(videos)
    if fps is not None and not (arrays and 0 < fps < float("inf")):
        raise ValueError(
            f"fps must be positive frames per second, got {fps}"
            if arrays
            else "fps is for arrays: files contain the time stamps of their frames"
        )
    rows = np.empty((count, network.row_size), dtype=np.float32)
    steps = view_steps(network.settings, options.num_clips, options.num_crops, fps is None)
    for i, array in arrays.items():
        packed = pack_array(array, fps or 1.0, steps)
        rows[i] = embed_sample(network, packed, options, f"video {i}")
    # Arrays are embedded here, files by the job: both keep their positions.
    for i, found in zip(paths, iterate_features(network, [*paths.values()], options), strict=True):
        if found.failures:
            raise VideoDecodeError(*found.failures[0])
        rows[i] = found.values[0]
    return rows


def windows_of_videos(
    network: VideoNetwork,
    videos: Video | Sequence[Video],
    windows: Windows,
    options: ViewOptions,
    fps: float | None = None,
) -> list[Features]:
    """The windows of every video; arguments and errors as of :func:`~sce_video.inference.embed`."""
    count, arrays, paths = split_videos(videos)
    if arrays and not (fps is not None and 0 < fps < float("inf")):
        raise ValueError(f"windows of arrays need their positive frames per second, got fps={fps}")
    if arrays and windows.shots:
        raise ValueError("shots are found in files: give windows of arrays without shots")
    found: dict[int, Features] = {}
    for i, array in arrays.items():
        reader = ArrayReader(array, fps or 1.0)
        spans = window_spans(reader.duration, windows, None)
        found[i] = windows_of_reader(network, reader, spans, options)
    embedded = iterate_features(network, [*paths.values()], options, windows)
    for i, part in zip(paths, embedded, strict=True):
        if part.failures:
            raise VideoDecodeError(*part.failures[0])
        found[i] = part
    return [found[i] for i in range(count)]


def features_of_files(
    network: VideoNetwork,
    paths: str | os.PathLike | Sequence[str | os.PathLike],
    options: ViewOptions,
) -> Features:
    """Return the rows of all files that can be decoded; arguments as of :func:`embed_files`."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    found = iterate_features(network, [os.fspath(path) for path in given], options)
    parts = [replace(part, indices=np.full(len(part), number)) for number, part in enumerate(found)]
    return join_features(parts, network.row_size, {})


def count_clips(network: VideoNetwork, options: ViewOptions) -> int:
    """Clips taken of a video: ``num_clips``, or 1 for segment sampling."""
    return 1 if network.settings.clip_duration is None else options.num_clips
