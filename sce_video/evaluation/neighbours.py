"""Exact nearest neighbours by cosine similarity, in blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def check_features(features: Tensor, name: str) -> None:
    """Raise ValueError unless ``features`` is a finite, non-empty matrix (N, C)."""
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(f"{name} must be (N, C) with N, C >= 1, got shape {tuple(features.shape)}")
    finite = torch.isfinite(features).all(dim=1)
    if not bool(finite.all()):
        bad = torch.nonzero(~finite).flatten().tolist()
        raise ValueError(
            f"{name}: {len(bad)} of {len(features)} rows hold NaN or infinity, "
            f"the first is row {bad[0]}: the network that made them has diverged"
        )


def nearest_neighbours(
    queries: Tensor,
    bank: Tensor,
    k: int,
    *,
    query_groups: Tensor | None = None,
    bank_groups: Tensor | None = None,
    block: int = 1024,
    bank_block: int = 65536,
) -> tuple[Tensor, Tensor]:
    """The k most similar rows of a bank for every query.

    Exact: every pair is compared, ``block`` queries by ``bank_block`` rows at a time, so memory
    is bounded by their product. Of equally similar rows the one with the lower index comes first.

    Args:
        queries: (N, C); normalised here.
        bank: (M, C) on the same device; normalised here.
        k: Neighbours wanted; at most M are given.
        query_groups: (N,) integers. With ``bank_groups``, a row of the query's own group is no
            neighbour: unique ids leave out the item itself, person numbers its whole person.
        bank_groups: (M,) integers.
        block: Queries compared at a time.
        bank_block: Rows of the bank compared at a time.

    Returns:
        Similarities (N, k') and indices (N, k'), k' = min(k, M), in descending order. Where a
        query has fewer than k' allowed rows, the rest have similarity -inf.

    Raises:
        ValueError: sizes differ, ``k < 1``, features not finite, only one of the groups given.
    """
    _check(queries, bank, k, query_groups, bank_groups)
    k = min(k, len(bank))
    queries, bank = F.normalize(queries.float(), dim=1), F.normalize(bank.float(), dim=1)
    similarities, indices = [], []
    for start in range(0, len(queries), block):
        rows = slice(start, start + block)
        best = queries.new_empty((len(queries[rows]), 0))
        where = torch.empty_like(best, dtype=torch.long)
        for offset in range(0, len(bank), bank_block):
            columns = slice(offset, offset + bank_block)
            similar = queries[rows] @ bank[columns].T
            if query_groups is not None and bank_groups is not None:
                same = query_groups[rows, None] == bank_groups[None, columns]
                similar.masked_fill_(same, float("-inf"))
            values, places = _stable_top_k(similar, k)
            best, where = _merge(best, where, values, places + offset, k)
        similarities.append(best)
        indices.append(where)
    return torch.cat(similarities), torch.cat(indices)


def _check(
    queries: Tensor, bank: Tensor, k: int, query_groups: Tensor | None, bank_groups: Tensor | None
) -> None:
    check_features(queries, "queries")
    check_features(bank, "bank")
    if queries.shape[1] != bank.shape[1]:
        raise ValueError(
            f"queries have {queries.shape[1]} dimensions, the bank {bank.shape[1]}: "
            "they must come from the same network"
        )
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if (query_groups is None) != (bank_groups is None):
        raise ValueError("query_groups and bank_groups go together, got only one of them")
    for groups, features, name in (
        (query_groups, queries, "query_groups"),
        (bank_groups, bank, "bank_groups"),
    ):
        if groups is not None and groups.shape != (len(features),):
            raise ValueError(f"{name} must be ({len(features)},), got {tuple(groups.shape)}")


def _stable_top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Top k of every row in descending order, the lower index first among equal values."""
    k = min(k, values.shape[1])
    top, places = values.topk(k, dim=1)
    # topk picks any of the values that tie for the last place: sort those rows in full.
    tied = (values >= top[:, -1:]).sum(dim=1) > k
    if bool(tied.any()):
        places[tied] = values[tied].sort(dim=1, descending=True, stable=True).indices[:, :k]
    places = places.sort(dim=1).values
    return _sort_stable(values.gather(1, places), places)


def _sort_stable(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Descending by value; equal values keep their order."""
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)


def _merge(
    best: Tensor, where: Tensor, values: Tensor, places: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Join the best of earlier blocks (lower indices) with those of this one."""
    joined, places = _sort_stable(torch.cat([best, values], 1), torch.cat([where, places], 1))
    return joined[:, :k], places[:, :k]
