"""Embeds videos and arrays of frames: one feature per video.

A network here is a :class:`~sce_video.inference.network_input.VideoNetwork`: an encoder gives
features, a classifier class probabilities, from the same views.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from torch.utils.data import DataLoader

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.loading.batches import batches_without_crashes
from sce_video.datasets.readers.base import VideoDecodeError, VideoReader
from sce_video.datasets.transforms import OpenVideo
from sce_video.datasets.video_dataset import VideoDataset
from sce_video.datasets.video_list import VideoList
from sce_video.inference.model import VideoModel, check_model
from sce_video.inference.network_input import (
    Transform,
    Video,
    VideoNetwork,
    ViewOptions,
    embed_sample,
    pack_array,
    split_videos,
    view_steps,
)
from sce_video.inference.windows import WindowFeatures, windows_of_videos
from sce_video.utils.errors import UserError


@dataclass(frozen=True, eq=False)
class FileRows:
    """Features or class probabilities of the files that could be decoded.

    Attributes:
        values: (M, D) float32, in the order of the given files.
        paths: M paths, as given.
        indices: (M,) int64, positions in the given list.
        failures: (path, reason) of the files that could not be decoded.
        num_views: Views (clips x crops) of a video.
    """

    values: np.ndarray
    paths: list[str]
    indices: np.ndarray
    failures: list[tuple[str, str]]
    num_views: int

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def features(self) -> np.ndarray:
        """``values``, of :func:`embed_files`."""
        return self.values

    @property
    def probabilities(self) -> np.ndarray:
        """``values``, of :func:`~sce_video.inference.classifier.predict_files`."""
        return self.values


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
) -> list[WindowFeatures]: ...


def embed_videos(
    model: VideoModel,
    videos: Video | Sequence[Video],
    options: ViewOptions | None = None,
    *,
    fps: float | None = None,
    windows: Windows | None = None,
) -> np.ndarray | list[WindowFeatures]:
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
        :class:`~sce_video.inference.windows.WindowFeatures`.

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
) -> FileRows:
    """Features of one or many files; files that cannot be decoded are listed, not raised.

    Returns:
        ``features`` (M, D), ``paths`` and ``indices`` of the M files that could be decoded, and
        ``failures``, (path, reason) of the others.
    """
    check_model(model)
    return rows_of_files(model, paths, options or ViewOptions())


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
    # Arrays are embedded here, files by the workers: both keep their positions.
    found = iterate_embeddings(network, list(paths.values()), options)
    for i, (feature, reason) in zip(paths, found, strict=True):
        if feature is None:
            raise VideoDecodeError(paths[i], reason)
        rows[i] = feature
    return rows


def rows_of_files(
    network: VideoNetwork,
    paths: str | os.PathLike | Sequence[str | os.PathLike],
    options: ViewOptions,
) -> FileRows:
    """The row of every file that can be decoded; arguments as of :func:`embed_files`."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    names = [os.fspath(path) for path in given]
    rows, failures = {}, []
    for i, (feature, reason) in enumerate(iterate_embeddings(network, names, options)):
        if feature is None:
            failures.append((names[i], reason))
        else:
            rows[i] = feature
    values = list(rows.values())
    return FileRows(
        values=np.stack(values) if values else np.empty((0, network.row_size), dtype=np.float32),
        paths=[names[i] for i in rows],
        indices=np.array(list(rows), dtype=np.int64),
        failures=failures,
        num_views=count_clips(network, options) * options.num_crops,
    )


def iterate_embeddings(
    model: VideoNetwork, paths: Sequence[str], options: ViewOptions
) -> Iterator[tuple[np.ndarray | None, str]]:
    """The feature of every file, in order; or None, and why the file cannot be decoded.

    A file may crash the worker that decodes it. Without workers it ends this process.

    Raises:
        ValueError: a feature is not finite, so the network has diverged.
        WorkerCrashError: a worker ended while it was reading no file.
    """
    for index, sample in enumerate(iterate_samples(model, paths, options)):
        if sample.get("frames") is None:
            yield None, "; ".join(reason for _, reason in sample["failures"])
        else:
            yield embed_sample(model, sample, options, paths[index]), ""


def iterate_samples(
    model: VideoNetwork, paths: Sequence[str], options: ViewOptions
) -> Iterator[dict[str, Any]]:
    """The packed views of every file, in order; ``failures`` without ``frames`` of a bad file."""
    if not paths:
        return
    files = VideoFiles(model, options, paths)
    samples: Iterable[dict[str, Any]] = (files[i] for i in range(len(paths)))
    if options.num_workers:
        # One sample at a time: rounding depends on the batch, so videos share none.
        loader = DataLoader(
            files,
            batch_size=None,
            num_workers=options.num_workers,
            collate_fn=_unchanged,
            generator=torch.Generator(),  # The caller's random numbers stay as they are.
        )
        samples = batches_without_crashes(loader)
    yield from samples


def count_clips(model: VideoNetwork, options: ViewOptions) -> int:
    """Clips taken of a video: ``num_clips``, or 1 for segment sampling."""
    return 1 if model.settings.clip_duration is None else options.num_clips


class VideoFiles(VideoDataset):
    """The packed views of given videos, of which any error of a video makes a bad file."""

    def __init__(
        self, network: VideoNetwork, options: ViewOptions, paths: Sequence[str] = ()
    ) -> None:
        self._files = VideoList.from_paths(paths, [-1] * len(paths))
        steps = view_steps(network.settings, options.num_clips, options.num_crops)
        pipeline: list[Transform] = [OpenVideo(), *steps]
        super().__init__(pipeline=pipeline, on_error="skip", timeout=options.timeout)

    def read(self, path: str) -> dict[str, Any]:
        """The sample of a file, which becomes the only one of the data set."""
        # The list is replaced, not extended: an index of millions keeps one path.
        self.videos = VideoList.from_paths([path], [-1])
        self._known_bad.clear()
        return self[0]

    def list_videos(self, *_: Any) -> VideoList:
        return self._files

    def _run_pipeline(self, index: int, seed: int, given: dict[str, Any]) -> dict[str, Any]:
        opened: list[VideoReader] = []
        try:
            sample = super()._run_pipeline(index, seed, {**given, "opened": opened})
            return {**sample, "damaged": opened[-1].damaged}
        except UserError:  # a bad file, or a table that cannot be read
            raise
        except Exception as error:  # e.g. a frame too large for memory, an error in a library
            raise VideoDecodeError(given["path"], f"{type(error).__name__}: {error}") from error


def _unchanged(sample: Any) -> Any:  # pickled for the workers
    return sample
