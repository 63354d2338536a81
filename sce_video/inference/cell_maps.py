"""Maps of where a network looks: a number for every cell of the features before pooling.

A cell is one position in the features (C, t, h, w). A frame has h x w cells, and a clip t steps.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sce_video.datasets.clip_sampling import ClipIndices, make_clip
from sce_video.datasets.pipeline import PipelineResults, run_pipeline
from sce_video.datasets.readers import VideoReader
from sce_video.datasets.readers.base import DecodeLimits
from sce_video.datasets.readers.images import read_image
from sce_video.datasets.sources import open_video, video_exists
from sce_video.datasets.transforms import cut_views
from sce_video.datasets.video_list import IMAGE_EXTENSIONS
from sce_video.inference.classifier import VideoClassifier
from sce_video.inference.model import VideoModel
from sce_video.inference.network_input import ModelSettings, pack_array, view_steps
from sce_video.options.measure import BEST, MEAN
from sce_video.utils.files import local_copy


@dataclass(frozen=True, eq=False)
class SeenClip:
    """One clip of a file, as the input of a network.

    Attributes:
        path: Path of the file as given.
        frames: (T, S, S, 3) uint8 RGB frames, cropped at the centre.
        times: (T,) seconds from the beginning of the video; None for an image.
    """

    path: str
    frames: np.ndarray
    times: np.ndarray | None

    @property
    def is_image(self) -> bool:
        """Whether all T frames show the same image."""
        return self.times is None


#: Time limit per file, in seconds
_SECONDS = 60.0


def read_clips(
    settings: ModelSettings,
    path: str | os.PathLike,
    num_clips: int = 1,
    at: float | None = None,
    size: int | None = None,
) -> list[SeenClip]:
    """Read evenly spaced clips of a video, or the clip around a given time.

    An image becomes a clip of T equal frames.

    Args:
        settings: Clip and crop of the network.
        path: Path of a video or an image.
        num_clips: Number of clips from the beginning to the end; 1 selects the centre.
        at: Time in seconds at the middle of a single clip, which is moved if it exceeds the video;
            None for evenly spaced clips.
        size: Side of the network's input frames in pixels; None for the test crop.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If ``num_clips`` is below 1, the video does not contain the time ``at``, or a
            clip is selected for a network that processes the whole video (segment sampling).
        VideoDecodeError: If the file cannot be decoded.
    """
    path = os.fspath(path)
    if size is not None:
        settings = replace(settings, short_side=size, crop_size=size)
    if not video_exists(path):
        raise FileNotFoundError(f"no video or image at {path}")
    if num_clips < 1:
        raise ValueError(f"the number of clips must be at least 1, got {num_clips}")
    if settings.clip_duration is None and (num_clips > 1 or at is not None):
        raise ValueError("this network sees a video as a single clip, so no clip can be chosen")
    if Path(path).suffix.lower() in IMAGE_EXTENSIONS:
        path = os.fspath(local_copy(path))
        image = read_image(path, DecodeLimits())[None]
        packed = pack_array(image, 1.0, view_steps(settings, 1, 1, one_clip=True))
        return [SeenClip(path, cut_views(packed).numpy()[0], None)]
    sampling, *further = view_steps(settings, num_clips, 1)
    deadline = time.monotonic() + _SECONDS
    with open_video(path, deadline=deadline) as reader:
        if at is None:
            clips = sampling({"reader": reader})["clips"]
        else:
            clips = [_clip_at(settings, reader, at)]
        results: PipelineResults = {
            "reader": reader,
            "clips": clips,
            "rng": np.random.default_rng(0),
            "deadline": deadline,
            "label": -1,
            "index": 0,
            "seed": 0,
        }
        views = cut_views(run_pipeline(further, results)).numpy()
        times = [reader.timestamps[clip.frames] for clip in clips]
    return [SeenClip(path, frames, own) for frames, own in zip(views, times, strict=True)]


def _clip_at(settings: ModelSettings, reader: VideoReader, at: float) -> ClipIndices:
    """Return the clip around the time ``at`` in seconds; raise ValueError if it is outside."""
    if not 0 <= at <= reader.duration:
        raise ValueError(
            f"{reader.path} lasts {reader.duration:.2f} s, so there is no clip at second {at:g}"
        )
    seconds = settings.clip_duration or 0.0
    start = min(max(0.0, at - seconds / 2), max(0.0, reader.duration - seconds))
    return make_clip(
        reader.timestamps, start=start, clip_duration=seconds, num_frames=settings.num_frames
    )


_LISTED = 20  # maximum number of classes in a message


@dataclass(frozen=True, eq=False)
class ClassActivation:
    """Class-activation maps of the clips of one video.

    Attributes:
        clips: K clips.
        maps: K arrays (t, h, w) float32 with each cell's contribution to the score of the class.
            Their mean over all cells plus ``bias`` is the score.
        label: Index of the class.
        bias: Bias of the class in the linear layer.
        scores: (K,) score (logit) of the class in each clip.
        probabilities: (classes,) softmax probabilities, averaged over the clips.
    """

    clips: list[SeenClip]
    maps: list[np.ndarray]
    label: int
    bias: float
    scores: np.ndarray
    probabilities: np.ndarray


@dataclass(frozen=True, eq=False)
class Similarity:
    """Cosine similarity of a query frame's cells to all cells of key clips.

    Attributes:
        query: Query clip.
        frame: Index of the query frame in the query clip.
        cell: Row and column of the query cell; None if all cells of the frame are used.
        best: Whether to use the most similar of all query cells instead of their mean.
        query_grid: Shape (t, h, w) of the query's features.
        keys: K key clips.
        maps: K arrays (t, h, w) float32, -1 to 1.
    """

    query: SeenClip
    frame: int
    cell: tuple[int, int] | None
    best: bool
    query_grid: tuple[int, ...]
    keys: list[SeenClip]
    maps: list[np.ndarray]


# -- pure functions ------------------------------------------------------------------------


def class_activation_map(features: Tensor, weight: Tensor) -> Tensor:
    """Compute each cell's contribution to a class score (Zhou et al., arXiv 1512.04150, eq. 2).

    The mean of this map plus the bias equals the score of a linear layer on the mean feature.

    Args:
        features: (C, t, h, w) features before pooling.
        weight: (C,) weights of the class.
    """
    return torch.einsum("cthw,c->thw", features, weight)


def cosine_map(queries: Tensor, features: Tensor) -> Tensor:
    """Compute the largest cosine (t, h, w) of queries (n, C) with each cell of (C, t, h, w)."""
    # Flatten the cells into columns, in the order t, h, w.
    cells = F.normalize(features.flatten(1), dim=0)
    cosines = F.normalize(queries, dim=1) @ cells
    return cosines.amax(dim=0).unflatten(0, features.shape[1:])


def time_steps(num_frames: int, steps: int) -> np.ndarray:
    """Return the feature step of each frame: 0 0 1 1 2 2 3 for 7 frames and 4 steps."""
    return np.arange(num_frames) * steps // num_frames


# -- networks ------------------------------------------------------------------------------


def features_of_clip(network: Any, clip: SeenClip, name: str) -> Tensor:
    """Compute a clip's features (C, t, h, w) before pooling; ValueError for another shape."""
    preprocessor = network.data_preprocessor
    frames = torch.from_numpy(clip.frames[None]).to(preprocessor.device)
    with torch.inference_mode():
        features = network.backbone(preprocessor.normalise(frames))
    if not isinstance(features, Tensor) or features.ndim != 5:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"the backbone of {name} returns {shape} instead of features (N, C, t, h, w), so its "
            "cells cannot be shown"
        )
    if not bool(torch.isfinite(features).all()):
        raise ValueError(f"the features are not finite, because the network of {name} has diverged")
    return features[0].float()


