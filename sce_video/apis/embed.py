"""Embeds videos and arrays of frames: one feature per video."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from sce_video.apis.model import VideoModel, check_model
from sce_video.datasets import (
    VideoDataset,
    VideoDecodeError,
    VideoList,
    VideoReader,
    batches_without_crashes,
    run_pipeline,
)
from sce_video.datasets.clip_sampling import ClipIndices, uniform_positions
from sce_video.datasets.transforms import (
    CenterSegmentClip,
    DecodeSharedFrames,
    OpenVideo,
    PackVideo,
    ResizeShortSide,
    UniformClips,
)
from sce_video.evaluation import Rows
from sce_video.evaluation.row_functions import mean_representation

#: A video: a path, or frames (T, H, W, 3) uint8 RGB.
Video = str | os.PathLike | np.ndarray | Tensor
_Transform = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Views of a video, and how they are computed.

    Attributes:
        num_clips: Clips per video, at equal steps; 1 takes the centre. A network trained with
            segment sampling always sees one clip, the whole video.
        num_crops: Crops per clip: 1 (centre) or 3 (along the long side).
        max_views: Largest batch of views. It bounds memory and affects speed; features change by
            rounding only.
        num_workers: Decoding processes; 0 decodes in the main process.
        timeout: Time limit for decoding a file, seconds; None for no limit.
    """

    num_clips: int = 4
    num_crops: int = 1
    max_views: int = 32
    num_workers: int = 0
    timeout: float | None = 60.0

    def __post_init__(self) -> None:
        for name, least in (("num_clips", 1), ("max_views", 1), ("num_workers", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value}")
        if self.num_crops not in (1, 3):
            raise ValueError(
                f"num_crops must be 1 (centre) or 3 (along the long side), got {self.num_crops}"
            )
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout must be positive seconds or None, got {self.timeout}")


@dataclass(frozen=True)
class Embedded:
    """Result of embedding one file.

    Attributes:
        index: Position of the file in the list of paths.
        feature: (D,) float32; None if the file cannot be decoded.
        reason: Why it cannot be decoded; empty if it can.
    """

    index: int
    feature: np.ndarray | None
    reason: str = ""


def embed(
    model: VideoModel,
    videos: Video | Sequence[Video],
    *,
    num_clips: int = 4,
    num_crops: int = 1,
    fps: float | None = None,
    max_views: int = 32,
    num_workers: int = 0,
    timeout: float | None = 60.0,
) -> np.ndarray:
    """Features of videos: the mean of the representation h over the views of each.

    A feature is **not** normalised: divide by its l2 norm before comparing by dot products. It is
    a function of its video alone, bit for bit, whatever else is embedded in the same call.

    Args:
        model: From :func:`~sce_video.apis.load_model`.
        videos: Paths, arrays (T, H, W, 3) uint8 RGB, or a mix; a single path or array is treated
            as a list of one.
        num_clips: Clips per video, see :class:`EmbedOptions`.
        num_crops: Crops per clip, 1 or 3.
        fps: Frames per second of the arrays, which are then treated as videos and have the feature
            of a file with the same frames. None: an array is one clip, of which T frames are taken
            at equal steps from first to last.
        max_views: Largest batch of views.
        num_workers: Processes that decode files.
        timeout: Time limit for decoding a file, seconds.

    Returns:
        (N, D) float32.

    Raises:
        ValueError: the list is empty, an array is empty or not uint8 (T, H, W, 3) (the message has
            its position), or an option is wrong.
        FileNotFoundError: a file does not exist.
        VideoDecodeError: a file cannot be decoded. :func:`embed_files` skips such files.
    """
    check_model(model)
    options = EmbedOptions(
        num_clips=num_clips,
        num_crops=num_crops,
        max_views=max_views,
        num_workers=num_workers,
        timeout=timeout,
    )
    items = _as_list(videos)
    arrays = {i: _checked(item, i) for i, item in enumerate(items) if not _is_path(item)}
    paths = {i: os.fspath(item) for i, item in enumerate(items) if _is_path(item)}
    if fps is not None and not (arrays and 0 < fps < float("inf")):
        raise ValueError(
            f"fps must be positive frames per second, got {fps}"
            if arrays
            else "fps is for arrays: files contain the time stamps of their frames"
        )
    for i, path in paths.items():
        if not os.path.exists(path):
            raise FileNotFoundError(f"no video at {path} (position {i})")
    features = np.empty((len(items), model.feature_size), dtype=np.float32)
    for i, array in arrays.items():
        features[i] = _embed_array(model, array, fps, options, f"video {i}")
    positions = list(paths)
    for result in iterate_embeddings(model, list(paths.values()), options):
        i = positions[result.index]
        if result.feature is None:
            raise VideoDecodeError(paths[i], result.reason)
        features[i] = result.feature
    return features


def embed_files(
    model: VideoModel,
    paths: Sequence[str | os.PathLike],
    options: EmbedOptions | None = None,
) -> Rows:
    """Features of many files; files that cannot be decoded are listed, not raised.

    Args:
        model: From :func:`~sce_video.apis.load_model`.
        paths: N files.
        options: None for the defaults of :class:`EmbedOptions`.

    Returns:
        ``features`` (M, D), ``paths`` and ``indices`` (positions in ``paths``) of the M files that
        could be decoded, ``labels`` of -1, and ``failures``, (path, reason) of the other N - M.
    """
    check_model(model)
    if _is_path(paths):
        raise TypeError(f"paths is a list of files, got {os.fspath(paths)!r}")  # type: ignore
    options = options or EmbedOptions()
    names = [os.fspath(path) for path in paths]
    rows, indices, failures = [], [], []
    for result in iterate_embeddings(model, names, options):
        if result.feature is None:
            failures.append((names[result.index], result.reason))
        else:
            rows.append(torch.from_numpy(result.feature))
            indices.append(result.index)
    return Rows(
        values=torch.stack(rows) if rows else torch.empty(0, model.feature_size),
        labels=torch.full((len(rows),), -1),
        indices=torch.tensor(indices, dtype=torch.long),
        paths=[names[i] for i in indices],
        failures=failures,
        num_views=count_clips(model, options) * options.num_crops,
    )


def iterate_embeddings(
    model: VideoModel, paths: Sequence[str], options: EmbedOptions
) -> Iterator[Embedded]:
    """Embed files one by one, in order; a file that cannot be decoded has a reason, no feature.

    So has one that crashes the worker that decodes it. Without workers it ends this process.

    Raises:
        ValueError: a feature is not finite, so the network has diverged.
        WorkerCrashError: a worker ended while it was reading no file.
    """
    if not paths:
        return
    dataset = _Files(paths, [OpenVideo(), *_view_transforms(model, options)], options.timeout)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=options.num_workers, collate_fn=_unchanged
    )
    for index, sample in enumerate(batches_without_crashes(loader)):
        if sample.get("frames") is None:
            yield Embedded(index, None, "; ".join(reason for _, reason in sample["failures"]))
        else:
            yield Embedded(index, _embed_sample(model, sample, options, paths[index]))


