"""Embedding of videos and arrays of frames, with one feature per video.

A network is a :class:`~sce_video.inference.network_input.VideoNetwork`. An encoder computes
features, and a classifier computes class probabilities from the same views.
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
    """Compute features of videos: the mean of the representation h over the views of each.

    A feature is **not** normalised, so divide it by its l2 norm before comparing by dot products.
    It is bit-identical whether a video is embedded alone or together with others.

    Args:
        model: From :func:`~sce_video.inference.model.load_model`.
        videos: Paths (also URLs, and table rows such as ``videos.lance/a.mp4``), arrays (T, H, W,
            3) uint8 RGB, or a mix of both; or a single one.
        options: Views and workers; None for the defaults of :class:`ViewOptions`.
        fps: Frames per second of the arrays, which are then treated as videos and have the feature
            of a file with the same frames. If it is None, an array is one clip, from which T frames
            are used at equal steps.
        windows: Division of each video into windows, whose features are returned with their times.
            Arrays then need ``fps``, and a camera (``rtsp://...``) or a pipe is embedded until it
            ends.

    Returns:
        (N, D) float32; with ``windows``, for each video its
        :class:`~sce_video.inference.features.Features`.

    Raises:
        ValueError: If a video is missing or empty, not uint8 (T, H, W, 3), or an option is wrong.
        FileNotFoundError: If a file does not exist.
        VideoDecodeError: If a file cannot be decoded. :func:`embed_files` skips such files.
    """
    check_model(model)
    if windows is None:
        return rows_of_videos(model, videos, options or ViewOptions(), fps)
    return features_of_videos(model, videos, options or ViewOptions(), fps, windows)


def embed_files(
    model: VideoModel,
    paths: str | os.PathLike | Sequence[str | os.PathLike],
    options: ViewOptions | None = None,
) -> Features:
    """Embed one or many files. Files that cannot be decoded are listed as failures.

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
    """Return every video's row, (N, D) float32, with the errors of :func:`embed_videos`."""
    parts = features_of_videos(network, videos, options, fps)
    return np.concatenate([part.values for part in parts])


def features_of_videos(
    network: VideoNetwork,
    videos: Video | Sequence[Video],
    options: ViewOptions,
    fps: float | None = None,
    windows: Windows | None = None,
) -> list[Features]:
    """Return the features of every video. Arguments and errors are as in :func:`embed_videos`."""
    count, arrays, paths = split_videos(videos)
    _check_rate(bool(arrays), fps, windows)
    # Arrays are embedded here and files in the job below. Both keep their positions in the list.
    found = {
        i: _array_features(network, array, f"video {i}", options, fps, windows)
        for i, array in arrays.items()
    }
    embedded = iterate_features(network, [*paths.values()], options, windows)
    for i, part in zip(paths, embedded, strict=True):
        if part.failures:
            raise VideoDecodeError(*part.failures[0])
        found[i] = part
    return [found[i] for i in range(count)]


def _check_rate(arrays: bool, fps: float | None, windows: Windows | None) -> None:
    """Raise ValueError if arrays lack a frame rate, or if a rate does not suit the inputs."""
    positive = fps is not None and 0 < fps < float("inf")
    if windows is not None and arrays:
        if not positive:
            raise ValueError(f"windows of arrays need positive frames per second, got fps={fps}")
        if windows.shots:
            raise ValueError(
                "shots can be found only in files. Give windows without shots for arrays"
            )
    elif fps is not None and not arrays:
        raise ValueError(
            "fps is only for arrays, because files contain the timestamps of their frames"
        )
    elif fps is not None and not positive:
        raise ValueError(f"fps must be positive frames per second, got {fps}")


def _array_features(
    network: VideoNetwork,
    array: np.ndarray,
    name: str,
    options: ViewOptions,
    fps: float | None,
    windows: Windows | None,
) -> Features:
    if windows is not None:
        reader = ArrayReader(array, fps or 1.0)
        return windows_of_reader(
            network, reader, window_spans(reader.duration, windows, None), options
        )
    steps = view_steps(network.settings, options.num_clips, options.num_crops, fps is None)
    packed = pack_array(array, fps or 1.0, steps)
    return Features(embed_sample(network, packed, options, name)[None], [name])


def features_of_files(
    network: VideoNetwork,
    paths: str | os.PathLike | Sequence[str | os.PathLike],
    options: ViewOptions,
) -> Features:
    """Return the rows of all files that can be decoded. Arguments are as in :func:`embed_files`."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    found = iterate_features(network, [os.fspath(path) for path in given], options)
    parts = [replace(part, indices=np.full(len(part), number)) for number, part in enumerate(found)]
    return join_features(parts, network.row_size, {})


def count_clips(network: VideoNetwork, options: ViewOptions) -> int:
    """Return the number of clips per video: ``num_clips``, or 1 for segment sampling."""
    return 1 if network.settings.clip_duration is None else options.num_clips
