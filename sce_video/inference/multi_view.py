"""Row functions: features or class probabilities of videos, whose views are cut here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from sce_video.datasets.pipeline import PackedSample
from sce_video.datasets.transforms import cut_views
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.tensors import cudnn_benchmark

# Limit the chunks, because malloc returns larger blocks to the system after each use, and the
# system zeroes every page again. On a CPU, cutting 30 views of 8 x 256 x 256 at once takes six
# times as long as cutting 10 at a time.
_MAX_BYTES_ON_CPU = 24 * 2**20

#: Function that maps normalised views (n, 3, T, H, W) to rows (n, C).
ViewFunction = Callable[[Tensor], Tensor]


class Batch(TypedDict, total=False):
    """Batch of :func:`sce_video.collate_views`, or of a dataset's own collate function."""

    #: Samples from ``PackVideo``, from which the views are cut here.
    videos: Sequence[PackedSample]
    #: Views that are already cut, as V uint8 tensors (N, T, H, W, 3). They replace ``videos``.
    inputs: list[Tensor]
    #: Sample numbers in the dataset, (N,) int64.
    index: Tensor
    #: Class numbers, (N,) int64; -1 means no label.
    label: Tensor
    #: Random seeds of the samples, (N,) int64.
    seed: Tensor
    #: Boxes (n, 4) of the people in each of the N key frames.
    boxes: list[Tensor]
    #: Path and error of each file that could not be decoded.
    failures: list[tuple[str, str]]
    #: Number of frames in which the decoder concealed errors. Only embedding jobs provide it.
    damaged: int
    #: Duration of the video in seconds. Only embedding jobs provide it.
    duration: float


class BatchRows(NamedTuple):
    """Rows of the samples of one batch, on the CPU.

    Attributes:
        values: (n, C) float32: features, or class probabilities, averaged over the views.
        num_views: Largest number of views (clips x crops) of a sample.
        central: (n, C), the rows of only the central views; None if not kept.
        counts: Number of rows of each sample; None if each has one.
    """

    values: Tensor
    num_views: int
    central: Tensor | None = None
    counts: list[int] | None = None


#: Function that computes the rows of a batch, given the model (in eval mode, without a wrapper) and
#: the batch.
RowFunction = Callable[[Any, Batch], BatchRows]


@dataclass
class PartialRows:
    """Rows of some samples, in the order in which they were computed.

    Attributes:
        values: Matrices (n, C) float32, one per batch.
        central: Matrices of the central views, one per batch; empty if they are not kept.
        counts: Number of rows of each sample; empty if each has one.
        labels: Label of each sample.
        indices: Index of each sample in the dataset.
        failures: Files that could not be decoded, with the error.
        num_views: Largest number of views of a sample.
    """

    values: list[Tensor] = field(default_factory=list)
    central: list[Tensor] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    num_views: int = 0

    def add(self, other: PartialRows) -> None:
        """Append the rows of another part."""
        for name in ("values", "central", "counts", "labels", "indices", "failures"):
            getattr(self, name).extend(getattr(other, name))
        self.num_views = max(self.num_views, other.num_views)


def rows_of_batch(model: Any, batch: Batch, function: RowFunction) -> PartialRows:
    """Compute the rows of a batch, for loops over a dataset and for the embedding job.

    Args:
        model: First argument of the function.
        batch: Batch of :func:`sce_video.collate_views`. Samples that could not be decoded appear
            only in its ``failures``.
        function: Function that computes the rows.
    """
    failures = batch.get("failures", [])
    part = PartialRows(failures=[(str(path), str(why)) for path, why in failures])
    if len(batch["index"]) > 0:  # if it is empty, all samples were skipped
        values, part.num_views, central, counts = function(model, batch)
        part.values = [values] if len(values) else []
        part.central = [central] if central is not None else []
        part.counts = counts or []
        part.labels = [int(label) for label in batch["label"]]
        part.indices = [int(index) for index in batch["index"]]
    return part