def count_clips(model: VideoModel, options: EmbedOptions) -> int:
    """Clips taken of a video: ``num_clips``, or 1 for segment sampling."""
    return 1 if model.clip_duration is None else options.num_clips


class _Files(VideoDataset):
    """A data set of given files, in which any error of a file makes it a bad file.

    Args:
        paths: The files.
        pipeline: Built transforms.
        timeout: Time limit for a file, seconds.
    """

    def __init__(
        self, paths: Sequence[str], pipeline: Sequence[_Transform], timeout: float | None
    ) -> None:
        self._files = VideoList.from_paths(paths, [-1] * len(paths))
        super().__init__(pipeline=pipeline, on_error="skip", timeout=timeout)

    def _list_videos(self, *_: Any) -> VideoList:
        return self._files

    def _run_pipeline(self, index: int, seed: int, given: dict[str, Any]) -> dict[str, Any]:
        try:
            return super()._run_pipeline(index, seed, given)
        except VideoDecodeError:
            raise
        except Exception as error:  # e.g. a frame too large for memory, an error in a library
            raise VideoDecodeError(given["path"], f"{type(error).__name__}: {error}") from error


class _ArrayReader(VideoReader):
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


class _OneClip:
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


def _view_transforms(
    model: VideoModel, options: EmbedOptions, one_clip: bool = False
) -> list[_Transform]:
    """Transforms from an open reader to packed views: sample, decode, resize, crop."""
    clips: _Transform
    if model.clip_duration is None:
        clips = CenterSegmentClip(model.num_frames)
    elif one_clip:
        clips = _OneClip(model.num_frames)
    else:
        clips = UniformClips(model.clip_duration, model.num_frames, options.num_clips)
    return [
        clips,
        DecodeSharedFrames(),
        ResizeShortSide(model.short_side),
        PackVideo(model.crop_size, options.num_crops),
    ]


def _embed_array(
    model: VideoModel, frames: np.ndarray, fps: float | None, options: EmbedOptions, name: str
) -> np.ndarray:
    results: dict[str, Any] = {
        "reader": _ArrayReader(frames, fps or 1.0),
        "rng": np.random.default_rng(0),
        **dict(label=-1, index=0, seed=0),
    }
    results = run_pipeline(_view_transforms(model, options, one_clip=fps is None), results)
    return _embed_sample(model, results, options, name)


def _embed_sample(
    model: VideoModel, sample: dict[str, Any], options: EmbedOptions, name: str
) -> np.ndarray:
    """The feature (D,) of one video.

    Videos are not batched: the rounding of a convolution depends on the batch size.
    """
    function = mean_representation(options.max_views)
    with torch.inference_mode():
        feature = function(model.encoder, {"videos": [sample]}).values[0].numpy()
    if not np.isfinite(feature).all():
        raise ValueError(
            f"the feature of {name} is not finite: the network of {model.checkpoint} has diverged"
        )
    return feature


def _unchanged(sample: Any) -> Any:
    return sample


def _is_path(item: Any) -> bool:
    return isinstance(item, str | os.PathLike)


def _as_list(videos: Any) -> list[Any]:
    """The videos as a list; a single path or array becomes a list of one."""
    if _is_path(videos) or (isinstance(videos, np.ndarray | Tensor) and videos.ndim != 5):
        return [videos]
    items = list(videos)
    if not items:
        raise ValueError("no video to embed: the list is empty")
    return items


def _checked(item: Any, position: int) -> np.ndarray:
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
