"""The clips of a video as a network sees them, with their frames and times, to look at."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sce_video.apis.arrays import ArrayReader, OneClip
from sce_video.apis.embed import VideoFiles
from sce_video.apis.model_settings import ModelSettings
from sce_video.apis.view_steps import pack_step, resize_steps
from sce_video.datasets import IMAGE_EXTENSIONS, VideoDecodeError, run_pipeline, video_exists
from sce_video.datasets.clip_sampling import make_clip
from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.datasets.readers.images import read_image
from sce_video.datasets.transforms import (
    CenterSegmentClip,
    DecodeSharedFrames,
    OpenVideo,
    UniformClips,
    cut_views,
)
from sce_video.utils.downloads import local_copy

_Transform = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class SeenClip:
    """One clip of a file as a network sees it.

    Attributes:
        path: The file, as given.
        frames: (T, S, S, 3) uint8 RGB, the centre crop.
        times: (T,) seconds from the beginning of the video; None for an image.
    """

    path: str
    frames: np.ndarray
    times: np.ndarray | None

    @property
    def is_image(self) -> bool:
        """Whether all T frames are one image."""
        return self.times is None


def resized(settings: ModelSettings, size: int | None) -> ModelSettings:
    """The settings with frames of ``size`` x ``size`` pixels; None changes nothing.

    Raises:
        ValueError: the size is out of range.
    """
    return settings if size is None else replace(settings, short_side=size, crop_size=size)


def read_clips(
    settings: ModelSettings,
    path: str | os.PathLike,
    num_clips: int = 1,
    at: float | None = None,
    timeout: float | None = 60.0,
) -> list[SeenClip]:
    """The clips of a video at equal steps, or the one around a second; of an image, itself.

    Args:
        settings: Clip and crop of the network. With segment sampling a clip is the whole video, and
            there is one.
        path: A video, or an image, which becomes a clip of T equal frames.
        num_clips: Clips at equal steps from the first to the last; 1 takes the centre.
        at: Second in the middle of the only clip; it is moved where it would pass an end.
        timeout: Time limit for decoding the file, seconds.

    Raises:
        FileNotFoundError: no such file.
        ValueError: ``num_clips`` below 1, the video does not contain the second ``at``, or a clip
            is chosen of a network that sees the whole video.
        VideoDecodeError: the file cannot be decoded.
    """
    path = os.fspath(path)
    if not video_exists(path):
        raise FileNotFoundError(f"no video or image at {path}")
    if num_clips < 1:
        raise ValueError(f"the number of clips must be at least 1, got {num_clips}")
    if settings.clip_duration is None and (num_clips > 1 or at is not None):
        raise ValueError("this network sees a whole video as one clip: no clip can be chosen")
    if Path(path).suffix.lower() in IMAGE_EXTENSIONS:
        return [_image_clip(settings, os.fspath(local_copy(path)))]
    noted = _ClipTimes()
    steps: list[_Transform] = [OpenVideo(), _clip_step(settings, num_clips, at), noted]
    sample = VideoFiles([path], [*steps, *_crop_steps(settings)], timeout)[0]
    if sample.get("frames") is None:
        raise VideoDecodeError(path, "; ".join(reason for _, reason in sample["failures"]))
    if at is not None and not 0 <= at <= noted.duration:
        raise ValueError(f"{path} lasts {noted.duration:.2f} s: there is no clip at second {at:g}")
    views = cut_views(sample).numpy()
    return [SeenClip(path, frames, times) for frames, times in zip(views, noted.times, strict=True)]


def network_view(preprocessor: Any, clip: SeenClip) -> Tensor:
    """The normalised view (1, 3, T, S, S) of a clip, on the device of the data preprocessor."""
    return preprocessor.normalise(torch.from_numpy(clip.frames[None]).to(preprocessor.device))


class _ClipTimes:
    """Keeps the time stamps of the frames of every clip, and the duration of the video."""

    def __init__(self) -> None:
        self.times: list[np.ndarray] = []
        self.duration = 0.0

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        stamps = results["reader"].timestamps
        self.times = [stamps[clip.frames] for clip in results["clips"]]
        self.duration = float(results["reader"].duration)
        return results


class _ClipAt:
    """One clip around a second of the video.

    Args:
        clip_duration: Seconds.
        num_frames: T.
        at: The second in its middle.
    """

    def __init__(self, clip_duration: float, num_frames: int, at: float) -> None:
        self._clip_duration, self._num_frames, self._at = clip_duration, num_frames, at

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        reader = results["reader"]
        last = max(0.0, reader.duration - self._clip_duration)
        start = min(max(0.0, self._at - self._clip_duration / 2), last)
        clip = make_clip(
            reader.timestamps,
            start=start,
            clip_duration=self._clip_duration,
            num_frames=self._num_frames,
        )
        results["clips"] = [clip]
        return results


def _clip_step(settings: ModelSettings, num_clips: int, at: float | None) -> _Transform:
    if settings.clip_duration is None:
        return CenterSegmentClip(settings.num_frames)
    if at is not None:
        return _ClipAt(settings.clip_duration, settings.num_frames, at)
    return UniformClips(settings.clip_duration, settings.num_frames, num_clips)


def _crop_steps(settings: ModelSettings) -> list[_Transform]:
    return [DecodeSharedFrames(), *resize_steps(settings, 1), pack_step(settings, 1)]


def _image_clip(settings: ModelSettings, path: str) -> SeenClip:
    image = read_image(path, DecodeLimits())
    results: dict[str, Any] = {
        "reader": ArrayReader(image[None], 1.0),
        "rng": np.random.default_rng(0),
        **dict(label=-1, index=0, seed=0),
    }
    packed = run_pipeline([OneClip(settings.num_frames), *_crop_steps(settings)], results)
    return SeenClip(path, cut_views(packed).numpy()[0], None)
