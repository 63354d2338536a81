"""Regression of a teacher's frame features, with their clip means, motion and change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.models.losses.siamese import full_precision

#: Lower bound for a channel's deviation, as a fraction of the mean deviation
_LEAST_DEVIATION = 0.05


@dataclass(frozen=True)
class FrameScales:
    """Moments of a teacher's frame features, with which targets and losses are scaled.

    Attributes:
        mean: (D,) mean of each channel over all frames.
        deviation: (D,) standard deviation of each channel.
        clip_variance: Variance of the standardised clip means, averaged over channels.
        motion_variance: Variance of the standardised motion (:func:`mean_change`), averaged over
            channels.
        change_variance: Variance of the standardised change (:func:`net_change`), averaged over
            channels.
    """

    mean: Tensor
    deviation: Tensor
    clip_variance: Tensor
    motion_variance: Tensor
    change_variance: Tensor

    def standardise(self, features: Tensor) -> Tensor:
        """Scale features (..., D) to mean 0 and deviation 1 over the frames."""
        return (full_precision(features) - self.mean) / self.deviation


def mean_change(frames: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring frames: (N, T, D) to (N, D)."""
    return frames.diff(dim=1).abs().mean(dim=1)


def net_change(frames: Tensor) -> Tensor:
    """Return the mean of the last quarter of frames (N, T, D) minus the mean of the first."""
    quarter = max(1, frames.shape[1] // 4)
    return frames[:, -quarter:].mean(dim=1) - frames[:, :quarter].mean(dim=1)


def frame_scales(features: Tensor) -> FrameScales:
    """Compute the moments of a teacher's features.

    Args:
        features: (N, T, D) features of N clips.

    Raises:
        ValueError: If there are fewer than two clips.
    """
    if features.ndim != 3 or len(features) < 2 or 0 in features.shape:
        raise ValueError(
            "frame features must be (N, T, D) with at least 2 clips, got shape "
            f"{tuple(features.shape)}"
        )
    features = full_precision(features)
    flat = features.flatten(0, 1)
    deviation = flat.std(dim=0, correction=0)
    least = _LEAST_DEVIATION * float(deviation.mean())
    if least == 0:
        raise ValueError("the teacher's features are the same in all frames of all clips")
    deviation = deviation.clamp(min=least)
    mean = flat.mean(dim=0)
    standard = (features - mean) / deviation
    clips = _variance(standard.mean(dim=1))
    motion = change = features.new_ones(())
    if features.shape[1] > 1:
        motion = _variance(mean_change(standard))
        change = _variance(net_change(standard))
    return FrameScales(mean, deviation, clips, motion, change)


def _variance(vectors: Tensor) -> Tensor:
    """Compute the variance of (N, D), averaged over channels, or 1 if all vectors are equal."""
    found = vectors.var(dim=0, correction=0).mean()
    return torch.where(found > 0, found, 1.0)


def frame_targets(teacher: Tensor, positions: int, scales: FrameScales) -> Tensor:
    """Return standardised targets (N, T, D) for T positions from features (N, U, D).

    The features are averaged or repeated to the positions.
    """
    target = scales.standardise(teacher)
    if target.shape[1] == positions:
        return target
    return F.adaptive_avg_pool1d(target.transpose(1, 2), positions).transpose(1, 2)


def frame_terms(student: Tensor, teacher: Tensor, scales: FrameScales) -> dict[str, Tensor]:
    """Compute the mean squared errors of frames, clip means, motion and change.

    Each error is a fraction of its target's variance, so the best constant has an error of 1.

    Args:
        student: (N, T, D), standardised predictions.
        teacher: (N, U, D), features that are averaged or repeated to the T positions.
        scales: Moments of the teacher's features.

    Returns:
        Scalars ``frame_error`` and ``clip_error`` and, with two or more positions,
        ``motion_error`` and ``change_error``.
    """
    with torch.autocast(student.device.type, enabled=False):
        student = full_precision(student)
        target = frame_targets(teacher.detach(), student.shape[1], scales).to(student.dtype)
        clip = F.mse_loss(student.mean(dim=1), target.mean(dim=1))
        terms = {
            "frame_error": F.mse_loss(student, target),
            "clip_error": clip / scales.clip_variance,
        }
        if student.shape[1] > 1:
            motion = F.mse_loss(mean_change(student), mean_change(target))
            change = F.mse_loss(net_change(student), net_change(target))
            terms["motion_error"] = motion / scales.motion_variance
            terms["change_error"] = change / scales.change_variance
    return terms
