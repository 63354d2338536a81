"""Losses of two views of a batch: BYOL, NT-Xent (SimCLR) and MoCo v3; what losses check first."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.utils.distributed import gather_samples, global_positions


def full_precision(x: Tensor) -> Tensor:
    """At least fp32: temperatures and sums over many candidates need more than 16 bits."""
    return x if x.dtype == torch.float64 else x.float()


def check_same_shape(names: str, first: Tensor, second: Tensor) -> None:
    """Raise ValueError unless both are (N, D) of the same shape, N and D at least 1."""
    if first.ndim != 2 or first.shape != second.shape or 0 in first.shape:
        raise ValueError(
            f"{names} must be (N, D) of the same shape with N and D of at least 1, "
            f"got {tuple(first.shape)} and {tuple(second.shape)}"
        )


def check_shapes(query: Tensor, key: Tensor, queue: Tensor) -> None:
    """Raise ValueError unless these are (N, D), (N, D) and (K, D), none of them empty."""
    check_same_shape("query and key", query, key)
    if queue.ndim != 2 or queue.shape[1] != query.shape[1] or queue.shape[0] == 0:
        raise ValueError(
            f"queue must be (K, {query.shape[1]}) with K >= 1, got {tuple(queue.shape)}"
        )


def check_temperature(name: str, value: float) -> None:
    """Raise ValueError unless a temperature is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value}")


def byol_loss(query: Tensor, key: Tensor) -> Tensor:
    """``|q - k|^2 = 2 - 2 q.k`` of unit vectors, the mean over samples: 0 to 4, a scalar tensor.

    ``query`` (N, D) are predictions of the online branch, ``key`` (N, D) embeddings of the target
    branch, into which no gradient flows. One direction: BYOL adds up that of both views as query.
    Shapes that do not match, or no samples, are a ValueError.
    """
    check_same_shape("query and key", query, key)
    with torch.autocast(query.device.type, enabled=False):
        return 2 - 2 * (full_precision(query) * full_precision(key.detach())).sum(dim=1).mean()


def nt_xent_loss(first: Tensor, second: Tensor, *, tau: float) -> Tensor:
    """The mean of NT-Xent over the 2N embeddings of two views, a scalar tensor.

    In a distributed run the candidates are the embeddings of all ranks, gathered with gradient, and
    the anchors are those of the rank: the mean over ranks of the loss, and of the gradients of the
    parameters (as DistributedDataParallel takes it), is that of one process with the joint batch.
    All ranks must call this with the same number of samples.

    ``first`` and ``second`` are the embeddings (N, D), l2-normalised, of the same samples. Shapes
    that do not match, no samples or a temperature not above 0 are a ValueError.
    """
    check_same_shape("first and second", first, second)
    check_temperature("tau", tau)
    with torch.autocast(first.device.type, enabled=False):
        views = torch.stack([full_precision(first), full_precision(second)], dim=1)  # (n, 2, D)
        anchors = views.transpose(0, 1).flatten(0, 1)  # (2n, D), those of the first view first
        # One gather of both views: as few and as large collectives as possible.
        gathered = gather_samples(views, gradient=True)  # (N, 2, D)
        candidates = gathered.transpose(0, 1).flatten(0, 1)  # (2N, D)
        rows = global_positions(len(first), first.device)
        # Candidates are in two halves, first views then second: a partner is N rows away.
        itself = torch.cat([rows, rows + len(gathered)])
        partner = torch.cat([rows + len(gathered), rows])
        logits = anchors @ candidates.T / tau  # (2n, 2N)
        logits = logits.scatter(1, itself[:, None], float("-inf"))
        return F.cross_entropy(logits, partner)


def moco_v3_loss(query: Tensor, keys: Tensor, positives: Tensor, *, tau: float) -> Tensor:
    """2 tau times the cross-entropy of ``query @ keys.T / tau``, mean over samples; a scalar.

    One direction: MoCo v3 adds up that of both views as the query. The factor 2 tau keeps the size
    of the gradient when tau changes (facebookresearch/moco-v3, moco/builder.py).

    ``query`` (N, D) are predictions of the online branch, ``keys`` (M, D) embeddings of the target
    branch of all ranks, both l2-normalised; no gradient flows into keys. ``positives`` (N,) int64
    are the rows of each query's own key in ``keys``.
    """
    got = f"got {tuple(query.shape)} and {tuple(keys.shape)}"
    if query.ndim != 2 or keys.ndim != 2 or query.shape[1] != keys.shape[1]:
        raise ValueError(f"query and keys must be (N, D) and (M, D), {got}")
    if 0 in query.shape or len(keys) == 0:
        raise ValueError(f"there must be queries and keys, {got}")
    if positives.shape != query.shape[:1] or positives.dtype != torch.int64:
        raise ValueError(
            f"positives must be ({len(query)},) of int64, "
            f"got {tuple(positives.shape)} of {positives.dtype}"
        )
    if positives.device.type == "cpu":  # elsewhere it would synchronise host and device
        wrong = positives[(positives < 0) | (positives >= len(keys))]
        if len(wrong):
            raise ValueError(
                f"positives must be rows of the {len(keys)} keys, from 0, got {wrong[0].item()}"
            )
    check_temperature("tau", tau)
    with torch.autocast(query.device.type, enabled=False):
        logits = full_precision(query) @ full_precision(keys.detach()).T / tau  # (N, M)
        return 2 * tau * F.cross_entropy(logits, positives)
