"""Row functions: views of videos, cut on the device, to a row of each; also of altered clips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sce_video.datasets.transforms import cut_views
from sce_video.datasets.video_dataset import mix_seed
from sce_video.evaluation.rows import BatchRows, RowFunction, Rows
from sce_video.utils.distributed import unwrap_model

# malloc returns larger blocks to the system after each use, and the system zeroes every page again:
# on a CPU cutting 30 views of 8 x 256 x 256 at once takes six times as long as 10 at a time.
_MAX_BYTES_ON_CPU = 24 * 2**20

#: Maps normalised views (n, 3, T, H, W) to one row each, (n, C).
ViewFunction = Callable[[Tensor], Tensor]


def view_chunks(
    video: dict[str, Any], device: torch.device | str, max_views: int
) -> Iterator[Tensor]:
    """Yield the K x C views of a video on a device in chunks of at most ``max_views``, 1 or more.

    On a CPU a chunk is at most 24 MiB, or one view. A video has ``frames`` uint8 (F, H, W, 3),
    ``positions`` int64 (K, T), ``offsets`` int64 (C, 2) and ``crop_size`` (height and width),
    as :class:`~sce_video.datasets.transforms.PackVideo` makes them. Views are uint8
    (n, T, S, S, 3), in the order clip 0 crop 0, clip 0 crop 1, ..., clip 1 crop 0.
    """
    if max_views < 1:
        raise ValueError(f"max_views must be at least 1, got {max_views}")
    on_cpu = torch.device(device).type == "cpu"
    if on_cpu:
        bytes_per_view = video["positions"].shape[1] * 3 * math.prod(video["crop_size"])
        max_views = min(max_views, max(1, _MAX_BYTES_ON_CPU // bytes_per_view))
    # Views are numbered clip by clip; the crops of a clip follow each other.
    total = len(video["positions"]) * len(video["offsets"])
    parts = [(start, min(start + max_views, total)) for start in range(0, total, max_views)]
    if on_cpu:
        yield from (cut_views(video, start, stop) for start, stop in parts)
    else:
        yield from _cut_on_device(video, device, parts)


def _cut_on_device(
    video: dict[str, Any], device: torch.device | str, parts: list[tuple[int, int]]
) -> Iterator[Tensor]:
    """Yield the views ``start`` to ``stop - 1`` of each part, by indexing on the device."""
    # Overlapping clips and crops share their frames: these cross the bus once, as uint8.
    names = "frames", "positions"
    frames, positions = (video[name].to(device, non_blocking=True) for name in names)
    offsets, (height, width) = video["offsets"].tolist(), video["crop_size"]
    for start, stop in parts:
        chunk = []
        for number in range(start, stop):
            clip, crop = divmod(number, len(offsets))
            top, left = offsets[crop]
            window = frames[:, top : top + height, left : left + width]
            chunk.append(window[positions[clip]])
        yield torch.stack(chunk)


def central_view(video: dict[str, Any]) -> int:
    """Index of the view of a one-view test: clip ``K // 2``, crop ``C // 2``."""
    clips, crops = len(video["positions"]), len(video["offsets"])
    return clips // 2 * crops + crops // 2


def rows_of_views(
    model: Any, batch: dict[str, Any], function: ViewFunction, max_views: int
) -> list[Tensor]:
    """The rows of all views of every video of a batch: N float32 tensors (views, C).

    A batch of :func:`sce_video.collate_views` has ``videos`` (frames, from which views are cut
    here, ``max_views`` of a video per forward pass) or ``inputs`` (views already cut; one forward
    pass per view, for all videos together). The model's ``data_preprocessor`` normalises them.
    """
    preprocessor = model.data_preprocessor
    if "videos" not in batch:
        inputs = preprocessor(batch, False)["inputs"]
        if torch.is_tensor(inputs):  # a recogniser's (N, V, 3, T, H, W)
            inputs = inputs.unbind(dim=1)
        # One forward pass for the n-th view of all samples of the batch.
        return list(torch.stack([function(view).float() for view in inputs], dim=1))
    rows = []
    for video in batch["videos"]:
        chunks = view_chunks(video, preprocessor.device, max_views)
        rows.append(torch.cat([function(preprocessor.normalise(c)).float() for c in chunks]))
    return rows


