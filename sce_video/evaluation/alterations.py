"""Row functions of altered clips, or of two networks, side by side; and their rows taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sce_video.datasets.video_dataset import mix_seed
from sce_video.evaluation.rows import Rows
from sce_video.inference.multi_view import BatchRows, RowFunction

#: What can be done to a clip. "still" repeats its middle frame.
ALTERATIONS = ("shuffled", "reversed", "still")


def check_alterations(alterations: tuple[str, ...]) -> None:
    """Raise ValueError unless these are different entries of :data:`ALTERATIONS`, at least one."""
    unknown = sorted(set(alterations) - set(ALTERATIONS))
    if unknown or not alterations or len(set(alterations)) < len(alterations):
        raise ValueError(
            f"alterations must be distinct and among {', '.join(ALTERATIONS)}, got {alterations}"
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
            f"clips of {num_frames} frame have no order to change. Set num_frames to 2 or more in "
            "the step that samples the clips"
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
