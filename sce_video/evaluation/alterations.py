"""Row functions that join the rows of altered clips or of two networks, and their inverses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sce_video.datasets.pipeline import PackedSample
from sce_video.datasets.video_dataset import mix_seed
from sce_video.evaluation.rows import Rows
from sce_video.inference.multi_view import Batch, BatchRows, RowFunction

#: Possible alterations of a clip. "still" repeats its middle frame.
ALTERATIONS = ("shuffled", "reversed", "still")


def check_alterations(alterations: tuple[str, ...]) -> None:
    """Raise ValueError unless there are alterations, all different and in :data:`ALTERATIONS`."""
    unknown = sorted(set(alterations) - set(ALTERATIONS))
    if unknown or not alterations or len(set(alterations)) < len(alterations):
        raise ValueError(
            f"alterations must be distinct and among {', '.join(ALTERATIONS)}, got {alterations}"
        )


def frame_order(alteration: str, num_frames: int, seed: int, clip: int = 0) -> np.ndarray:
    """Return the order of frames, (T,) int64 indices, in which an altered clip shows them.

    The order of a shuffled clip is drawn uniformly from all orders except the original. It depends
    only on the arguments, which include the sample's seed and the clip's number, so it is the same
    in any batch, on any rank and with any number of workers. ValueError is raised if the clip has
    one frame or the alteration is unknown.
    """
    check_alterations((alteration,))
    if num_frames < 2:
        raise ValueError(
            f"clips of {num_frames} frame have no order to change. Set num_frames to 2 or more in "
            "the step that samples the clips"
        )
    frames = np.arange(num_frames)
    if alteration == "reversed":
        return frames[::-1].copy()
    if alteration == "still":
        return np.full(num_frames, num_frames // 2)
    # Mix the seed and the clip's number instead of adding them, because neighbouring samples could
    # have the same sum.
    generator = np.random.default_rng(mix_seed(seed, clip))
    order = frames
    # Draw again instead of swapping, so that all other orders stay equally likely.
    while np.array_equal(order, frames):
        order = generator.permutation(num_frames)
    return order


def alter_batch(batch: Batch, alteration: str) -> Batch:
    """Return a batch of :func:`sce_video.collate_views` with the frames of its clips reordered.

    For samples with ``videos``, only the positions of the frames change, and no frame is copied.
    The order in clip k depends on the sample's seed and k (see :func:`frame_order`).
    """
    seeds = [int(seed) for seed in batch["seed"]]

    def altered(frames: Tensor, seed: int, clip: int) -> Tensor:
        return frames[torch.from_numpy(frame_order(alteration, len(frames), seed, clip))]

    if "videos" in batch:
        videos: list[PackedSample] = []
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
    """Return a row function that joins the rows of unaltered and of all altered clips.

    Rows (n, C) and A alterations give (n, (1 + A) * C). :func:`split_alterations` separates them.
    """

    def joined(model: Any, batch: Batch) -> BatchRows:
        # Process the alterations one by one, so that only one alteration's views are in memory.
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
    """Return a row function that joins the rows of the tested network and of another network.

    Videos are decoded once for both. :func:`split_networks` separates the rows.
    """

    def joined(model: Any, batch: Batch) -> BatchRows:
        own, others = function(model, batch), function(other, batch)
        return own._replace(values=torch.cat([own.values, others.values], dim=1))

    return joined


def split_networks(rows: Rows) -> tuple[Rows, Rows]:
    """Split rows of :func:`with_network` into the rows of the tested and the other network."""
    clips = (None, None) if rows.clips is None else split_networks(rows.clips)
    first, second = (values.contiguous() for values in rows.values.chunk(2, dim=1))
    return replace(rows, values=first, clips=clips[0]), replace(rows, values=second, clips=clips[1])


def split_alterations(rows: Rows, alterations: Sequence[str]) -> Rows:
    """Split rows of :func:`with_alterations` into unaltered values and altered values by name."""
    # Keep the original and the altered rows in one matrix, so that collecting rows over ranks needs
    # no special case.
    first, *others = rows.values.chunk(1 + len(alterations), dim=1)
    central = None if rows.central is None else rows.central[:, : first.shape[1]]
    altered = dict(zip(alterations, others, strict=True))
    clips = rows.clips
    if clips is not None:
        clips = replace(clips, values=clips.values[:, : first.shape[1]].contiguous())
    values = first.contiguous()
    return replace(rows, values=values, central=central, altered=altered, clips=clips)
