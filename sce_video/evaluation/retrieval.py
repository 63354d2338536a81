"""Video retrieval: is a video of the same class among the k most similar ones?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sce_video.evaluation.accuracy import check_labels
from sce_video.evaluation.neighbours import check_features, nearest_neighbours


def centre(features: Tensor) -> Tensor:
    """Features (N, C) minus their mean over N."""
    check_features(features, "features")
    return features - features.double().mean(dim=0).to(features.dtype)


def retrieval_hits(
    queries: Tensor,
    bank: Tensor,
    query_labels: Tensor,
    bank_labels: Tensor,
    *,
    ks: Sequence[int] = (1, 5, 10),
    centred: bool = True,
    block: int = 1024,
) -> Tensor:
    """Whether one of the k nearest of the bank has the query's label, for every query and k.

    Centred, the mean of the queries is taken off the queries and the mean of the bank off the
    bank, then both are normalised (the protocol of the paper's authors); plain, they are only
    normalised. Exact, in blocks; of equally similar videos the one of lower index is nearer.

    Args:
        queries: Features (N, C).
        bank: Features (M, C), none of them a query.
        query_labels: (N,) integers from 0.
        bank_labels: (M,) integers from 0.
        ks: Ranks, in any order; a rank above M looks at the whole bank.
        centred: Subtract the means first.
        block: Queries compared at a time.

    Returns:
        (N, len(ks)) bool.

    Raises:
        ValueError: labels out of range, sizes that differ, no rank or one below 1.
    """
    if not ks or min(ks) < 1:
        raise ValueError(f"ks must be ranks of 1 or more, got {tuple(ks)}")
    check_labels(query_labels, len(queries), "query_labels")
    check_labels(bank_labels, len(bank), "bank_labels")
    if centred:
        queries, bank = centre(queries), centre(bank)
    _, places = nearest_neighbours(queries, bank, max(ks), block=block)
    same = bank_labels[places] == query_labels[:, None]
    return torch.stack([same[:, :k].any(dim=1) for k in ks], dim=1)


def retrieval_recall(
    queries: Tensor,
    bank: Tensor,
    query_labels: Tensor,
    bank_labels: Tensor,
    *,
    ks: Sequence[int] = (1, 5, 10),
    centred: bool = True,
    block: int = 1024,
) -> dict[int, float]:
    """R@k, the share of queries (0 to 1) with a hit; see :func:`retrieval_hits`."""
    hits = retrieval_hits(
        queries, bank, query_labels, bank_labels, ks=ks, centred=centred, block=block
    )
    return {k: float(hits[:, i].double().mean()) for i, k in enumerate(ks)}
