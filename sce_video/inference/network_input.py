"""Input of a network: settings found in a config, and the views of a video or an array."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sce_video.datasets.clip_sampling import ClipIndices, uniform_positions
from sce_video.datasets.pipeline import (
    PackedSample,
    PipelineResults,
    Transform,
    run_pipeline,
)
from sce_video.datasets.readers import VideoReader
from sce_video.datasets.sources import video_exists
from sce_video.datasets.transforms import (
    CenterSegmentClip,
    DecodeSharedFrames,
    PackVideo,
    ResizeAsProcessor,
    ResizeShortSide,
    UniformClips,
)
from sce_video.engine.weights import checked_backbone
from sce_video.inference.multi_view import Batch, BatchRows
from sce_video.utils.records import at

_PREPROCESSORS = ("VideoDataPreprocessor", "RecognizerDataPreprocessor")
_CLIPS = ("RandomClips", "UniformClips", "OneOfClips")
_SEGMENTS = ("RandomSegmentClip", "CenterSegmentClip")
_IMAGES = ("LoadImage",)
#: Clip duration in seconds for image networks, which use one frame per clip. Frames that are one
#: second apart differ visibly.
_IMAGE_CLIP_DURATION = 1.0
#: Parts of a config that may contain test transforms: ``<part>_dataloader`` and ``<part>_pipeline``
_TEST_PARTS = ("test", "val", "evaluation", "gallery")
#: Test transforms that crop, and the argument of each that contains the size
TEST_CROPS = {"PackVideo": "crop_size", "CenterCropClips": "size"}
TRAIN_CROPS = ("RandomResizedCropClips", "RandomCropClips")
#: Test crop for each training crop (Res_p and Res_e in the paper's tables). Other crops are kept.
_TEST_SIZE_OF = {224: 256, 112: 128}
#: Largest number of clips per video in a test. The paper's tests use 10.
_MAX_CLIPS = 1000
#: Largest ratio of test crop to training crop. If it is exceeded, one of them was overridden.
_MAX_CROP_RATIO = 1.5
#: Limits on a clip, far above any network's needs. They bound the memory that a file can request.
_LIMITS = {"num_frames": 4096, "short_side": 4096, "crop_size": 4096}
#: Maximum number of pixels in a clip, in addition to the other limits
_MAX_CLIP_PIXELS = 2**28
#: Ways to resize a frame, described in :class:`ModelSettings`
RESIZES = ("linear", "bilinear", "bicubic", "square", "square_bicubic", "network")


@dataclass(frozen=True)
class ModelSettings:
    """Network and its input settings.

    Attributes:
        backbone: Config of the backbone. Every sequence in it is a tuple.
        mean: Mean of frames in 0..1, one number or one per channel.
        std: Standard deviation of frames in 0..1, one number or one per channel.
        clip_duration: Duration in seconds; None if a clip is the whole video (segment sampling).
        num_frames: T, number of frames per clip; 1 for an image network.
        short_side: Length in pixels to which the short side of a frame is scaled.
        crop_size: Side of the square crop in pixels.
        resize: "linear" does not filter. "bilinear" and "bicubic" are antialiased as in
            transformers processors. "square" and "square_bicubic" are the same without keeping the
            aspect ratio. With "network", the network resizes whole frames.
    """

    backbone: dict
    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    clip_duration: float | None
    num_frames: int
    short_side: int
    crop_size: int
    resize: str = "linear"

    def __post_init__(self) -> None:
        seconds = self.clip_duration
        positive = seconds is None or (_is_number(seconds) and 0 < seconds < math.inf)
        checks = {
            "resize": (self.resize in RESIZES, f"be one of {', '.join(RESIZES)}"),
            "clip_duration": (positive, "be a positive number of seconds"),
        }
        for name, most in _LIMITS.items():
            size = getattr(self, name)
            fine = type(size) is int and 1 <= size <= most
            checks[name] = fine, f"be a whole number from 1 to {most}"
        for name in ("mean", "std"):
            value = getattr(self, name)
            some = value if isinstance(value, tuple) and len(value) == 3 else (value,)
            fine = all(_is_number(number) and -math.inf < number < math.inf for number in some)
            checks[name] = fine, "be one number or three"
        for name, (fine, wanted) in checks.items():
            if not fine:
                raise ValueError(f"{name} must {wanted}, got {getattr(self, name)!r:.100}")
        if self.num_frames * self.short_side**2 > _MAX_CLIP_PIXELS:
            raise ValueError(
                f"a clip of {self.num_frames} frames with a short side of {self.short_side} has "
                f"more than {_MAX_CLIP_PIXELS} pixels"
            )
        if self.short_side < self.crop_size:
            raise ValueError(
                f"cannot take a crop of {self.crop_size} pixels from frames whose short side is "
                f"{self.short_side}"
            )

    def to_dict(self) -> dict[str, object]:
        """Return the settings as JSON data, from which :meth:`from_dict` restores them."""
        plain = json.loads(json.dumps(asdict(self)))  # converts tuples to lists
        if self.resize == "linear":  # older files lack this key, and their hashes must not change
            del plain["resize"]
        return plain

    @classmethod
    def from_dict(cls, stored: Any) -> ModelSettings:
        """Read settings from untrusted data; raise ValueError if keys or values are not valid."""
        names = set(cls.__dataclass_fields__)
        if not isinstance(stored, dict) or {*stored, "resize"} != names:
            raise ValueError(f"these are not the settings of a model: {stored!r:.200}")
        values = {name: _tuples(value) for name, value in stored.items()}
        return cls(**{**values, "backbone": checked_backbone(stored["backbone"])})


def settings_from_config(cfg: Mapping[str, Any], trusted: bool = False) -> ModelSettings:
    """Find backbone, normalisation, clip and crop in a config of plain dicts and lists.

    The clip comes from the training pipeline or, without one, from a test pipeline. A config for
    images (``LoadImage`` instead of clips) gives clips of 1 s, of which one frame is used.

    The crop comes from a test pipeline. If there is none or it does not match the training crop
    (training at 64 through ``--cfg-options`` leaves 256 in the test pipeline), the crop follows
    from the training crop. A crop of 224 is tested at 256 and 112 at 128, and any other size is
    kept. An image network keeps its training crop of 224, cut from a short side of 256.

    ``trusted`` means that the user gave the config file, see
    :func:`~sce_video.engine.weights.checked_backbone`.

    Raises:
        ValueError: If a setting is missing, or the backbone may not be built.
    """
    if (backbone := at(cfg, "model.backbone", dict)) is None:
        raise ValueError("the config has no model.backbone")
    mean, std = _normalisation(cfg)
    train = list(_transforms(cfg, "train"))
    test = [t for part in _TEST_PARTS for t in _transforms(cfg, part)]
    # Prefer the clip with which the network was trained, because a test may sample other clips.
    names = {name for name, _ in train + test}
    image = bool(names & set(_IMAGES)) and not names & {*_CLIPS, *_SEGMENTS}
    clip_duration, num_frames = _clip(train + test, image)
    short_side, crop_size = _sizes(training_crop(cfg), test, image)
    return ModelSettings(
        backbone=checked_backbone(backbone, trusted),
        mean=mean,
        std=std,
        clip_duration=clip_duration,
        num_frames=num_frames,
        short_side=short_side,
        crop_size=crop_size,
        resize=_resize(test),
    )


def training_crop(cfg: Mapping[str, Any]) -> int | None:
    """Return the side of a config's square training crop in pixels; None if it has none."""
    sizes = (at(t, "size", int) for name, t in _transforms(cfg, "train") if name in TRAIN_CROPS)
    return next((size for size in sizes if size is not None), None)


