"""Videos and arrays of frames to features."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from sce_video.apis.model import VideoModel
from sce_video.datasets import (
    VideoDataset,
    VideoDecodeError,
    VideoList,
    VideoReader,
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
from sce_video.evaluation import FeatureSet
from sce_video.evaluation.features import mean_representation

#: A video as a user gives it.
Video = str | os.PathLike | np.ndarray | Tensor
_Transform = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How videos are embedded.

    Attributes:
        num_clips: K clips at equal steps over the video; one from the centre if 1. A network of
            segment sampling looks at one clip, the whole video, whatever is said here.
        num_crops: C crops of every clip: 1 (centre) or 3 (along the long side).
        max_views: Views that go through the network at a time: a bound on memory that changes
            speed, and results by rounding only.
        num_workers: Processes that decode; 0 decodes in this one.
        timeout: Seconds a file may take to decode; None for no limit.
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
    """What became of one file.

    Attributes:
        index: Its position among the paths.
        feature: (D,) float32; None if the file cannot be decoded.
        reason: Why not; empty if it can.
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

    A feature is **not** normalised: divide by its length before comparing by dot products. It
    depends on its video alone, bit for bit, not on what is embedded beside it.

    Args:
        model: From :func:`~sce_video.apis.load_model`.
        videos: Paths, arrays (T, H, W, 3) uint8 RGB, or both mixed; one path or array stands for
            a list of one.
        num_clips: See :class:`EmbedOptions`, as for the rest.
        num_crops: Crops of every clip, 1 or 3.
        fps: Frames per second of the arrays: they are treated as videos, and give the feature of a
            file with the same frames. None: an array is one clip, and T frames are picked from it
            at equal steps from first to last.
        max_views: Views that go through the network at a time.
        num_workers: Processes that decode files.
        timeout: Seconds a file may take to decode.

    Returns:
        (N, D) float32.

    Raises:
        ValueError: nothing to embed, or an array that is not uint8 (T, H, W, 3), empty or not; the
            message has its position. A wrong option.
        FileNotFoundError: a path at which there is no file.
        VideoDecodeError: a file that cannot be decoded. :func:`embed_files` passes over those.
    """
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
            else "fps is for arrays: files say themselves when a frame is shown"
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
) -> FeatureSet:
    """Features of many files, of which some may be broken.

    Args:
        model: From :func:`~sce_video.apis.load_model`.
        paths: N files.
        options: See :class:`EmbedOptions`; None takes the defaults.

    Returns:
        ``features`` (M, D), ``paths`` and ``indices`` (positions in ``paths``) of the M files that
        could be decoded, ``labels`` of -1, and ``failures``: (path, reason) of the N - M others.
    """
    options = options or EmbedOptions()
    names = [os.fspath(path) for path in paths]
    rows, indices, failures = [], [], []
    for result in iterate_embeddings(model, names, options):
        if result.feature is None:
            failures.append((names[result.index], result.reason))
        else:
            rows.append(torch.from_numpy(result.feature))
            indices.append(result.index)
    return FeatureSet(
        features=torch.stack(rows) if rows else torch.empty(0, model.feature_size),
        labels=torch.full((len(rows),), -1),
        indices=torch.tensor(indices, dtype=torch.long),
        paths=[names[i] for i in indices],
        failures=failures,
        num_views=count_clips(model, options) * options.num_crops,
    )


def iterate_embeddings(
    model: VideoModel, paths: Sequence[str], options: EmbedOptions
) -> Iterator[Embedded]:
    """Embed files one after the other, in their order; a broken one is reported, not raised.

    Raises:
        ValueError: a feature is not finite: the network has diverged.
    """
    if not paths:
        return
    dataset = _Files(paths, [OpenVideo(), *_view_transforms(model, options)], options.timeout)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=options.num_workers, collate_fn=_unchanged
    )
    for index, sample in enumerate(loader):
        if sample.get("frames") is None:
            yield Embedded(index, None, "; ".join(reason for _, reason in sample["failures"]))
        else:
            yield Embedded(index, _embed_sample(model, sample, options, paths[index]))


def count_clips(model: VideoModel, options: EmbedOptions) -> int:
    """Clips that are really taken of a video."""
    return 1 if model.clip_duration is None else options.num_clips


class _Files(VideoDataset):
    """Given files; whatever goes wrong with one of them makes it a bad file and no more.

    Args:
        paths: The files.
        pipeline: Built transforms.
        timeout: Seconds a file may take.
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
        except Exception as error:  # a picture too large for memory, a fault of a library
            raise VideoDecodeError(given["path"], f"{type(error).__name__}: {error}") from error


class _ArrayReader(VideoReader):
    """Frames in memory as an open video.

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
        """Nothing is open."""


class _OneClip:
    """The whole array as one clip, T frames of it at equal steps."""

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
    """From an open reader to what ships: clips, frames, size, views."""
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
    """(D,) of one video. One at a time: the sums of a convolution depend on the batch's size."""
    function = mean_representation(options.max_views)
    with torch.inference_mode():
        rows, _ = function(model.encoder, {"videos": [sample]})
    feature = rows[0].numpy()
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
    """One path or array as a list of one."""
    if _is_path(videos) or (isinstance(videos, np.ndarray | Tensor) and videos.ndim != 5):
        return [videos]
    items = list(videos)
    if not items:
        raise ValueError("there is no video to embed: the list is empty")
    return items


def _checked(item: Any, position: int) -> np.ndarray:
    """An array of frames, or what is wrong with it."""
    place = f"video {position}"
    if not isinstance(item, np.ndarray | Tensor):
        raise ValueError(
            f"{place} must be a path or an array (T, H, W, 3) uint8, got {type(item).__name__}"
            + ("; stack its frames: np.stack(frames)" if isinstance(item, list | tuple) else "")
        )
    array = item.detach().cpu().numpy() if isinstance(item, Tensor) else item
    shape = tuple(array.shape)
    if array.ndim != 4 or shape[-1] != 3:
        advice = ""
        if array.ndim == 4 and 3 in shape[:2]:
            advice = f": put the channels last, np.moveaxis(array, {shape.index(3)}, -1)"
        elif array.ndim == 3 and shape[-1] == 3:
            advice = ": one picture is array[None], a list of them np.stack(frames)"
        raise ValueError(f"{place} must be (T, H, W, 3), got shape {shape}{advice}")
    if 0 in shape:
        raise ValueError(f"{place} is empty, shape {shape}")
    if array.dtype != np.uint8:
        advice = "convert it to uint8"
        if array.dtype.kind == "f":
            advice = "values in 0..1: np.uint8(np.rint(255 * array)); in 0..255: without the 255"
        raise ValueError(f"{place} must be uint8 (0 to 255), got {array.dtype}; {advice}")
    return array