def class_activation(
    classifier: VideoClassifier,
    path: str | os.PathLike,
    class_name: str | None = None,
    num_clips: int = 1,
    at: float | None = None,
    size: int | None = None,
) -> ClassActivation:
    """Compute the class-activation maps of a video or an image.

    Args:
        classifier: Classifier with a linear layer on the mean of its features.
        path: Path of the video or image.
        class_name: Name of the class; None for the most probable class.
        num_clips: Number of clips, as for :func:`read_clips`.
        at: Time in seconds in the middle of the only clip; None for clips at equal steps.
        size: Side of the frames in pixels; None for the test crop.

    Raises:
        ValueError: If the class is unknown, the head is not linear, or :func:`read_clips` refuses
            an argument.
        FileNotFoundError, VideoDecodeError: If :func:`read_clips` cannot read the file.
    """
    weight, bias = _linear_layer(classifier)
    label = None if class_name is None else class_number(classifier.classes, class_name)
    clips = read_clips(classifier.settings, path, num_clips, at, size)
    recognizer: Any = classifier.recognizer
    features = [features_of_clip(recognizer, clip, classifier.checkpoint) for clip in clips]
    logits = torch.stack([weight @ f.mean(dim=(1, 2, 3)) + bias for f in features])
    probabilities = logits.softmax(dim=1).mean(dim=0)
    label = int(probabilities.argmax()) if label is None else label
    return ClassActivation(
        clips=clips,
        maps=[class_activation_map(f, weight[label]).cpu().numpy() for f in features],
        label=label,
        bias=float(bias[label]),
        scores=logits[:, label].cpu().numpy(),
        probabilities=probabilities.cpu().numpy(),
    )