def crop_fits(crop_size: int, trained: int) -> bool:
    """Return whether a test crop matches a training crop, or one of them was overridden."""
    return trained <= crop_size <= _MAX_CROP_RATIO * trained


def _normalisation(cfg: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return mean and standard deviation of the preprocessor, by default as for its class."""
    given = at(cfg, "model.data_preprocessor") or at(cfg, "data_preprocessor") or {}
    if not isinstance(given, dict):
        raise ValueError(f"data_preprocessor must be a dict, got {given!r:.100}")
    preprocessor = {"type": _PREPROCESSORS[0], "mean": 0.45, "std": 0.225, **given}
    kind = str(preprocessor["type"]).removeprefix("sce_video.")
    if kind not in _PREPROCESSORS:
        raise ValueError(
            f"data_preprocessor is a {kind}, whose scale of mean and std is unknown. "
            f"Use one of {', '.join(_PREPROCESSORS)}"
        )
    return _tuples(preprocessor["mean"]), _tuples(preprocessor["std"])


def _transforms(cfg: Mapping[str, Any], part: str) -> Iterator[tuple[str, dict]]:
    """Yield (name, config) of a part's transforms.

    They are found in ``<part>_dataloader``, at the top level or in ``test_cfg``, and in
    ``<part>_pipeline``.
    """
    pipelines = []
    for place in (f"{part}_dataloader", f"test_cfg.{part}_dataloader"):
        node = at(cfg, place, dict)
        while node is not None and "pipeline" not in node:
            node = at(node, "dataset", dict)  # unwrap e.g. a RepeatDataset
        pipelines.append(at(node, "pipeline"))
    pipelines.append(at(cfg, f"{part}_pipeline"))
    # The config may be untrusted, so skip everything that is not a transform.
    for pipeline in pipelines:
        for transform in pipeline if isinstance(pipeline, list | tuple) else ():
            if at(transform, "type", str) is not None:
                yield transform["type"].rpartition(".")[2], transform


def _clip(transforms: list[tuple[str, dict]], image: bool) -> tuple[float | None, int]:
    """Return the duration and number of frames of a clip."""
    for name, transform in transforms:
        if name in _CLIPS and {"clip_duration", "num_frames"} <= set(transform):
            return transform["clip_duration"], transform["num_frames"]
        if name in _SEGMENTS and "num_frames" in transform:
            return None, transform["num_frames"]
    if image:
        return _IMAGE_CLIP_DURATION, 1
    known = ", ".join((*_CLIPS, *_SEGMENTS))
    raise ValueError(
        f"the config's pipelines sample no clips ({known} with num_frames) and load no images "
        f"({', '.join(_IMAGES)})"
    )


def _sizes(trained: int | None, test: list[tuple[str, dict]], image: bool) -> tuple[int, int]:
    """Return the short side and the crop side."""
    short_side = None
    # If --cfg-options changed the training size, the test pipeline still has the old crop.
    for name, transform in test:
        size = at(transform, "size")
        if name == "ResizeShortSide":
            short_side = at(transform, "size", int) or short_side
        if name == "ResizeAsProcessor" and size:
            short_side = size if isinstance(size, int) else size[0]
        crop_size = at(transform, TEST_CROPS[name], int) if name in TEST_CROPS else None
        if crop_size is not None:
            if trained is None or crop_fits(crop_size, trained):
                return short_side or crop_size, crop_size
            break
    if trained is None:
        raise ValueError(
            f"the config's pipelines have no crop ({', '.join([*TEST_CROPS, *TRAIN_CROPS])})"
        )
    size = _TEST_SIZE_OF.get(trained, trained)
    # Image networks are tested at their training crop, with a short side of 8/7 of the crop (MoCo).
    return size, trained if image else size


def _resize(test: list[tuple[str, dict]]) -> str:
    """Return the way in which frames are resized, see :class:`ModelSettings`."""
    for name, transform in test:
        if name == "ResizeAsProcessor":
            interpolation = at(transform, "interpolation") or "bilinear"
            if at(transform, "size", int) is not None:
                return interpolation
            return "square_bicubic" if interpolation == "bicubic" else "square"
        if name == "PackVideo" and at(transform, "whole") is True:
            return "network"
    return "linear"


def view_counts(cfg: Mapping[str, Any]) -> tuple[int, int]:
    """Return clips per video and crops per clip in a test; ValueError without a test pipeline."""
    clips: list[Any] = []
    crops: list[Any] = []
    for name, transform in _transforms(cfg, "test"):
        if name in (*_CLIPS, *_SEGMENTS):
            clips.append(transform.get("num_clips", 10) if name == "UniformClips" else 1)
        if name in TEST_CROPS:
            crops.append(transform.get("num_crops", 3) if name == "PackVideo" else 1)
    if not clips or not crops:
        raise ValueError("the config has no test pipeline (test_dataloader) with clips and crops")
    if type(clips[0]) is not int or not 1 <= clips[0] <= _MAX_CLIPS:
        raise ValueError(
            f"num_clips must be a whole number from 1 to {_MAX_CLIPS}, got {clips[0]!r}"
        )
    return clips[0], crops[0]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """Views of a video, and settings for their computation.

    Attributes:
        num_clips: Number of clips per video, at equal steps; 1 selects the centre. A network
            trained with segment sampling always sees one clip, the whole video.
        num_crops: Number of crops per clip: 1 (centre) or 3 (along the long side).
        max_views: Largest batch of views, which limits the memory. It changes features only by
            rounding.
        num_workers: Number of processes that decode and embed, each with a copy of the network;
            0 works in this process.
        timeout: Time limit for decoding a file, in seconds; None for no limit.
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
            raise ValueError(
                f"timeout must be a positive number of seconds or None, got {self.timeout}"
            )


class VideoNetwork(Protocol):
    """Interface of a network for embedding: its input settings, and a row of numbers per video."""

    @property
    def settings(self) -> ModelSettings:
        """Clip and crop of the network."""

    @property
    def checkpoint(self) -> str:
        """Path of the weights, for messages."""

    @property
    def device(self) -> torch.device:
        """Device of the network."""

    @property
    def row_size(self) -> int:
        """D, size of a row."""

    def rows(self, batch: Batch, max_views: int) -> BatchRows:
        """Return rows (n, D) of a ``collate_views`` batch, using up to ``max_views`` at a time."""

    def to(self, device: torch.device) -> VideoNetwork:
        """Return the network on a device: itself, or a copy."""


def embed_batch(network: VideoNetwork, batch: Batch, max_views: int, name: str) -> BatchRows:
    """Return the rows of a batch.

    Raises:
        ValueError: If a row is not finite. The message contains ``name``.
    """
    rows = network.rows(batch, max_views)
    if not bool(torch.isfinite(rows.values).all()):
        raise ValueError(
            f"the output for {name} is not finite: the network of {network.checkpoint} has "
            "diverged. Use an earlier checkpoint"
        )
    return rows


def embed_sample(
    network: VideoNetwork, sample: PackedSample, options: ViewOptions, name: str
) -> np.ndarray:
    """Compute one video's row (D,) separately, because rounding depends on the batch size."""
    rows = embed_batch(network, {"videos": [sample]}, options.max_views, name)
    return rows.values[0].numpy()


class ArrayReader(VideoReader):
    """Reader of frames in memory, (T, H, W, 3) uint8."""

    def __init__(self, frames: np.ndarray, fps: float) -> None:
        self.path = "array"
        self.timestamps = np.arange(len(frames)) / fps
        self.duration = len(frames) / fps
        self._frames = frames
        self._size = (frames.shape[1], frames.shape[2])

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Return copies of the frames at ``indices``."""
        return np.ascontiguousarray(self._frames[self._check_indices(indices)])

    def close(self) -> None:
        """Do nothing, because no file is open."""


def one_clip_of(num_frames: int, results: PipelineResults) -> PipelineResults:
    """Add one clip of ``num_frames`` at equal steps over the whole array.

    It reads the key ``reader`` and writes ``clips``.
    """
    reader = results["reader"]
    frames = uniform_positions(len(reader.timestamps), num_frames)
    return {**results, "clips": [ClipIndices(frames, None, 0.0, reader.duration)]}


def pack_array(frames: np.ndarray, fps: float, steps: Sequence[Transform]) -> PackedSample:
    """Pack views of frames in memory with the transforms of :func:`view_steps`."""
    results: PipelineResults = {
        "reader": ArrayReader(frames, fps),
        "rng": np.random.default_rng(0),
        "label": -1,
        "index": 0,
        "seed": 0,
    }
    return run_pipeline(steps, results)


def resize_steps(settings: ModelSettings, num_crops: int) -> list[Transform]:
    """Return the resizing transform, or none if the network resizes whole frames."""
    if settings.resize == "network":
        return []
    if settings.resize == "linear":
        return [ResizeShortSide(settings.short_side)]
    side, square = settings.short_side, settings.resize.startswith("square")
    if square and num_crops != 1:
        raise ValueError(
            f"frames squashed to a square allow only one crop, got num_crops={num_crops}"
        )
    crop = settings.crop_size if num_crops == 1 else None
    interpolation = "bicubic" if settings.resize.endswith("bicubic") else "bilinear"
    return [ResizeAsProcessor((side, side) if square else side, crop, interpolation)]


def pack_step(settings: ModelSettings, num_crops: int) -> PackVideo:
    """Return the transform that cuts the crops."""
    return PackVideo(settings.crop_size, num_crops, whole=settings.resize == "network")


def view_steps(
    settings: ModelSettings, num_clips: int, num_crops: int, one_clip: bool = False
) -> list[Transform]:
    """Return transforms from an open reader to packed views: sample, decode, resize, crop.

    ``num_clips`` clips are sampled at equal steps. With segment sampling, one clip covers the whole
    video. With ``one_clip``, all frames of the reader form one clip.
    """
    clips: Transform
    if settings.clip_duration is None:
        clips = CenterSegmentClip(settings.num_frames)
    elif one_clip:
        clips = partial(one_clip_of, settings.num_frames)
    else:
        clips = UniformClips(settings.clip_duration, settings.num_frames, num_clips)
    resize = resize_steps(settings, num_crops)
    return [clips, DecodeSharedFrames(), *resize, pack_step(settings, num_crops)]


#: A video: a path, or frames (T, H, W, 3) in uint8 RGB
Video = str | os.PathLike | np.ndarray | Tensor


def split_videos(videos: Any) -> tuple[int, dict[int, np.ndarray], dict[int, str]]:
    """Return the number of videos, and the arrays and paths among them by position.

    Raises:
        ValueError: If there are no videos, or an array is empty or not (T, H, W, 3) uint8.
        FileNotFoundError: If a file does not exist.
    """
    # Paths and arrays are sequences (of letters and of frames), but they are not lists of videos.
    single = isinstance(videos, str | os.PathLike)
    if single or (isinstance(videos, np.ndarray | Tensor) and videos.ndim != 5):
        videos = [videos]
    items = list(videos)
    if not items:
        raise ValueError("there is no video to embed, because the list is empty")
    paths = {i: os.fspath(v) for i, v in enumerate(items) if isinstance(v, str | os.PathLike)}
    arrays = {i: checked_frames(v, i) for i, v in enumerate(items) if i not in paths}
    for i, path in paths.items():
        if not video_exists(path):
            raise FileNotFoundError(f"no video at {path} (position {i})")
    return len(items), arrays, paths


def checked_frames(item: Any, position: int) -> np.ndarray:
    """Return the item as an array of frames, or raise ValueError with its position and problem."""
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
    # Do not guess the scale. In a dark video, 0..1 and 0..255 cannot be distinguished.
    if array.dtype != np.uint8:
        advice = "convert it to uint8"
        if array.dtype.kind == "f":
            advice = "values in 0..1: np.uint8(np.rint(255 * array)); in 0..255: without the 255"
        raise ValueError(f"{name} must be uint8 (0 to 255), got {array.dtype}; {advice}")
    return array
