"""Cut many views of a video on the device, from frames transferred once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from sce_video.datasets.transforms import crop_sides, cut_views

# malloc returns larger blocks to the system after each use, and the system zeroes every page again:
# on a CPU cutting 30 views of 8 x 256 x 256 at once takes six times as long as 10 at a time.
_MAX_BYTES_ON_CPU = 24 * 2**20

#: Maps normalised views (n, 3, T, H, W) to one row each, (n, C).
ViewFunction = Callable[[Tensor], Tensor]


def view_chunks(
    video: dict[str, Any], device: torch.device | str, max_views: int
) -> Iterator[Tensor]:
    """Yield the K x C views of a video in chunks of at most ``max_views``.

    On a CPU a chunk is at most 24 MiB, or one view. The frames are copied to the device once; of
    the views only one chunk is in memory.

    Args:
        video: ``frames`` uint8 (F, H, W, 3), ``positions`` int64 (K, T), ``offsets`` int64 (C, 2)
            and ``crop_size`` (S, or height and width), as
            :class:`~sce_video.datasets.transforms.PackVideo` makes them.
        device: Device of the views.
        max_views: 1 or more.

    Yields:
        uint8 (n, T, S, S, 3) in the order clip 0 crop 0, clip 0 crop 1, ..., clip 1 crop 0, ...

    Raises:
        ValueError: ``max_views`` below 1.
    """
    if max_views < 1:
        raise ValueError(f"max_views must be at least 1, got {max_views}")
    on_cpu = torch.device(device).type == "cpu"
    if on_cpu:
        bytes_per_view = video["positions"].shape[1] * 3 * math.prod(crop_sides(video))
        max_views = min(max_views, max(1, _MAX_BYTES_ON_CPU // bytes_per_view))
    total = len(video["positions"]) * len(video["offsets"])
    parts = [(start, min(start + max_views, total)) for start in range(0, total, max_views)]
    if on_cpu:
        for start, stop in parts:
            yield cut_views(video, start, stop)
    else:
        yield from _cut_on_device(video, device, parts)


def _cut_on_device(
    video: dict[str, Any], device: torch.device | str, parts: list[tuple[int, int]]
) -> Iterator[Tensor]:
    """Yield the views ``start`` to ``stop - 1`` of each part, by indexing on the device."""
    frames = video["frames"].to(device, non_blocking=True)
    positions = video["positions"].to(device, non_blocking=True)
    offsets, (height, width) = video["offsets"].tolist(), crop_sides(video)
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

    Args:
        model: Its ``data_preprocessor`` normalises the views and names the device.
        batch: A batch of :func:`sce_video.collate_views`, with ``videos`` (frames, from which views
            are cut here) or with ``inputs`` (views already cut).
        function: Maps views (n, 3, T, H, W) to rows (n, C).
        max_views: Views of a video per forward pass, for a batch with ``videos``; a batch with
            ``inputs`` takes one forward pass per view, for all videos together.
    """
    if "videos" not in batch:
        inputs = model.data_preprocessor(batch, False)["inputs"]
        if torch.is_tensor(inputs):  # a recogniser's (N, V, 3, T, H, W)
            inputs = inputs.unbind(dim=1)
        rows = torch.stack([function(view).float() for view in inputs], dim=1)
        return list(rows)
    preprocessor = model.data_preprocessor
    return [
        torch.cat(
            [
                function(preprocessor.normalise(chunk)).float()
                for chunk in view_chunks(video, preprocessor.device, max_views)
            ]
        )
        for video in batch["videos"]
    ]
