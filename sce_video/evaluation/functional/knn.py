"""Weighted k-nearest-neighbour classification (Wu et al. 2018, section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from sce_video.evaluation.functional.accuracy import check_labels
from sce_video.evaluation.functional.neighbours import nearest_neighbours


def knn_scores(
    queries: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    *,
    num_classes: int | None = None,
    k: int = 20,
    temperature: float = 0.07,
    query_groups: Tensor | None = None,
    gallery_groups: Tensor | None = None,
    block: int = 1024,
) -> Tensor:
    """Votes of the k nearest labelled neighbours, weighted by ``exp(similarity / temperature)``.

    The votes of a query are divided by their sum: no temperature overflows, and the order of the
    classes is that of the plain votes.

    Args:
        queries: Features (N, C).
        gallery: Labelled features (M, C).
        gallery_labels: (M,) integers from 0.
        num_classes: Width of the result; by default the largest label of the gallery plus one.
        k: Neighbours that vote; at most M.
        temperature: Positive; the smaller, the more the nearest counts.
        query_groups: (N,) and ``gallery_groups`` (M,): neighbours of the query's own group do not
            vote. Unique ids in both leave out the item itself.
        gallery_groups: See ``query_groups``.
        block: Queries compared at a time.

    Returns:
        (N, num_classes) float32, rows sum to 1; -inf for a class without any vote, so that
        :func:`~sce_video.evaluation.top_k_accuracy` never counts it as found.

    Raises:
        ValueError: labels out of range, sizes that differ, or a query without any neighbour.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    check_labels(gallery_labels, len(gallery), "gallery_labels", num_classes)
    if num_classes is None:
        num_classes = int(gallery_labels.max()) + 1
    similar, slots = nearest_neighbours(
        queries, gallery, k, query_groups=query_groups, gallery_groups=gallery_groups, block=block
    )
    alone = torch.isneginf(similar[:, 0])
    if bool(alone.any()):
        raise ValueError(
            f"{int(alone.sum())} queries have no neighbour outside their own group, the first is "
            f"row {int(torch.nonzero(alone)[0])}: at least two groups are needed"
        )
    weights = torch.softmax(similar / temperature, dim=1)
    labels = gallery_labels[slots]
    voted = similar.new_zeros((len(queries), num_classes))
    scores = voted.scatter_add(1, labels, weights)
    voted.scatter_add_(1, labels, torch.isfinite(similar).float())
    return scores.masked_fill(voted == 0, float("-inf"))
