"""Rows of the same samples with altered clips: from frames that are decoded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from mmengine.evaluator import BaseMetric
from torch import Tensor

from sce_video.datasets.samplers import mix_seed
from sce_video.evaluation.multi_view import BatchRows, RowFunction
from sce_video.evaluation.rows import Rows

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
    arguments alone, so on no batch, rank or number of workers.

    Args:
        alteration: One of :data:`ALTERATIONS`.
        num_frames: T, at least 2.
        seed: Seed of the sample.
        clip: Number of the clip in the sample; each has an order of its own.

    Returns:
        (T,) int64.

    Raises:
        ValueError: a clip of one frame, an unknown alteration.
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
    generator = np.random.default_rng(mix_seed(seed, clip))
    order = frames
    while np.array_equal(order, frames):
        order = generator.permutation(num_frames)
    return order


def needed_alterations(metrics: Iterable[BaseMetric]) -> tuple[str, ...]:
    """The alterations that metrics need (``alterations`` of each), each once."""
    return tuple(
        dict.fromkeys(name for metric in metrics for name in getattr(metric, "alterations", ()))
    )


def alter_batch(batch: dict[str, Any], alteration: str) -> dict[str, Any]:
    """A batch of :func:`sce_video.collate_views` whose clips show their frames in another order.

    Of samples with ``videos`` only the positions of the frames change, no frame is copied. The
    order of clip k of a sample is that of the sample's seed and k, see
    :func:`~sce_video.evaluation.altered_clips.frame_order`.

    Raises:
        ValueError: clips of one frame.
    """
    seeds = [int(seed) for seed in batch["seed"]]
    if "videos" in batch:
        videos = [
            {**video, "positions": video["positions"].gather(1, _orders(video, alteration, seed))}
            for video, seed in zip(batch["videos"], seeds, strict=True)
        ]
        return {**batch, "videos": videos}
    views = []
    for number, view in enumerate(batch["inputs"]):
        orders = [frame_order(alteration, view.shape[1], seed, number) for seed in seeds]
        pairs = zip(view, orders, strict=True)
        views.append(torch.stack([clip[torch.from_numpy(order)] for clip, order in pairs]))
    return {**batch, "inputs": views}


def _orders(video: dict[str, Any], alteration: str, seed: int) -> Tensor:
    clips, frames = video["positions"].shape
    orders = [torch.from_numpy(frame_order(alteration, frames, seed, k)) for k in range(clips)]
    return torch.stack(orders)


def with_alterations(function: RowFunction, alterations: Sequence[str]) -> RowFunction:
    """A row function whose rows are those of the unaltered and of all altered clips, side by side.

    Args:
        function: Rows (n, C) of a batch, one for each sample.
        alterations: A of them.

    Returns:
        A function whose rows are (n, (1 + A) * C); :func:`split_alterations` takes them apart.
    """

    def joined(model: Any, batch: dict[str, Any]) -> BatchRows:
        altered = (alter_batch(batch, name) for name in alterations)
        parts = [function(model, one) for one in (batch, *altered)]
        central = [part.central for part in parts if part.central is not None]
        return BatchRows(
            torch.cat([part.values for part in parts], dim=1),
            parts[0].num_views,
            torch.cat(central, dim=1) if central else None,
        )

    return joined


def split_alterations(rows: Rows, alterations: Sequence[str]) -> Rows:
    """Rows of :func:`with_alterations` as unaltered values and ``altered`` ones by name."""
    first, *others = rows.values.chunk(1 + len(alterations), dim=1)
    central = None if rows.central is None else rows.central[:, : first.shape[1]]
    altered = dict(zip(alterations, others, strict=True))
    return replace(rows, values=first.contiguous(), central=central, altered=altered)
