"""The views of a video or an array, and the network that makes a row of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from sce_video.datasets import VideoReader, run_pipeline, video_exists
from sce_video.datasets.clip_sampling import ClipIndices, uniform_positions
from sce_video.datasets.transforms import (
    CenterSegmentClip,
    DecodeSharedFrames,
    PackVideo,
    ResizeAsProcessor,
    ResizeShortSide,
    UniformClips,
)
from sce_video.inference.model_settings import ModelSettings


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Views of a video, and how they are computed.

    Attributes:
        num_clips: Clips per video, at equal steps; 1 takes the centre. A network trained with
            segment sampling always sees one clip, the whole video.
        num_crops: Crops per clip: 1 (centre) or 3 (along the long side).
        max_views: Largest batch of views. It bounds memory; features change by rounding only.
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


class VideoNetwork(Protocol):
    """What embedding needs of a network: its input settings, and a row of numbers for a video."""

    @property
    def settings(self) -> ModelSettings:
        """Clip and crop."""

    @property
    def checkpoint(self) -> str:
        """Path of the weights, for messages."""

    @property
    def row_size(self) -> int:
        """D, size of a row."""

    def row(self, sample: dict[str, Any], max_views: int) -> np.ndarray:
        """(D,) float32 of a video packed by ``PackVideo``, from at most ``max_views`` at a time."""


def embed_sample(
    model: VideoNetwork, sample: dict[str, Any], options: EmbedOptions, name: str
) -> np.ndarray:
    """The row (D,) of one video, alone: rounding in a convolution depends on the batch size."""
    row = model.row(sample, options.max_views)
    if not np.isfinite(row).all():
        raise ValueError(
            f"the output for {name} is not finite: the network of {model.checkpoint} has diverged"
        )
    return row


class ArrayReader(VideoReader):
    """A reader of frames in memory, (T, H, W, 3) uint8."""

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


class OneClip:
    """One clip of ``num_frames`` at equal steps over the whole array."""

    def __init__(self, num_frames: int) -> None:
        self.num_frames = num_frames

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``reader``, write ``clips``."""
        reader = results["reader"]
        frames = uniform_positions(len(reader.timestamps), self.num_frames)
        results["clips"] = [ClipIndices(frames, None, 0.0, reader.duration)]
        return results


Transform = Callable[[dict[str, Any]], dict[str, Any]]


def pack_array(frames: np.ndarray, fps: float, steps: Sequence[Transform]) -> dict[str, Any]:
    """The packed views of frames in memory, by the transforms of :func:`view_steps`."""
    results = {"reader": ArrayReader(frames, fps), "rng": np.random.default_rng(0)}
    return run_pipeline(steps, {**results, "label": -1, "index": 0, "seed": 0})


def resize_steps(settings: ModelSettings, num_crops: int) -> list[Transform]:
    """At most one transform of the views; none where the network resizes whole frames."""
    if settings.resize == "network":
        return []
    if settings.resize == "linear":
        return [ResizeShortSide(settings.short_side)]
    side, square = settings.short_side, settings.resize == "square"
    if square and num_crops != 1:
        raise ValueError(f"frames squashed to a square have one crop, got num_crops={num_crops}")
    crop = settings.crop_size if num_crops == 1 else None
    interpolation = "bilinear" if square else settings.resize
    return [ResizeAsProcessor((side, side) if square else side, crop, interpolation)]


def pack_step(settings: ModelSettings, num_crops: int) -> PackVideo:
    """Cuts the crops."""
    return PackVideo(settings.crop_size, num_crops, whole=settings.resize == "network")


def view_steps(
    settings: ModelSettings, num_clips: int, num_crops: int, one_clip: bool = False
) -> list[Transform]:
    """Transforms from an open reader to packed views: sample, decode, resize, crop.

    Clips are ``num_clips`` at equal steps, one of the whole video with segment sampling; with
    ``one_clip`` all frames of the reader are one clip.
    """
    clips: Transform
    if settings.clip_duration is None:
        clips = CenterSegmentClip(settings.num_frames)
    elif one_clip:
        clips = OneClip(settings.num_frames)
    else:
        clips = UniformClips(settings.clip_duration, settings.num_frames, num_clips)
    resize = resize_steps(settings, num_crops)
    return [clips, DecodeSharedFrames(), *resize, pack_step(settings, num_crops)]


#: A video: a path, or frames (T, H, W, 3) uint8 RGB.
Video = str | os.PathLike | np.ndarray | Tensor


def split_videos(videos: Any) -> tuple[int, dict[int, np.ndarray], dict[int, str]]:
    """How many videos are given, and the arrays and the paths of them by position.

    Raises:
        ValueError: there are none, or an array is empty or not (T, H, W, 3) uint8.
        FileNotFoundError: a file does not exist.
    """
    # A path is a sequence of letters, an array one of frames: neither is a list of videos.
    single = isinstance(videos, str | os.PathLike)
    if single or (isinstance(videos, np.ndarray | Tensor) and videos.ndim != 5):
        videos = [videos]
    items = list(videos)
    if not items:
        raise ValueError("no video to embed: the list is empty")
    paths = {i: os.fspath(v) for i, v in enumerate(items) if isinstance(v, str | os.PathLike)}
    arrays = {i: checked_frames(v, i) for i, v in enumerate(items) if i not in paths}
    for i, path in paths.items():
        if not video_exists(path):
            raise FileNotFoundError(f"no video at {path} (position {i})")
    return len(items), arrays, paths


def checked_frames(item: Any, position: int) -> np.ndarray:
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
    # Never scaled by a guess: 0..1 and 0..255 look alike in a dark video.
    if array.dtype != np.uint8:
        advice = "convert it to uint8"
        if array.dtype.kind == "f":
            advice = "values in 0..1: np.uint8(np.rint(255 * array)); in 0..255: without the 255"
        raise ValueError(f"{name} must be uint8 (0 to 255), got {array.dtype}; {advice}")
    return array
