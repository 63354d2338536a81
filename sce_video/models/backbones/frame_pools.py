"""Pools that turn the features of a clip's frames into one representation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sce_video.models.backbones.common import check_view
from sce_video.options.connect import FRAME_POOLS

#: Number of parts of a clip that ``concat`` keeps in order. With 4 frames, each frame is a part.
_PARTS_IN_ORDER = 4
#: Parts that may follow the mean in a pool's name, in any order
_MOTION = tuple(dict.fromkeys(part for pool in FRAME_POOLS for part in pool.split("+")[1:]))
#: Number of intervals per clip, rows per frame and columns per frame over which ``energy`` averages
ENERGY_CELLS = 7
#: Norm of ``energy`` as a fraction of the norm of the mean. On J-HMDB, this fraction does not
#: change kNN accuracy, but larger ones lower it.
_ENERGY_LENGTH = 0.5
#: Fraction of the features' size that is added to the mean change before dividing by it. It limits
#: the noise of clips without motion.
_LITTLE_CHANGE = 0.05


def pooled_channels(frame_pool: str, channels: int) -> int:
    """Return the size of a clip's representation if its frame features have C channels.

    In addition to :data:`~sce_video.options.connect.FRAME_POOLS`, the name may combine the mean
    with any set of motion parts, so that the representations of several pools can be derived.

    Args:
        frame_pool: Name of the pool.
        channels: Size C of a frame feature.

    Raises:
        ValueError: If there is no such pool.
    """
    parts, more = _sizes(frame_pool)
    return parts * channels + more


def frame_channels(frame_pool: str, channels: int) -> int:
    """Return the size of a frame feature, given the size of the representation.

    Raises:
        ValueError: If there is no such pool.
    """
    parts, more = _sizes(frame_pool)
    return (channels - more) // parts


def _sizes(frame_pool: str) -> tuple[int, int]:
    """Return how many parts are as wide as a frame feature, and the number of other channels."""
    first, *motion = str(frame_pool).split("+")  # the config of a file may name anything
    known = frame_pool == "concat" or first == "mean"
    if not known or len({*motion}) < len(motion) or not {*motion} <= {*_MOTION}:
        raise ValueError(
            f"frame_pool must be one of {', '.join(FRAME_POOLS)}, got {frame_pool!r:.60}"
        )
    if frame_pool == "concat":
        return _PARTS_IN_ORDER, 0
    has_energy = "energy" in motion
    return 1 + len(motion) - has_energy, ENERGY_CELLS**3 * has_energy


def fold_frames(view: Tensor) -> Tensor:
    """Fold the frames of clips into the batch: (N, C, T, H, W) to (N T, C, H, W), clip by clip.

    Raises:
        ValueError: If the view does not have five dimensions.
    """
    check_view(view)
    return view.transpose(1, 2).flatten(0, 1)


def last_and_fine(stages: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Select the stage maps from which a representation with motion is computed.

    Args:
        stages: Maps (..., H, W) after each stage, with decreasing size.

    Returns:
        The maps of the last stage, and the maps of the last stage with at least
        :data:`ENERGY_CELLS` rows and columns.
    """
    fine = None
    for maps in stages:
        if fine is None or min(maps.shape[-2:]) >= ENERGY_CELLS:
            fine = maps
    assert fine is not None
    return maps, fine


def maps_of_frames(stages: Iterable[Tensor], view: Tensor) -> tuple[Tensor, Tensor]:
    """Select an image network's stage maps by :func:`last_and_fine`, as (N, C, T, H, W).

    Args:
        stages: Maps (N T, C, H, W) of the frames after each stage, with decreasing size.
        view: The frames (N, 3, T, H', W').
    """
    maps, fine = last_and_fine(stages)
    return unfold_frames(maps, view), unfold_frames(fine, view)


def unfold_frames(maps: Tensor, view: Tensor) -> Tensor:
    """Undo :func:`fold_frames` for the maps of a view: (N T, C, H, W) to (N, C, T, H, W)."""
    return maps.unflatten(0, (view.shape[0], view.shape[2])).transpose(1, 2)


