"""Many views of a video, made on the device from frames that were shipped once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from sce_video.datasets.transforms import cut_views

# The C library gives larger blocks back to the system each time, which then clears every page again:
# on a CPU cutting 30 views of 8 x 256 x 256 at once takes six times as long as 10 at a time.
_MAX_BYTES_ON_CPU = 24 * 2**20

#: From normalised views (n, 3, T, H, W) to one row each, (n, C).
ViewFunction = Callable[[Tensor], Tensor]


def view_chunks(
    video: dict[str, Any], device: torch.device | str, max_views: int
) -> Iterator[Tensor]:
    """The K x C views of a video, at most ``max_views`` at a time; on a CPU at most 24 MiB, or one.

    The frames travel to the device once; a chunk is all that is held of the views.

    Args:
        video: ``frames`` uint8 (F, H, W, 3), ``positions`` int64 (K, T), ``offsets`` int64 (C, 2)
            and ``crop_size`` S, as :class:`~sce_video.datasets.transforms.PackVideo` makes them.
        device: Where the views shall be.
        max_views: 1 or more.

    Yields:
        uint8 (n, T, S, S, 3), clip 0 crop 0, clip 0 crop 1, ..., clip 1 crop 0, ...
    """
    if max_views < 1:
        raise ValueError(f"max_views must be at least 1, got {max_views}")
    on_cpu = torch.device(device).type == "cpu"
    if on_cpu:
        bytes_per_view = video["positions"].shape[1] * 3 * video["crop_size"] ** 2
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
    """The views of each part, first to one past the last, by indexing on the device."""
    frames = video["frames"].to(device, non_blocking=True)
    positions = video["positions"].to(device, non_blocking=True)
    offsets, size = video["offsets"].tolist(), video["crop_size"]
    for start, stop in parts:
        chunk = []
        for number in range(start, stop):
            clip, crop = divmod(number, len(offsets))
            top, left = offsets[crop]
            window = frames[:, top : top + size, left : left + size]
            chunk.append(window[positions[clip]])
        yield torch.stack(chunk)


def central_view(video: dict[str, Any]) -> int:
    """The view that stands for a 1-view test: clip ``K // 2``, crop ``C // 2``."""
    clips, crops = len(video["positions"]), len(video["offsets"])
    return clips // 2 * crops + crops // 2


def rows_of_views(
    model: Any, batch: dict[str, Any], function: ViewFunction, max_views: int
) -> list[Tensor]:
    """Apply a function to every view of every video of a batch.

    Args:
        model: Its ``data_preprocessor`` normalises and knows the device.
        batch: What :func:`sce_video.collate_views` returns, of either kind.
        function: From views (n, 3, T, H, W) to (n, C).
        max_views: Views of one video that go through the network at a time, where the batch
            holds ``videos``; whole views of the batch where it holds ``inputs``.

    Returns:
        A float32 tensor (number of views, C) for each of the N videos.
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