def row_function(
    model: Any, max_views: int = 30, precision: str = "float32", clips: bool = False
) -> tuple[str, RowFunction]:
    """The kind of rows that a model gives, and the function that computes them.

    "detection" is that of a model with a ``roi_head``, "recognition" with a ``cls_head``, otherwise
    "representation". In "bfloat16" and "float16" the network runs in autocast; ``max_views`` of a
    video per forward pass bound the device memory; ``clips`` gives representations of each clip.
    Raises ValueError: an unknown precision.
    """
    known = ("float32", "bfloat16", "float16")
    if precision not in known:
        raise ValueError(f"precision must be one of {', '.join(known)}: {precision!r}")
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
    """A row function: the mean representation h over all views of each video.

    With ``clips`` a row for each clip, the mean over its crops; ``counts`` says how many of each
    video (:func:`~sce_video.evaluation.rows.mean_of_clips`).
    """

    def function(model: Any, batch: dict[str, Any]) -> BatchRows:
        def represent(view: Tensor) -> Tensor:
            with torch.autocast(view.device.type, dtype, enabled=dtype != torch.float32):
                return model(inputs=[view], mode="tensor")[0]

        videos = rows_of_views(model, batch, represent, max_views)
        if clips:  # views are numbered clip by clip; those that were cut already have one crop
            crops = [len(video["offsets"]) for video in batch.get("videos", ())] or [1] * len(
                videos
            )
            pairs = zip(videos, crops, strict=True)
            parts = [views.unflatten(0, (-1, n)).mean(dim=1).cpu() for views, n in pairs]
            return BatchRows(torch.cat(parts), max(map(len, videos)), counts=[*map(len, parts)])
        # Videos may have different numbers of views, so each has its own mean.
        mean = torch.stack([views.mean(dim=0) for views in videos]).cpu()
        return BatchRows(mean, max(map(len, videos)))

    return function


