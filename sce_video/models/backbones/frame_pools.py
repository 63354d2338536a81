"""Motion for image networks: pooling the features of the frames of a clip."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sce_video.models.backbones.common import check_view
from sce_video.options.connect import FRAME_POOLS

#: Number of parts of a clip that ``concat`` keeps in order. With clips of 4 frames, these are the
#: frames.
_PARTS_IN_ORDER = 4
#: Parts that may follow the mean in the name of a pool, in any order.
_MOTION = tuple(dict.fromkeys(part for pool in FRAME_POOLS for part in pool.split("+")[1:]))


def check_frame_pool(frame_pool: str) -> int:
    """Return the number of parts of the representation, each as wide as the features.

    Besides :data:`~sce_video.options.connect.FRAME_POOLS`, the mean may be followed by any
    different motions, from which the representations of several pools can be taken.

    Raises:
        ValueError: If there is no such way to pool.
    """
    first, *motion = frame_pool.split("+")
    known = frame_pool == "concat" or first == "mean"
    if not known or len({*motion}) < len(motion) or not {*motion} <= {*_MOTION}:
        raise ValueError(
            f"frame_pool must be one of {', '.join(FRAME_POOLS)}, got {frame_pool!r:.60}"
        )
    return _PARTS_IN_ORDER if frame_pool == "concat" else 1 + len(motion)


def fold_frames(view: Tensor) -> Tensor:
    """Fold the frames of clips into the batch: (N, C, T, H, W) to (N T, C, H, W), clip by clip.

    Raises:
        ValueError: If the view has another number of dimensions.
    """
    check_view(view)
    return view.transpose(1, 2).flatten(0, 1)


def pool_frames(features: Tensor, frame_pool: str, view: Tensor) -> Tensor:
    """Change the features of frames so that their mean over time and space is the representation.

    With f_t, the features of frame t averaged over space, a ``+`` appends how they change:

    - ``absdiff``: the mean of ``|f_(t+1) - f_t|``, which shows how much each feature changes. A
      frame that repeats the frame before it is left out of this mean, because it shows no later
      moment. Such frames occur if the footage repeats frames or has fewer frames than the clip;
    - ``std``: the standard deviation of f_t over the frames;
    - ``delta``: the mean of the last quarter of the frames minus the mean of the first quarter,
      which shows in which direction each feature changes.

    ``concat`` keeps the order instead: the means of the four quarters of the clip, one after the
    other, which are the frames if there are four.

    The result is the same at all positions, except for the mean. A head that averages over time and
    space, a linear probe and an export therefore see all parts without special code. A clip of one
    frame has no motion, so these parts are 0.

    Args:
        features: (N, C, T, H, W).
        frame_pool: A pool that :func:`check_frame_pool` accepts.
        view: The frames (N, 3, T, H', W').

    Returns:
        (N, parts * C, T, H, W), or the features themselves for ``mean``.
    """
    if frame_pool == "mean":
        return features
    changes = (view[:, :, 1:] != view[:, :, :-1]).flatten(3).any(3).any(1)
    parts = _parts(features.mean((3, 4)), frame_pool, changes)
    constant = [part[:, :, None, None, None].expand(-1, -1, *features.shape[2:]) for part in parts]
    return torch.cat(constant if frame_pool == "concat" else [features, *constant], 1)


def pool_stored_frames(frames: Tensor, frame_pool: str) -> Tensor:
    """Compute the representation of clips from the stored features of their frames.

    A frame with exactly the features of the frame before it counts as its repetition, see
    :func:`pool_frames`.

    Args:
        frames: (N, C, T), averaged over space.
        frame_pool: A pool that :func:`check_frame_pool` accepts.

    Returns:
        (N, parts * C).
    """
    parts = _parts(frames, frame_pool, (frames.diff(dim=2) != 0).any(1))
    return torch.cat(parts if frame_pool == "concat" else [frames.mean(2), *parts], 1)


def _parts(frames: Tensor, frame_pool: str, changes: Tensor) -> list[Tensor]:
    """Compute the parts (N, C) of a representation that are not the mean.

    Args:
        frames: (N, C, T), features of frames.
        frame_pool: Name of the pool.
        changes: (N, T - 1), whether a frame differs from the frame before it.
    """
    if frame_pool == "concat":
        return [*F.adaptive_avg_pool1d(frames, _PARTS_IN_ORDER).unbind(2)]
    return [_motion(frames, name, changes) for name in frame_pool.split("+")[1:]]


def _motion(frames: Tensor, name: str, changes: Tensor) -> Tensor:
    """Compute one part of the motion (N, C) of the features of frames (N, C, T)."""
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
    """Compute the features of the temporal positions before frames are pooled.

    Args:
        backbone: Network whose features are (N, C, T', H', W').
        view: (N, 3, T, H, W).

    Returns:
        (N, T', C), averaged over space.

    Raises:
        ValueError: If the network's features have no temporal positions.
    """
    # Only forward() is compiled, so it is used if it does the same.
    features = (backbone if frame_parts(backbone) == 1 else backbone.frame_maps)(view)
    if features.ndim != 5:
        raise ValueError(
            "objective 'frames' needs features of temporal positions (N, C, T, H, W), got "
            f"{tuple(features.shape)}. Use 'cosine' or 'relations' with this network."
        )
    return features.mean((3, 4)).transpose(1, 2)


def frame_parts(backbone: Any) -> int:
    """Return the ratio of the size of a representation to the size of a frame's features."""
    return check_frame_pool(getattr(backbone, "frame_pool", "mean"))