def view_chunks(
    video: PackedSample, device: torch.device | str, max_views: int
) -> Iterator[Tensor]:
    """Yield the K x C views of a video on a device in chunks of at most ``max_views``, 1 or more.

    On a CPU, a chunk has at most 24 MiB, or one view. A video contains ``frames`` uint8 (F, H, W,
    3), ``positions`` int64 (K, T), ``offsets`` int64 (C, 2) and ``crop_size`` (height and width),
    as :class:`~sce_video.datasets.transforms.PackVideo` makes them. Views are uint8 (n, T, S, S,
    3), in the order clip 0 crop 0, clip 0 crop 1, ..., clip 1 crop 0.
    """
    if max_views < 1:
        raise ValueError(f"max_views must be at least 1, got {max_views}")
    on_cpu = torch.device(device).type == "cpu"
    if on_cpu:
        bytes_per_view = video["positions"].shape[1] * 3 * math.prod(video["crop_size"])
        max_views = min(max_views, max(1, _MAX_BYTES_ON_CPU // bytes_per_view))
    # Views are numbered clip by clip, so all crops of a clip are consecutive.
    total = len(video["positions"]) * len(video["offsets"])
    parts = [(start, min(start + max_views, total)) for start in range(0, total, max_views)]
    if on_cpu:
        yield from (cut_views(video, start, stop) for start, stop in parts)
    else:
        yield from _cut_on_device(video, device, parts)


def _cut_on_device(
    video: PackedSample, device: torch.device | str, parts: list[tuple[int, int]]
) -> Iterator[Tensor]:
    """Yield the views ``start`` to ``stop - 1`` of each part, by indexing on the device."""
    # Overlapping clips and crops share frames, so transfer each frame only once, as uint8.
    frames = video["frames"].to(device, non_blocking=True)
    positions = video["positions"].to(device, non_blocking=True)
    offsets, (height, width) = video["offsets"].tolist(), video["crop_size"]
    for start, stop in parts:
        chunk = []
        for number in range(start, stop):
            clip, crop = divmod(number, len(offsets))
            top, left = offsets[crop]
            window = frames[:, top : top + height, left : left + width]
            chunk.append(window[positions[clip]])
        yield torch.stack(chunk)


def central_view(video: PackedSample) -> int:
    """Return the index of the view of a one-view test: clip ``K // 2``, crop ``C // 2``."""
    clips, crops = len(video["positions"]), len(video["offsets"])
    return clips // 2 * crops + crops // 2


def rows_of_views(model: Any, batch: Batch, function: ViewFunction, max_views: int) -> list[Tensor]:
    """Return the rows of all views of every video of a batch: N float32 tensors (views, C).

    A batch of :func:`sce_video.collate_views` has ``videos`` (frames, from which views are cut
    here, ``max_views`` of a video per forward pass) or ``inputs`` (views already cut; one forward
    pass per view, for all videos together). The model's ``data_preprocessor`` normalises them.
    """
    preprocessor = model.data_preprocessor
    if "videos" not in batch:
        inputs = preprocessor(batch, False)["inputs"]
        if torch.is_tensor(inputs):  # (N, V, 3, T, H, W) for a recogniser
            inputs = inputs.unbind(dim=1)
        # Each forward pass computes the n-th views of all samples in the batch.
        return list(torch.stack([function(view).float() for view in inputs], dim=1))
    rows = []
    for video in batch["videos"]:
        chunks = view_chunks(video, preprocessor.device, max_views)
        rows.append(torch.cat([function(preprocessor.normalise(c)).float() for c in chunks]))
    return rows


def row_function(
    model: Any, max_views: int = 30, precision: str = "float32", clips: bool = False
) -> tuple[str, RowFunction]:
    """Return the kind of rows that a model computes, and the function that computes them.

    The kind is "detection" for a model with a ``roi_head``, "recognition" with a ``cls_head``, and
    otherwise "representation". With "bfloat16" and "float16", the network runs in autocast. At most
    ``max_views`` views of a video per forward pass limit the device memory. ``clips`` requests
    representations of each clip. ValueError is raised for an unknown precision.
    """
    known = ("float32", "bfloat16", "float16")
    if precision not in known:
        raise ValueError(f"precision must be one of {', '.join(known)}, got {precision!r}")
    dtype: torch.dtype = getattr(torch, precision)
    inner = unwrap_model(model)
    if hasattr(inner, "roi_head"):
        return "detection", box_scores(dtype)
    if hasattr(inner, "cls_head"):
        return "recognition", class_scores(max_views, dtype)
    return "representation", mean_representation(max_views, dtype, clips)


def mean_representation(
    max_views: int = 30, dtype: torch.dtype = torch.float32, clips: bool = False
) -> RowFunction:
    """Average the representation h over all views of each video (a row function).

    With ``clips``, there is a row for each clip, the mean over its crops, and ``counts`` contains
    their number for each video (:func:`~sce_video.evaluation.rows.mean_of_clips`).
    """

    def function(model: Any, batch: Batch) -> BatchRows:
        def represent(view: Tensor) -> Tensor:
            with torch.autocast(view.device.type, dtype, enabled=dtype != torch.float32):
                return model(inputs=[view], mode="tensor")[0]

        videos = rows_of_views(model, batch, represent, max_views)
        if clips:  # clip by clip; views cut earlier have one crop per clip
            crops = [1] * len(videos)
            if "videos" in batch:
                crops = [len(video["offsets"]) for video in batch["videos"]]
            pairs = zip(videos, crops, strict=True)
            parts = [views.unflatten(0, (-1, n)).mean(dim=1).cpu() for views, n in pairs]
            return BatchRows(torch.cat(parts), max(map(len, videos)), counts=[*map(len, parts)])
        # Average each video separately, because videos may have different numbers of views.
        mean = torch.stack([views.mean(dim=0) for views in videos]).cpu()
        return BatchRows(mean, max(map(len, videos)))

    return function


def class_scores(max_views: int = 30, dtype: torch.dtype = torch.float32) -> RowFunction:
    """Compute the class probabilities of each video (a row function).

    A row is the mean of the softmax vectors of all views, not the softmax of the mean logits.
    ``central`` is the softmax vector of the central view. If G classifiers return logits (N, G, K),
    a row contains their softmax vectors one after another, (G * K,).
    """

    def function(model: Any, batch: Batch) -> BatchRows:
        def probabilities(view: Tensor) -> Tensor:
            with torch.autocast(view.device.type, dtype, enabled=dtype != torch.float32):
                logits = model(inputs=view.unsqueeze(1), mode="tensor", stage="head")
            # Convert to float32 at any precision, because the scores are summed over views.
            return logits.float().softmax(dim=-1).flatten(1)

        videos = rows_of_views(model, batch, probabilities, max_views)
        # Views that were cut earlier do not distinguish clips from crops, so the middle view counts
        # as central.
        central = [len(videos[0]) // 2] * len(videos)
        if "videos" in batch:
            central = [central_view(video) for video in batch["videos"]]
        mean = torch.stack([video.mean(dim=0) for video in videos]).cpu()
        one = torch.stack([v[i] for v, i in zip(videos, central, strict=True)]).cpu()
        return BatchRows(mean, max(map(len, videos)), one)

    return function


def box_scores(dtype: torch.dtype = torch.float32) -> RowFunction:
    """Compute the action scores of the boxes of every key frame (a row function)."""

    def function(model: Any, batch: Batch) -> BatchRows:
        counts = [len(boxes) for boxes in batch["boxes"]]
        if sum(counts) == 0:  # none of these key frames has a box
            return BatchRows(torch.empty(0, 0), 1, counts=counts)
        data = model.data_preprocessor(batch, False)
        mixed = torch.autocast(data["inputs"].device.type, dtype, enabled=dtype != torch.float32)
        # Turn the benchmark off. Key frames have many sizes, and cuDNN would try all algorithms for
        # each size.
        with mixed, cudnn_benchmark(False):
            scores = model(**data, mode="tensor")
        return BatchRows(scores.float().cpu(), 1, counts=counts)

    return function
