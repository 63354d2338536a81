"""Exact nearest neighbours by cosine similarity, in blocks, for kNN scores and gallery rankings.

Features are neither copied nor normalised as a whole, so a gallery may exceed the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.evaluation.functional.statistics import check_class_numbers

#: Number of rows per block when checking, averaging or normalising features
ROW_BLOCK = 8192
#: One tensor for the queries and one for the gallery
Pair = tuple[Tensor, Tensor]


def check_features(features: Tensor, name: str) -> None:
    """Raise ValueError unless ``features`` is a finite, non-empty matrix (N, C)."""
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(f"{name} must be (N, C) with N, C >= 1, got shape {tuple(features.shape)}")
    # Check blocks, because a mask for a whole memory-mapped matrix takes a quarter of its size.
    finite = [torch.isfinite(block).all(dim=1) for block in features.split(ROW_BLOCK)]
    bad = torch.nonzero(~torch.cat(finite)).flatten().tolist()
    if bad:
        raise ValueError(
            f"{name}: {len(bad)} of {len(features)} rows contain NaN or infinity, the first is row "
            f"{bad[0]}. The network has diverged"
        )


def feature_mean(features: Tensor) -> Tensor:
    """Compute the mean over N of features (N, C), summed in float64: (C,) float64."""
    total = features.new_zeros(features.shape[1], dtype=torch.float64)
    for block in features.split(ROW_BLOCK):
        total += block.double().sum(dim=0)
    return total / len(features)


def normalised(features: Tensor, mean: Tensor | None = None) -> Tensor:
    """Subtract a ``mean`` (C,) if given, then scale rows (N, C) to l2 norm 1, float32."""
    if mean is not None:
        features = features - mean.to(features.dtype)
    return F.normalize(features.float(), dim=1)


def nearest_neighbours(
    queries: Tensor,
    gallery: Tensor,
    k: int,
    *,
    groups: Pair | None = None,
    means: Pair | None = None,
    block: int = 1024,
    gallery_block: int = ROW_BLOCK,
) -> tuple[Tensor, Tensor]:
    """Find the k most similar rows of a gallery for every query.

    The search is exact. Every pair is compared, ``block`` queries with ``gallery_block`` rows at a
    time, so the product of both limits the memory. If rows are equally similar, the one with the
    lowest index comes first.

    Queries (N, C) and gallery (M, C) must be on one device. They are normalised here, after
    subtracting their ``means`` (C,), if given. With ``groups``, integers (N,) and (M,), rows of the
    query's own group are excluded.

    Returns:
        Similarities (N, k') and gallery indices (N, k'), k' = min(k, M), in descending order. If a
        query has fewer than k' rows left, the remaining slots have similarity -inf.

    Raises:
        ValueError: If sizes differ, ``k < 1``, a feature is not finite, or a block is below 1.
    """
    check_features(queries, "queries")
    check_features(gallery[:1], "gallery")  # checks only the shape; values are checked below
    if queries.shape[1] != gallery.shape[1]:
        raise ValueError(
            f"queries have {queries.shape[1]} dimensions, but the gallery has {gallery.shape[1]}. "
            "Compute both with the same network"
        )
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if groups is not None and (len(groups[0]), len(groups[1])) != (len(queries), len(gallery)):
        raise ValueError(
            f"{len(queries)} queries and {len(gallery)} gallery rows need as many groups, got "
            f"{len(groups[0])} and {len(groups[1])}"
        )
    if block < 1 or gallery_block < 1:
        raise ValueError(f"blocks must have at least 1 row, got {block} and {gallery_block}")
    k = min(k, len(gallery))
    # Slots that stay at -inf are empty, because groups may leave fewer than k rows.
    similarities = queries.new_full((len(queries), k), float("-inf"), dtype=torch.float32)
    indices = torch.zeros_like(similarities, dtype=torch.long)
    # If all queries fit into a block, normalise them only once, not again for each gallery block.
    query_mean, gallery_mean = means or (None, None)
    few = normalised(queries, query_mean) if len(queries) <= block else None
    for offset in range(0, len(gallery), gallery_block):
        columns = slice(offset, offset + gallery_block)
        candidates = normalised(gallery[columns], gallery_mean)
        for start in range(0, len(queries), block):
            rows = slice(start, start + block)
            similar = (normalised(queries[rows], query_mean) if few is None else few) @ candidates.T
            # Check here, because a separate pass would read a memory-mapped gallery twice.
            if not bool(torch.isfinite(similar).all()):
                check_features(gallery, "gallery")
            if groups is not None:
                same = groups[0][rows, None] == groups[1][None, columns]
                similar.masked_fill_(same, float("-inf"))
            best, at = similarities[rows], indices[rows]
            # Rows that tie with the k-th best have higher indices, so they rank below it.
            better = torch.nonzero(similar.amax(dim=1) > best[:, -1]).flatten()
            if len(better):
                new, found = _highest(similar if len(better) == len(best) else similar[better], k)
                # Put the earlier rows first, because the stable sort then prefers them in ties.
                new = torch.cat([best[better], new], dim=1)
                found = torch.cat([at[better], found + offset], dim=1)
                new, order = new.sort(dim=1, descending=True, stable=True)
                best[better], at[better] = new[:, :k], found.gather(1, order)[:, :k]
    return similarities, indices


def _highest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest values of each row (n, m), and their columns in ascending order.

    If values are equal, the first columns are used.
    """
    k = min(k, values.shape[1])
    top, columns = values.topk(min(k + 1, values.shape[1]), dim=1)
    columns = columns[:, :k]
    # topk may return any of the values that tie at rank k, so sort rows with such ties completely.
    if top.shape[1] > k:
        tied = top[:, k - 1] == top[:, k]
        columns[tied] = values[tied].sort(dim=1, descending=True, stable=True).indices[:, :k]
    columns = columns.sort(dim=1).values
    return values.gather(1, columns), columns