def class_scores(max_views: int = 30, dtype: torch.dtype = torch.float32) -> RowFunction:
    """A row function: the class probabilities of each video.

    A row is the mean of the softmax vectors of all views (not the softmax of the mean logits);
    ``central`` is the softmax vector of the central view. Where G classifiers give logits
    (N, G, K), a row holds their softmax vectors one after the other, (G * K,).
    """

    def function(model: Any, batch: dict[str, Any]) -> BatchRows:
        def probabilities(view: Tensor) -> Tensor:
            with torch.autocast(view.device.type, dtype, enabled=dtype != torch.float32):
                logits = model(inputs=view.unsqueeze(1), mode="tensor", stage="head")
            # In float32 whatever the precision: the scores are summed over views.
            return logits.float().softmax(dim=-1).flatten(1)

        videos = rows_of_views(model, batch, probabilities, max_views)
        # A batch of views that were cut already does not tell clips from crops: the middle view.
        central = [central_view(video) for video in batch.get("videos", ())]
        central = central or [len(videos[0]) // 2] * len(videos)
        mean = torch.stack([video.mean(dim=0) for video in videos]).cpu()
        one = torch.stack([v[i] for v, i in zip(videos, central, strict=True)]).cpu()
        return BatchRows(mean, max(map(len, videos)), one)

    return function


def box_scores(dtype: torch.dtype = torch.float32) -> RowFunction:
    """A row function: the action scores of the boxes of every key frame."""

    def function(model: Any, batch: dict[str, Any]) -> BatchRows:
        counts = [len(boxes) for boxes in batch["boxes"]]
        if sum(counts) == 0:  # no box in any of these key frames
            return BatchRows(torch.empty(0, 0), 1, counts=counts)
        data = model.data_preprocessor(batch, False)
        with torch.autocast(data["inputs"].device.type, dtype, enabled=dtype != torch.float32):
            scores = model(**data, mode="tensor")
        return BatchRows(scores.float().cpu(), 1, counts=counts)

    return function


#: What can be done to a clip. "still" repeats its middle frame.
ALTERATIONS = ("shuffled", "reversed", "still")


def check_alterations(alterations: tuple[str, ...]) -> None:
    """Raise ValueError unless these are different entries of :data:`ALTERATIONS`, at least one."""
    unknown = sorted(set(alterations) - set(ALTERATIONS))
    if unknown or not alterations or len(set(alterations)) < len(alterations):
        raise ValueError(
            f"alterations must be different ones of {', '.join(ALTERATIONS)}, got {alterations}"
        )


def frame_order(alteration: str, num_frames: int, seed: int, clip: int = 0) -> np.ndarray:
    """Indices of the frames of a clip in the order in which the altered clip shows them.

    A shuffled clip has an order drawn uniformly from all but the original one. It depends on the
    arguments alone, the seed of the sample and the number of the clip in it, so on no batch, rank
    or number of workers. Returns (T,) int64. Raises ValueError: a clip of one frame, an unknown
    alteration.
    """
    check_alterations((alteration,))
    if num_frames < 2:
        raise ValueError(
            f"clips of {num_frames} frame have no order to change: the sense of time needs clips "
            "of 2 frames or more (num_frames of the step that samples the clips)"
        )
    frames = np.arange(num_frames)
    if alteration == "reversed":
        return frames[::-1].copy()
    if alteration == "still":
        return np.full(num_frames, num_frames // 2)
    # Not the seed plus the clip, which neighbouring samples would share.
    generator = np.random.default_rng(mix_seed(seed, clip))
    order = frames
    # Drawn again, not swapped: all other orders stay equally likely.
    while np.array_equal(order, frames):
        order = generator.permutation(num_frames)
    return order


def alter_batch(batch: dict[str, Any], alteration: str) -> dict[str, Any]:
    """A batch of :func:`sce_video.collate_views` whose clips show their frames in another order.

    Of samples with ``videos`` only the positions of the frames change, no frame is copied. The
    order of clip k of a sample is that of the sample's seed and k, see :func:`frame_order`.
    """
    seeds = [int(seed) for seed in batch["seed"]]

    def altered(frames: Tensor, seed: int, clip: int) -> Tensor:
        return frames[torch.from_numpy(frame_order(alteration, len(frames), seed, clip))]

    if "videos" in batch:
        videos = []
        for video, seed in zip(batch["videos"], seeds, strict=True):
            shown = [altered(clip, seed, k) for k, clip in enumerate(video["positions"])]
            videos.append({**video, "positions": torch.stack(shown)})
        return {**batch, "videos": videos}
    views = [
        torch.stack([altered(clip, seed, k) for clip, seed in zip(view, seeds, strict=True)])
        for k, view in enumerate(batch["inputs"])
    ]
    return {**batch, "inputs": views}


def with_alterations(function: RowFunction, alterations: Sequence[str]) -> RowFunction:
    """A row function whose rows are those of the unaltered and of all altered clips, side by side.

    Of rows (n, C) and A alterations (n, (1 + A) * C); :func:`split_alterations` takes them apart.
    """

    def joined(model: Any, batch: dict[str, Any]) -> BatchRows:
        # One after the other: of the views of an alteration one chunk is in memory.
        altered = (alter_batch(batch, name) for name in alterations)
        parts = [function(model, one) for one in (batch, *altered)]
        central = [part.central for part in parts if part.central is not None]
        return BatchRows(
            torch.cat([part.values for part in parts], dim=1),
            parts[0].num_views,
            torch.cat(central, dim=1) if central else None,
            parts[0].counts,
        )

    return joined


def with_network(function: RowFunction, other: nn.Module) -> RowFunction:
    """A row function whose rows are those of the tested network and of another one, side by side.

    Videos are decoded once for both. :func:`split_networks` takes the rows apart.
    """

    def joined(model: Any, batch: dict[str, Any]) -> BatchRows:
        own, others = function(model, batch), function(other, batch)
        return own._replace(values=torch.cat([own.values, others.values], dim=1))

    return joined


def split_networks(rows: Rows) -> tuple[Rows, Rows]:
    """Rows of :func:`with_network` as those of the tested network and of the other one."""
    clips = (None, None) if rows.clips is None else split_networks(rows.clips)
    first, second = (values.contiguous() for values in rows.values.chunk(2, dim=1))
    return replace(rows, values=first, clips=clips[0]), replace(rows, values=second, clips=clips[1])


def split_alterations(rows: Rows, alterations: Sequence[str]) -> Rows:
    """Rows of :func:`with_alterations` as unaltered values and ``altered`` ones by name."""
    # Side by side in the columns, so collection and ranks need to know of one matrix only.
    first, *others = rows.values.chunk(1 + len(alterations), dim=1)
    central = None if rows.central is None else rows.central[:, : first.shape[1]]
    altered = dict(zip(alterations, others, strict=True))
    clips = rows.clips
    if clips is not None:
        clips = replace(clips, values=clips.values[:, : first.shape[1]].contiguous())
    values = first.contiguous()
    return replace(rows, values=values, central=central, altered=altered, clips=clips)
