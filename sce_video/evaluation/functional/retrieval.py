"""Video retrieval: is a video of the same class among the k most similar ones?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sce_video.evaluation.functional.accuracy import check_labels
from sce_video.evaluation.functional.neighbours import (
    ROW_BLOCK,
    check_features,
    feature_mean,
    nearest_neighbours,
)


class Ranking(NamedTuple):
    """The k nearest gallery videos of every query.

    Attributes:
        similarities: (N, k) cosine similarities in descending order; -inf in unused slots.
        indices: (N, k) rows of the gallery.
        hits: (N, k) bool, whether the gallery video has the query's label.
    """

    similarities: Tensor
    indices: Tensor
    hits: Tensor

    def recall(self, ks: Sequence[int]) -> dict[int, float]:
        """R@k for each k: the fraction of queries (0 to 1) with a hit among the first k."""
        return {k: float(self.hits[:, :k].any(dim=1).double().mean()) for k in ks}


def rank(
    queries: Tensor,
    gallery: Tensor,
    query_labels: Tensor,
    gallery_labels: Tensor,
    *,
    k: int = 10,
    centred: bool = True,
    query_groups: Tensor | None = None,
    gallery_groups: Tensor | None = None,
    block: int = 1024,
    gallery_block: int = ROW_BLOCK,
) -> Ranking:
    """The k nearest gallery videos of every query, and whether they have its label.

    With ``centred`` the mean of the queries is subtracted from the queries and the mean of the
    gallery from the gallery before l2 normalisation, as in the authors' code (juliendenize/eztorch,
    tag MVAP2023); the paper does not mention centring. Features are not copied. For the arguments
    see :func:`retrieval_hits`.

    Raises:
        ValueError: see :func:`retrieval_hits`.
    """
    check_labels(query_labels, len(queries), "query_labels")
    check_labels(gallery_labels, len(gallery), "gallery_labels")
    for features, name in ((queries, "queries"), (gallery, "gallery")):
        check_features(features, name)
    similarities, indices = nearest_neighbours(
        queries,
        gallery,
        k,
        query_groups=query_groups,
        gallery_groups=gallery_groups,
        query_mean=feature_mean(queries) if centred else None,
        gallery_mean=feature_mean(gallery) if centred else None,
        block=block,
        gallery_block=gallery_block,
    )
    hits = (gallery_labels[indices] == query_labels[:, None]) & ~torch.isneginf(similarities)
    return Ranking(similarities, indices, hits)


def retrieval_hits(
    queries: Tensor,
    gallery: Tensor,
    query_labels: Tensor,
    gallery_labels: Tensor,
    *,
    ks: Sequence[int] = (1, 5, 10),
    centred: bool = True,
    query_groups: Tensor | None = None,
    gallery_groups: Tensor | None = None,
    block: int = 1024,
) -> Tensor:
    """Whether one of the k nearest gallery videos has the query's label: (N, len(ks)) bool.

    Exact, in blocks; of equally similar videos the one of lower index comes first.

    Args:
        queries: Features (N, C).
        gallery: Features (M, C); without groups it must hold none of the queries.
        query_labels: (N,) integers from 0.
        gallery_labels: (M,) integers from 0.
        ks: Ranks, in any order; a rank above M takes the whole gallery.
        centred: Subtract the means first, see :func:`rank`.
        query_groups: (N,) integers. With ``gallery_groups``, rows of the query's own group are
            excluded.
        gallery_groups: (M,) integers.
        block: Queries compared at a time.

    Raises:
        ValueError: labels out of range, sizes that differ, no rank, or a rank below 1.
    """
    check_ranks(ks)
    ranking = rank(
        queries,
        gallery,
        query_labels,
        gallery_labels,
        k=max(ks),
        centred=centred,
        query_groups=query_groups,
        gallery_groups=gallery_groups,
        block=block,
    )
    return torch.stack([ranking.hits[:, :k].any(dim=1) for k in ks], dim=1)


def check_ranks(ks: Sequence[int]) -> None:
    """Raise ValueError unless there are ranks, all of them 1 or more."""
    if not ks or min(ks) < 1:
        raise ValueError(f"ks must be ranks of 1 or more, got {tuple(ks)}")


def retrieval_recall(
    queries: Tensor,
    gallery: Tensor,
    query_labels: Tensor,
    gallery_labels: Tensor,
    *,
    ks: Sequence[int] = (1, 5, 10),
    centred: bool = True,
    block: int = 1024,
) -> dict[int, float]:
    """R@k for each k: the fraction of queries (0 to 1) with a hit; see :func:`retrieval_hits`."""
    hits = retrieval_hits(
        queries, gallery, query_labels, gallery_labels, ks=ks, centred=centred, block=block
    )
    return {k: float(hits[:, i].double().mean()) for i, k in enumerate(ks)}
