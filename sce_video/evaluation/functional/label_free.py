"""Measures of a representation that need no labels: RankMe, LiDAR, retrieval of another clip."""

from __future__ import annotations

import torch
from torch import Tensor

from sce_video.evaluation.functional.neighbours import check_features, rank

#: Added to each share of a spectrum before its entropy (RankMe, eq. 1; in nats, not renormalised).
_EPSILON = 1e-7


def rankme(features: Tensor) -> float:
    """Effective rank of features (N, C), 1 to about ``min(N, C)`` (Garrido et al. 2023, eq. 1).

    arXiv 2210.02885: the exponential of the entropy of the singular values, each divided by their
    sum. Unlike :func:`~sce_video.models.losses.effective_rank` the features are not centred.
    Computed in float64. Raises ValueError: features that are not finite.
    """
    check_features(features, "features")
    return _entropy_rank(torch.linalg.svdvals(features.double()))


def lidar(clips: Tensor, videos: Tensor, delta: float = 1e-4) -> float:
    """Rank of the LDA matrix of clips (M, C) of ``videos`` (M,) (Thilak et al. 2024, section 4).

    arXiv 2312.04000: the effective rank of ``W^-1/2 B W^-1/2``, where B is the covariance of the
    means of the videos, and W that of their clips about these means, plus ``delta`` on its
    diagonal. Directions count in which videos differ more than the clips of one. Computed in
    float64. Raises ValueError: features that are not finite, or a video with one clip.
    """
    check_features(clips, "clips")
    _, inverse, counts = torch.unique(videos, return_inverse=True, return_counts=True)
    if bool((counts < 2).any()) or len(counts) < 2:
        raise ValueError(
            f"LiDAR needs two videos or more with two clips each, got {len(counts)} videos with at "
            f"least {int(counts.min())} clips. Set num_clips of UniformClips to 2 or more"
        )
    values = clips.double()
    sums = values.new_zeros(len(counts), values.shape[1]).index_add_(0, inverse, values)
    means = sums / counts[:, None]
    within, between = values - means[inverse], means - means.mean(dim=0)
    spread = within.T @ within / len(values)
    spread.diagonal().add_(delta)
    levels, axes = torch.linalg.eigh(spread)
    # Rounding of features in the thousands is larger than delta, which no level is below.
    whitened = between @ (axes / levels.clamp(min=delta).sqrt())  # by W^-1/2, up to a rotation
    matrix = whitened.T @ whitened / len(counts)
    return _entropy_rank(torch.linalg.eigvalsh(matrix).clamp(min=0))


def clip_hits(clips: Tensor, videos: Tensor) -> Tensor:
    """Whether the nearest of all other clips is one of the same video, (M,) bool.

    By cosine similarity of the centred features (M, C); ``videos`` (M,) are integers from 0.
    Raises ValueError: a video with one clip.
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
