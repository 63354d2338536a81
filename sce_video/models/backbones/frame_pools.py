"""Motion for image networks: pooling the features of the frames of a clip."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sce_video.options.connect import FRAME_POOLS

#: What may follow the mean in the name of a pool, in any order.
_MOTION = tuple(dict.fromkeys(part for pool in FRAME_POOLS for part in pool.split("+")[1:]))


def check_frame_pool(frame_pool: str) -> int:
    """Return the number of parts of the representation, each as wide as the features.

    Besides :data:`~sce_video.options.connect.FRAME_POOLS`, the mean may be followed by any
    different motions, from which the representations of several pools can be taken.

    Raises:
        ValueError: If there is no such way to pool.
    """
    first, *motion = frame_pool.split("+")
    if first != "mean" or len({*motion}) < len(motion) or not {*motion} <= {*_MOTION}:
        raise ValueError(
            f"frame_pool must be one of {', '.join(FRAME_POOLS)}, got {frame_pool!r:.60}"
        )
    return 1 + len(motion)


def with_motion(features: Tensor, frame_pool: str) -> Tensor:
    """Append how the features of the frames change, so that their mean is the representation.

    Let f_t be the features of frame t, averaged over space. The appended parts are

    - ``absdiff``: the mean of ``|f_(t+1) - f_t|``, which shows how much each feature changes;
    - ``std``: the standard deviation of f_t over the frames;
    - ``delta``: the mean of the last quarter of the frames minus the mean of the first quarter,
      which shows in which direction each feature changes.

    They are the same at all positions. A head that averages over time and space, a linear probe and
    an export therefore see mean and motion without special code. A clip of one frame has no motion,
    so these parts are 0.

    Args:
        features: (N, C, T, H, W).
        frame_pool: A pool that :func:`check_frame_pool` accepts.

    Returns:
        (N, parts * C, T, H, W), or the features themselves for ``mean``.
    """
    if frame_pool == "mean":
        return features
    frames = features.mean((3, 4))
    shape = features.shape
    parts = [_motion(frames, name) for name in frame_pool.split("+")[1:]]
    return torch.cat((features, *(x[:, :, None, None, None].expand(shape) for x in parts)), 1)


def _motion(frames: Tensor, name: str) -> Tensor:
    """Compute one part of the motion (N, C) of the features of frames (N, C, T)."""
    if frames.shape[2] == 1:
        return torch.zeros_like(frames[:, :, 0])
    if name == "absdiff":
        return frames.diff(dim=2).abs().mean(2)
    if name == "std":
        return frames.std(2, correction=0)
    quarter = max(1, frames.shape[2] // 4)
    return frames[:, :, -quarter:].mean(2) - frames[:, :, :quarter].mean(2)


def frame_features(backbone: Any, view: Tensor) -> Tensor:
    """Compute the features of the temporal positions, averaged over space, without motion.

    Args:
        backbone: Network whose features are (N, C, T', H', W').
        view: (N, 3, T, H, W).

    Returns:
        (N, T', C). If the pool combines mean and motion, C is the size of the mean.

    Raises:
        ValueError: If the network's features have no temporal positions.
    """
    features = backbone(view)
    if features.ndim != 5:
        raise ValueError(
            "objective 'frames' needs features of temporal positions (N, C, T, H, W), got "
            f"{tuple(features.shape)}. Use 'cosine' or 'relations' with this network."
        )
    channels = features.shape[1] // frame_parts(backbone)
    return features[:, :channels].mean((3, 4)).transpose(1, 2)


def frame_parts(backbone: Any) -> int:
    """Return the number of parts of a network's representation: the mean and each motion."""
    return check_frame_pool(getattr(backbone, "frame_pool", "mean"))