def knn_scores(
    queries: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    *,
    num_classes: int | None = None,
    k: int = 20,
    temperature: float = 0.07,
    groups: Pair | None = None,
    block: int = 1024,
) -> Tensor:
    """Compute class scores of k nearest neighbours weighted by ``exp(similarity / temperature)``.

    A query's weights are normalised by a softmax, which does not overflow and keeps the order of
    the classes. Features, groups and ``block`` have the same meaning as in
    :func:`nearest_neighbours`, so videos in the query's own group do not vote.

    ``gallery_labels`` are (M,) integers from 0 to ``num_classes`` - 1, which defaults to the
    largest label. A smaller ``temperature``, above 0, gives more weight to the nearest neighbours.

    Returns:
        (N, num_classes) float32. Rows sum to 1 over the classes with votes. A class without votes
        has -inf, which :func:`~sce_video.evaluation.top_k_accuracy` never counts as a hit.

    Raises:
        ValueError: If ``temperature <= 0``, labels are out of range, sizes differ, or a query has
            no neighbour.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    check_class_numbers(gallery_labels, len(gallery), "gallery_labels", num_classes)
    if num_classes is None:
        num_classes = int(gallery_labels.max()) + 1
    similar, neighbours = nearest_neighbours(queries, gallery, k, groups=groups, block=block)
    alone = torch.isneginf(similar[:, 0])
    if bool(alone.any()):
        raise ValueError(
            f"{int(alone.sum())} queries have no neighbour outside their own group, the first is "
            f"row {int(torch.nonzero(alone)[0])}. Give at least two groups"
        )
    # Empty slots have the similarity -inf and therefore the weight 0.
    weights = torch.softmax(similar / temperature, dim=1)
    labels = gallery_labels[neighbours]
    voted = similar.new_zeros((len(queries), num_classes))
    # Do not add in place, because voted must stay zero to count the votes below.
    scores = voted.scatter_add(1, labels, weights)
    voted.scatter_add_(1, labels, torch.isfinite(similar).float())
    return scores.masked_fill(voted == 0, float("-inf"))


class Ranking(NamedTuple):
    """Cosines (N, k) of the k nearest gallery videos of every query, descending, and their rows.

    A hit has the query's label; unused slots have the similarity -inf.
    """

    similarities: Tensor
    indices: Tensor
    hits: Tensor

    def found(self, ks: Sequence[int]) -> Tensor:
        """Return whether there is a hit among the first k, (N, len(ks)) bool; its mean is R@k."""
        return torch.stack([self.hits[:, :k].any(dim=1) for k in ks], dim=1)


def rank(
    queries: Tensor,
    gallery: Tensor,
    query_labels: Tensor,
    gallery_labels: Tensor,
    *,
    k: int = 10,
    centred: bool = True,
    groups: Pair | None = None,
    block: int = 1024,
    gallery_block: int = ROW_BLOCK,
) -> Ranking:
    """Find the k nearest gallery videos of every query, and whether they have its label.

    With ``centred``, the mean of the queries is subtracted from the queries, and the mean of the
    gallery from the gallery, before l2 normalisation. The authors' code does this
    (juliendenize/eztorch, tag MVAP2023), although the paper does not mention it. Labels are (N,)
    and (M,) integers from 0. Other arguments have the same meaning as in
    :func:`nearest_neighbours`. ValueError is raised if labels are out of range, sizes differ, or
    ``k < 1``.
    """
    check_class_numbers(query_labels, len(queries), "query_labels")
    check_class_numbers(gallery_labels, len(gallery), "gallery_labels")
    check_features(queries, "queries")
    check_features(gallery, "gallery")
    means = (feature_mean(queries), feature_mean(gallery)) if centred else None
    similarities, indices = nearest_neighbours(
        queries, gallery, k, groups=groups, means=means, block=block, gallery_block=gallery_block
    )
    # An empty slot has the index 0, whose label may be correct by coincidence.
    hits = (gallery_labels[indices] == query_labels[:, None]) & ~torch.isneginf(similarities)
    return Ranking(similarities, indices, hits)