def pool_frames(features: Tensor, frame_pool: str, view: Tensor, fine: Tensor) -> Tensor:
    """Change frame features so that their mean over time and space is the clip's representation.

    Let f_t be the features of frame t, averaged over space. Each ``+`` appends a part that
    describes how they change:

    - ``absdiff``: the mean of ``|f_(t+1) - f_t|``, which shows how much each feature changes. A
      frame that repeats the frame before it is left out of this mean, because it does not show a
      later moment. Such frames occur if the footage repeats frames or has fewer frames than the
      clip.
    - ``std``: the standard deviation of f_t over the frames.
    - ``delta``: the mean of the last quarter of the frames minus the mean of the first quarter,
      which shows in which direction each feature changes.
    - ``energy``: how much the features change at each place and time (:func:`motion_energy`).

    ``concat`` keeps the order of the frames instead. It joins the means of the clip's four
    quarters, which are the frames themselves if there are four.

    All parts except the mean are the same at all positions. A head that averages over time and
    space, a linear probe and an export therefore use all parts without special code. A clip of one
    frame has no motion, so these parts are 0.

    Args:
        features: (N, C, T, H, W).
        frame_pool: A pool that :func:`pooled_channels` accepts.
        view: The frames (N, 3, T, H', W').
        fine: Maps (N, C', T, h, w) for ``energy``, or the view if the network has no maps.

    Returns:
        (N, C', T, H, W), where C' is :func:`pooled_channels`. ``mean`` returns the features.
    """
    if frame_pool == "mean":
        return features
    changes = _changes(view)
    energy = None
    if "energy" in frame_pool:
        energy = motion_energy(fine, features.mean((2, 3, 4)))
    parts = _parts(features.mean((3, 4)), frame_pool, changes, energy)
    constant = [part[:, :, None, None, None].expand(-1, -1, *features.shape[2:]) for part in parts]
    return torch.cat(constant if frame_pool == "concat" else [features, *constant], 1)


def _changes(view: Tensor) -> Tensor:
    """Return whether each frame of a view differs from the frame before it, (N, T - 1)."""
    return (view[:, :, 1:] != view[:, :, :-1]).flatten(3).any(3).any(1)


def motion_energy(maps: Tensor, mean: Tensor) -> Tensor:
    """Compute where and when the features of clips change.

    The absolute differences of neighbouring frames are averaged over channels, over 7 intervals of
    the clip, and over 7 x 7 cells of the frame. The result is each cell's share of the total
    change, scaled to half the norm of ``mean``. It distinguishes motions that global averages of
    features cannot, such as hand paths (docs/results.md). Motion-energy images (Bobick and Davis
    2001) do the same with thresholded pixel differences.

    Args:
        maps: (N, C', T, h, w), features of the frames or their pixels.
        mean: (N, C), mean features of the clips.

    Returns:
        (N, 343), interval by interval and row by row. The result is 0 for clips of one frame.
    """
    if maps.shape[2] == 1:
        return mean.new_zeros(len(mean), ENERGY_CELLS**3)
    change = maps.diff(dim=2).abs().mean(1)
    # Average with three matrices, because ONNX does not support adaptive_avg_pool3d.
    intervals, rows, columns = (_averages(size, maps) for size in change.shape[1:])
    energy = torch.einsum("nthw,it,jh,kw->nijk", change, intervals, rows, columns).flatten(1)
    little = _LITTLE_CHANGE * maps.abs().mean((1, 2, 3, 4)) + torch.finfo(maps.dtype).tiny
    share = energy / (energy.mean(1) + little)[:, None]
    length = mean.norm(dim=1, keepdim=True) / math.sqrt(ENERGY_CELLS**3)
    return (_ENERGY_LENGTH * length * share).to(mean.dtype)


def _averages(size: int, like: Tensor) -> Tensor:
    """Return the matrix (7, size) that averages to 7 cells like ``adaptive_avg_pool1d``."""
    cells = torch.arange(ENERGY_CELLS, device=like.device)[:, None]
    places = torch.arange(size, device=like.device)
    begins_before_the_end = places * ENERGY_CELLS < (cells + 1) * size
    ends_after_the_start = (places + 1) * ENERGY_CELLS > cells * size
    inside = (begins_before_the_end & ends_after_the_start).to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


