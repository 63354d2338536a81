"""Weighted k-nearest-neighbour classification (Wu et al., CVPR 2018, section 3.4)."""

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
    """Class scores of the k nearest neighbours, weighted by ``exp(similarity / temperature)``.

    The weights of a query are normalised by a softmax, which does not overflow and keeps the order
    of the classes.

    Args:
        queries: Features (N, C).
        gallery: Labelled features (M, C).
        gallery_labels: (M,) integers from 0.
        num_classes: Columns of the result; by default the largest label of the gallery plus one.
        k: Neighbours that vote; at most M.
        temperature: Positive; a smaller one gives more weight to the nearest neighbours.
        query_groups: (N,) integers. With ``gallery_groups``, videos of the query's own group do not
            vote; unique ids in both exclude the query itself.
        gallery_groups: (M,) integers.
        block: Queries compared at a time.

    Returns:
        (N, num_classes) float32, rows sum to 1 over the classes with votes; -inf for a class
        without votes, which :func:`~sce_video.evaluation.top_k_accuracy` never counts as a hit.

    Raises:
        ValueError: ``temperature <= 0``, labels out of range, sizes that differ, or a query without
            any neighbour.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    check_labels(gallery_labels, len(gallery), "gallery_labels", num_classes)
    if num_classes is None:
        num_classes = int(gallery_labels.max()) + 1
    similar, neighbours = nearest_neighbours(
        queries, gallery, k, query_groups=query_groups, gallery_groups=gallery_groups, block=block
    )
    alone = torch.isneginf(similar[:, 0])
    if bool(alone.any()):
        raise ValueError(
            f"{int(alone.sum())} queries have no neighbour outside their own group, the first is "
            f"row {int(torch.nonzero(alone)[0])}: at least two groups are needed"
        )
    weights = torch.softmax(similar / temperature, dim=1)
    labels = gallery_labels[neighbours]
    voted = similar.new_zeros((len(queries), num_classes))
    scores = voted.scatter_add(1, labels, weights)
    voted.scatter_add_(1, labels, torch.isfinite(similar).float())
    return scores.masked_fill(voted == 0, float("-inf"))