def class_number(classes: Sequence[str], name: str) -> int:
    """Return the index of a class by its name; ValueError suggests the most similar name."""
    if name in classes:
        return list(classes).index(name)
    near = difflib.get_close_matches(name, classes, 1, 0.4)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(classes[:_LISTED]) + (", ..." if len(classes) > _LISTED else "")
    raise ValueError(f"there is no class {name!r}.{meant} The {len(classes)} classes are {listed}")


def _linear_layer(classifier: VideoClassifier) -> tuple[Tensor, Tensor]:
    """Return weights (classes, C) and biases (classes,) of the layer on the mean feature."""
    head: Any = getattr(classifier.recognizer, "cls_head", None)
    layer = getattr(head, "fc_cls", None)
    averages = type(head).__name__ == "I3DHead" and head.spatial_type == "avg"
    if not averages or type(layer) is not nn.Linear:
        raise ValueError(
            f"the classifier of {classifier.checkpoint} is a {type(head).__name__}, but "
            "class-activation maps need a linear layer on the mean of the features (I3DHead)"
        )
    bias = layer.bias if layer.bias is not None else layer.weight.new_zeros(len(layer.weight))
    return layer.weight.detach().float(), bias.detach().float()


def cell_similarity(
    model: VideoModel,
    query: str | os.PathLike,
    key: str | os.PathLike,
    frame: int | None = None,
    cell: str | tuple[int, int] = MEAN,
    *,
    num_clips: int = 1,
    at: float | None = None,
    size: int | None = None,
) -> Similarity:
    """Compute the cosine similarity of a query frame's cells to every cell of a key video.

    Args:
        model: Network from :func:`~sce_video.inference.model.load_model`.
        query: Path of a video or an image. Its centre clip is used.
        key: Path of the video or image to compare with.
        frame: Index of the query frame in its clip; None for the middle frame.
        cell: Query cells. "mean" uses the mean of the frame's cells, "best" uses the most similar
            of all cells in the frame, and (row, column) selects one cell.
        num_clips: Number of key clips at equal steps; 1 selects the centre.
        at: Time in seconds in the middle of the query clip; None for the centre.
        size: Side of the frames in pixels; None for the test crop.

    Raises:
        ValueError: If the frame or the cell does not exist, or :func:`read_clips` refuses an
            argument.
        FileNotFoundError, VideoDecodeError: If :func:`read_clips` cannot read a file.
    """
    (query_clip,) = read_clips(model.settings, query, 1, at, size)
    frame = len(query_clip.frames) // 2 if frame is None else frame
    if not 0 <= frame < len(query_clip.frames):
        raise ValueError(
            f"frame {frame} is not in the clip, which has the frames 0 to "
            f"{len(query_clip.frames) - 1}"
        )
    key_clips = read_clips(model.settings, key, num_clips, size=size)
    encoder: Any = model.encoder
    found, *others = (
        features_of_clip(encoder, clip, model.checkpoint) for clip in (query_clip, *key_clips)
    )
    # The features have fewer time steps than the clip has frames, so find the step of the frame.
    step = int(time_steps(len(query_clip.frames), found.shape[1])[frame])
    cells = found[:, step]  # (C, h, w), the cells of the query frame
    if cell == MEAN:
        queries = cells.mean(dim=(1, 2))[None]
    elif cell == BEST:
        queries = cells.flatten(1).T
    elif isinstance(cell, str):
        raise ValueError(f"the cell must be {MEAN}, {BEST} or a row and a column, got {cell!r}")
    else:
        (height, width), (y, x) = cells.shape[1:], cell
        if not (0 <= y < height and 0 <= x < width):
            raise ValueError(
                f"cell {y},{x} is outside the grid, which has the rows 0 to {height - 1} and the "
                f"columns 0 to {width - 1}"
            )
        queries = cells[:, y, x][None]
    return Similarity(
        query=query_clip,
        frame=frame,
        cell=cell if isinstance(cell, tuple) else None,
        best=cell == BEST,
        query_grid=tuple(found.shape[1:]),
        keys=key_clips,
        maps=[cosine_map(queries, features).cpu().numpy() for features in others],
    )


def without_image_time(clip: SeenClip, values: np.ndarray) -> tuple[SeenClip, np.ndarray]:
    """Reduce an image's clip to one frame and average its map over time; keep a video's clip."""
    if not clip.is_image:
        return clip, values
    return replace(clip, frames=clip.frames[:1]), values.mean(axis=0, keepdims=True)
