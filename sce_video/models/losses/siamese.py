"""Losses between two views of a batch (BYOL, SimCLR, MoCo v3), and checks that losses share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.utils.distributed import gather_samples, global_positions


def full_precision(x: Tensor) -> Tensor:
    """Convert to at least fp32, which temperatures and sums over many candidates require."""
    return x if x.dtype == torch.float64 else x.float()


def check_same_shape(names: str, first: Tensor, second: Tensor) -> None:
    """Check that two tensors are (N, D) with the same shape.

    Raises:
        ValueError: If the shapes differ or a tensor is empty.
    """
    if first.ndim != 2 or first.shape != second.shape or 0 in first.shape:
        raise ValueError(
            f"{names} must be (N, D) of the same shape with N and D of at least 1, "
            f"got {tuple(first.shape)} and {tuple(second.shape)}"
        )


def check_shapes(query: Tensor, key: Tensor, queue: Tensor) -> None:
    """Check that query, key and queue are (N, D), (N, D) and (K, D).

    Raises:
        ValueError: If a shape is different or a tensor is empty.
    """
    check_same_shape("query and key", query, key)
    if queue.ndim != 2 or queue.shape[1] != query.shape[1] or queue.shape[0] == 0:
        raise ValueError(
            f"queue must be (K, {query.shape[1]}) with K >= 1, got {tuple(queue.shape)}"
        )


def check_temperature(name: str, value: float) -> None:
    """Check that a temperature is a finite number above 0.

    Raises:
        ValueError: If the value is not.
    """
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value}")


def byol_loss(query: Tensor, key: Tensor) -> Tensor:
    """Compute ``|q - k|^2 = 2 - 2 q.k`` of unit vectors, averaged over samples.

    This covers one direction. BYOL adds up both directions, with each view as the query.

    Args:
        query: (N, D), predictions of the online branch.
        key: (N, D), embeddings of the target branch, which receive no gradient.

    Returns:
        A scalar tensor from 0 to 4.

    Raises:
        ValueError: If the shapes do not match or there are no samples.
    """
    check_same_shape("query and key", query, key)
    with torch.autocast(query.device.type, enabled=False):
        return 2 - 2 * (full_precision(query) * full_precision(key.detach())).sum(dim=1).mean()


def nt_xent_loss(first: Tensor, second: Tensor, *, tau: float) -> Tensor:
    """Compute the mean of NT-Xent over the 2N embeddings of two views.

    In a distributed run, the anchors are the embeddings of this rank, and the candidates are the
    embeddings of all ranks, gathered with gradient. The means of loss and gradients over the ranks
    (as in DistributedDataParallel) equal the loss and gradients of one process with the whole
    batch. All ranks must call this with the same number of samples.

    Args:
        first: Embeddings (N, D) of the first view, l2-normalised.
        second: Embeddings (N, D) of the second view of the same samples, l2-normalised.
        tau: Temperature.

    Returns:
        A scalar tensor.

    Raises:
        ValueError: If shapes do not match, there are no samples, or the temperature is not above 0.
    """
    check_same_shape("first and second", first, second)
    check_temperature("tau", tau)
    with torch.autocast(first.device.type, enabled=False):
        views = torch.stack([full_precision(first), full_precision(second)], dim=1)  # (n, 2, D)
        anchors = views.transpose(0, 1).flatten(0, 1)  # (2n, D), first views before second ones
        # Gather both views together, because one large collective is faster than two small ones.
        gathered = gather_samples(views, gradient=True)  # (N, 2, D)
        candidates = gathered.transpose(0, 1).flatten(0, 1)  # (2N, D)
        rows = global_positions(len(first), first.device)
        # The candidates are all first views, then all second views, so partners are N rows apart.
        itself = torch.cat([rows, rows + len(gathered)])
        partner = torch.cat([rows + len(gathered), rows])
        logits = anchors @ candidates.T / tau  # (2n, 2N)
        logits = logits.scatter(1, itself[:, None], float("-inf"))
        return F.cross_entropy(logits, partner)


def moco_v3_loss(query: Tensor, keys: Tensor, positives: Tensor, *, tau: float) -> Tensor:
    """Compute 2 tau times the cross-entropy of ``query @ keys.T / tau``, averaged over samples.

    This covers one direction. MoCo v3 adds up both directions, with each view as the query. With
    the factor 2 tau, the size of the gradient does not depend on tau (facebookresearch/moco-v3,
    moco/builder.py).

    Args:
        query: (N, D), predictions of the online branch, l2-normalised.
        keys: (M, D), embeddings of the target branch on all ranks, l2-normalised. They receive no
            gradient.
        positives: (N,) int64, the row of each query's positive in ``keys``.
        tau: Temperature.

    Returns:
        A scalar tensor.

    Raises:
        ValueError: If a shape, an index or the temperature is not valid.
    """
    got = f"got {tuple(query.shape)} and {tuple(keys.shape)}"
    if query.ndim != 2 or keys.ndim != 2 or query.shape[1] != keys.shape[1]:
        raise ValueError(f"query and keys must be (N, D) and (M, D), {got}")
    if 0 in query.shape or len(keys) == 0:
        raise ValueError(f"query and keys must not be empty, {got}")
    if positives.shape != query.shape[:1] or positives.dtype != torch.int64:
        raise ValueError(
            f"positives must be ({len(query)},) of int64, "
            f"got {tuple(positives.shape)} of {positives.dtype}"
        )
    if positives.device.type == "cpu":  # on a GPU, this check would make the host wait
        wrong = positives[(positives < 0) | (positives >= len(keys))]
        if len(wrong):
            raise ValueError(
                f"positives must be rows of the {len(keys)} keys, counted from 0, got "
                f"{wrong[0].item()}"
            )
    check_temperature("tau", tau)
    with torch.autocast(query.device.type, enabled=False):
        logits = full_precision(query) @ full_precision(keys.detach()).T / tau  # (N, M)
        return 2 * tau * F.cross_entropy(logits, positives)
