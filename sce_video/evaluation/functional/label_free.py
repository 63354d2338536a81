"""Measures of a representation that need no labels: RankMe, LiDAR, retrieval of another clip."""

from __future__ import annotations

import torch
from torch import Tensor

from sce_video.evaluation.functional.neighbours import check_features, rank
from sce_video.utils.tensors import block_rows, float64_blocks

#: Constant added to each share of a spectrum before computing the entropy (RankMe, eq. 1; in nats,
#: not renormalised).
_EPSILON = 1e-7


def rankme(features: Tensor) -> float:
    """Return the effective rank of (N, C), 1 to about ``min(N, C)`` (Garrido et al. 2023, eq. 1).

    It is the exponential of the entropy of the singular values, each divided by their sum (arXiv
    2210.02885). Unlike in :func:`~sce_video.models.losses.effective_rank`, the features are not
    centred. It is computed in float64 on the device of the features. ValueError is raised for
    features that are not finite.
    """
    check_features(features, "features")
    # The R factor of a QR decomposition has the same singular values as all rows so far, at full
    # precision.
    triangle = features.new_empty((0, features.shape[1]), dtype=torch.float64)
    for block in float64_blocks(features):
        triangle = torch.linalg.qr(torch.cat([triangle, block]), mode="r").R
    return _entropy_rank(torch.linalg.svdvals(triangle))


def lidar(clips: Tensor, videos: Tensor, delta: float = 1e-4) -> float:
    """Compute the rank of the LDA matrix of clips (M, C) of ``videos`` (M,) (Thilak et al. 2024).

    It is the effective rank of ``W^-1/2 B W^-1/2`` (arXiv 2312.04000, section 4). B is the
    covariance of the video means, and W the covariance of the clips about these means, plus
    ``delta`` on its diagonal. Directions in which videos hardly differ more than the clips of one
    video contribute little. The rank is computed in float64 on the device of the clips. ValueError
    is raised for features that are not finite, or a video with one clip.
    """
    check_features(clips, "clips")
    _, inverse, counts = torch.unique(videos, return_inverse=True, return_counts=True)
    if bool((counts < 2).any()) or len(counts) < 2:
        raise ValueError(
            f"LiDAR needs two videos or more with two clips each, got {len(counts)} videos with at "
            f"least {int(counts.min())} clips. Set num_clips of UniformClips to 2 or more"
        )
    size = clips.shape[1]
    own = inverse.split(block_rows(size))
    means = clips.new_zeros(len(counts), size, dtype=torch.float64)
    for block, numbers in zip(float64_blocks(clips), own, strict=True):
        means.index_add_(0, numbers, block)
    means /= counts[:, None]
    spread = means.new_zeros(size, size)
    for block, numbers in zip(float64_blocks(clips), own, strict=True):
        within = block - means[numbers]
        spread.addmm_(within.T, within)
    spread /= len(clips)
    spread.diagonal().add_(delta)
    levels, axes = torch.linalg.eigh(spread)
    # Only rounding errors for features in the thousands can make an eigenvalue smaller than delta.
    axes /= levels.clamp(min=delta).sqrt()
    middle, matrix = means.mean(dim=0), torch.zeros_like(spread)
    for block in float64_blocks(means):
        whitened = (block - middle) @ axes  # multiplied by W^-1/2, up to a rotation
        matrix.addmm_(whitened.T, whitened)
    return _entropy_rank(torch.linalg.eigvalsh(matrix / len(counts)).clamp(min=0))


def clip_hits(clips: Tensor, videos: Tensor) -> Tensor:
    """Return whether the nearest other clip belongs to the same video, (M,) bool.

    Centred features (M, C) are compared by cosine similarity. ``videos`` (M,) are integers from 0.
    ValueError is raised for a video with one clip.
    """
    alone = torch.bincount(videos)[videos] < 2
    if bool(alone.any()):
        raise ValueError(
            f"{int(alone.sum())} of {len(videos)} clips have no other clip of their video to "
            "retrieve. Set num_clips of UniformClips to 2 or more"
        )
    rows = torch.arange(len(videos), device=videos.device)
    return rank(clips, clips, videos, videos, k=1, groups=(rows, rows)).hits[:, 0]


def _entropy_rank(spectrum: Tensor) -> float:
    share = spectrum / spectrum.sum().clamp(min=torch.finfo(spectrum.dtype).tiny) + _EPSILON
    return float(torch.special.entr(share).sum().exp())