@dataclass(frozen=True, eq=False)
class StoredClips:
    """Stored clip features, from which the representations of all pools are computed.

    Attributes:
        frames: (..., T, C), features of the T frames in each clip, averaged over space.
        energy: (..., 343), :func:`motion_energy` of each clip.
        changes: (..., T - 1), 1 for each frame that differs from the frame before it, else 0. The
            features cannot replace it, because they may differ by rounding.
    """

    frames: Tensor
    energy: Tensor
    changes: Tensor

    @classmethod
    def from_rows(cls, rows: Tensor, num_frames: int) -> StoredClips:
        """Undo :meth:`rows` for clips with ``num_frames`` frames."""
        more = [ENERGY_CELLS**3, num_frames - 1]
        frames, energy, changes = rows.split([rows.shape[-1] - sum(more), *more], dim=-1)
        return cls(frames.unflatten(-1, (num_frames, -1)), energy, changes)

    def rows(self) -> Tensor:
        """Return one vector for each clip, (..., T C + 343 + T - 1)."""
        return torch.cat([self.frames.flatten(-2), self.energy, self.changes], dim=-1)

    def pooled(self, frame_pool: str) -> Tensor:
        """Compute the representations (..., C'), where C' is :func:`pooled_channels`."""
        pooled_channels(frame_pool, 1)  # raises ValueError for an unknown pool
        clips = self.frames.flatten(0, -3).transpose(1, 2)  # (N, C, T)
        changes = self.changes.flatten(0, -2)
        parts = _parts(clips, frame_pool, changes, self.energy.flatten(0, -2))
        whole = torch.cat(parts if frame_pool == "concat" else [clips.mean(2), *parts], 1)
        return whole.unflatten(0, self.frames.shape[:-2])


def _parts(frames: Tensor, frame_pool: str, changes: Tensor, energy: Tensor | None) -> list[Tensor]:
    """Compute all parts (N, C) of a representation except the mean.

    Args:
        frames: (N, C, T), features of frames.
        frame_pool: Name of the pool.
        changes: (N, T - 1), whether a frame differs from the frame before it, as bools or as 1 and
            0.
        energy: (N, 343), or None if the pool does not contain it.
    """
    if frame_pool == "concat":
        return [*F.adaptive_avg_pool1d(frames, _PARTS_IN_ORDER).unbind(2)]
    found = []
    for name in frame_pool.split("+")[1:]:
        if name == "energy":
            assert energy is not None
            found.append(energy)
        else:
            found.append(_motion(frames, name, changes))
    return found


def _motion(frames: Tensor, name: str, changes: Tensor) -> Tensor:
    """Compute one motion part (N, C) from the features of frames (N, C, T)."""
    if frames.shape[2] == 1:
        return torch.zeros_like(frames[:, :, 0])
    if name == "absdiff":
        weights = changes.to(frames.dtype) / changes.sum(1, keepdim=True).clamp(min=1)
        return (frames.diff(dim=2).abs() * weights[:, None]).sum(2)
    if name == "std":
        return frames.std(2, correction=0)
    quarter = max(1, frames.shape[2] // 4)
    return frames[:, :, -quarter:].mean(2) - frames[:, :, :quarter].mean(2)


def frame_features(backbone: Any, view: Tensor) -> Tensor:
    """Compute the features of temporal positions, before frames are pooled.

    Args:
        backbone: Network whose features are (N, C, T', H', W').
        view: (N, 3, T, H, W).

    Returns:
        (N, T', C), averaged over space.

    Raises:
        ValueError: If the network's features have no temporal positions.
    """
    # Prefer forward() if it computes the same features, because it may be compiled.
    pools = getattr(backbone, "frame_pool", "mean") != "mean"
    features = backbone.frame_maps(view)[0] if pools else backbone(view)
    if features.ndim != 5:
        raise ValueError(
            "objective 'frames' needs features of temporal positions, (N, C, T, H, W), got "
            f"{tuple(features.shape)}. Use 'cosine' or 'relations' with this network."
        )
    return features.mean((3, 4)).transpose(1, 2)


def stored_clips(backbone: Any, view: Tensor) -> StoredClips:
    """Compute the features of a view from which the representations of all pools are derived.

    Args:
        backbone: Network with the option ``frame_pool``.
        view: (N, 3, T, H, W).
    """
    features, fine = backbone.frame_maps(view)
    energy = motion_energy(fine, features.mean((2, 3, 4)))
    frames = features.mean((3, 4)).transpose(1, 2)
    return StoredClips(frames, energy, _changes(view).to(frames.dtype))


def features_of_frame(backbone: Any) -> int:
    """Return the size of a network's features for a single frame, before pooling."""
    return frame_channels(getattr(backbone, "frame_pool", "mean"), backbone.out_channels)
