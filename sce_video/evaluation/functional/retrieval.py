"""Video retrieval: is a video of the same class among the k most similar ones?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sce_video.evaluation.features import FeatureSet, check_labelled, check_same_size
from sce_video.evaluation.functional.accuracy import check_labels
from sce_video.evaluation.functional.neighbours import (
    ROW_BLOCK,
    check_features,
    faiss_neighbours,
    feature_mean,
    nearest_neighbours,
)

#: A search with the arguments and the result of :func:`nearest_neighbours`.
Search = Callable[..., tuple[Tensor, Tensor]]
#: Prefix of the figures of each way to compare.
_PREFIXES = {"centred": "retrieval", "plain": "retrieval_plain"}


def centre(features: Tensor) -> Tensor:
    """Features (N, C) minus their mean over N."""
    check_features(features, "features")
    return features - feature_mean(features).to(features.dtype)


class Ranking(NamedTuple):
    """The nearest of a bank for every query.

    Attributes:
        similarities: (N, k) cosines in descending order; -inf where no row was left.
        indices: (N, k) rows of the bank.
        hits: (N, k) bool, whether the row has the query's label.
    """

    similarities: Tensor
    indices: Tensor
    hits: Tensor

    def recall(self, ks: Sequence[int]) -> dict[int, float]:
        """R@k: the share of queries (0 to 1) with a hit among the first k."""
        return {k: float(self.hits[:, :k].any(dim=1).double().mean()) for k in ks}


def rank(
    queries: Tensor,
    bank: Tensor,
    query_labels: Tensor,
    bank_labels: Tensor,
    *,
    k: int = 10,
    centred: bool = True,
    query_groups: Tensor | None = None,
    bank_groups: Tensor | None = None,
    search: Search = nearest_neighbours,
    block: int = 1024,
) -> Ranking:
    """The k nearest of the bank for every query, and whether they have its label.

    Centred, the mean of the queries is taken off the queries and the mean of the bank off the
    bank, then both are normalised (the protocol of the paper's authors); plain, they are only
    normalised. No copy of the features is made. The arguments are those of
    :func:`retrieval_hits`.

    Raises:
        ValueError: see :func:`retrieval_hits`.
    """
    check_labels(query_labels, len(queries), "query_labels")
    check_labels(bank_labels, len(bank), "bank_labels")
    for features, name in ((queries, "queries"), (bank, "bank")):
        check_features(features, name)
    similarities, indices = search(
        queries,
        bank,
        k,
        query_groups=query_groups,
        bank_groups=bank_groups,
        query_mean=feature_mean(queries) if centred else None,
        bank_mean=feature_mean(bank) if centred else None,
        block=block,
    )
    hits = (bank_labels[indices] == query_labels[:, None]) & ~torch.isneginf(similarities)
    return Ranking(similarities, indices, hits)


def retrieval_hits(
    queries: Tensor,
    bank: Tensor,
    query_labels: Tensor,
    bank_labels: Tensor,
    *,
    ks: Sequence[int] = (1, 5, 10),
    centred: bool = True,
    query_groups: Tensor | None = None,
    bank_groups: Tensor | None = None,
    search: Search = nearest_neighbours,
    block: int = 1024,
) -> Tensor:
    """Whether one of the k nearest of the bank has the query's label, for every query and k.

    Centred or plain, see :func:`rank`. Exact, in blocks; of equally similar videos the one of
    lower index is nearer.

    Args:
        queries: Features (N, C).
        bank: Features (M, C); without groups, none of them is a query.
        query_labels: (N,) integers from 0.
        bank_labels: (M,) integers from 0.
        ks: Ranks, in any order; a rank above M looks at the whole bank.
        centred: Subtract the means first.
        query_groups: (N,), with ``bank_groups`` (M,): a row of the query's own group is left out.
        bank_groups: See ``query_groups``.
        search: :func:`nearest_neighbours` or :func:`faiss_neighbours`.
        block: Queries compared at a time.

    Returns:
        (N, len(ks)) bool.

    Raises:
        ValueError: labels out of range, sizes that differ, no rank or one below 1.
    """
    _check_ranks(ks)
    ranking = rank(
        queries,
        bank,
        query_labels,
        bank_labels,
        k=max(ks),
        centred=centred,
        query_groups=query_groups,
        bank_groups=bank_groups,
        search=search,
        block=block,
    )
    return torch.stack([ranking.hits[:, :k].any(dim=1) for k in ks], dim=1)


def _check_ranks(ks: Sequence[int]) -> None:
    if not ks or min(ks) < 1:
        raise ValueError(f"ks must be ranks of 1 or more, got {tuple(ks)}")


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


class Retrieval(NamedTuple):
    """The outcome of the retrieval protocol.

    Attributes:
        centred: R@k (0 to 1) by k, of centred features.
        plain: R@k of the features as they are.
        rankings: The rankings behind them, by ``"centred"`` and ``"plain"``.
        shared: Queries whose path is in the bank too, where it was left out for them.
        unseen: Queries whose class the bank does not have: they never hit.
    """

    centred: dict[int, float]
    plain: dict[int, float]
    rankings: dict[str, Ranking]
    shared: int
    unseen: int

    def metrics(self) -> dict[str, float]:
        """``retrieval_r1, ...`` (centred) and ``retrieval_plain_r1, ...``, 0 to 1."""
        return {
            f"{_PREFIXES[name]}_r{k}": value
            for name, recall in (("centred", self.centred), ("plain", self.plain))
            for k, value in recall.items()
        }


def retrieve(
    queries: FeatureSet,
    bank: FeatureSet,
    *,
    ks: Sequence[int] = (1, 5, 10),
    backend: str = "exact",
    faiss_index: str = "Flat",
    block: int = 1024,
    bank_block: int = ROW_BLOCK,
) -> Retrieval:
    """R@k of queries in a bank, centred and plain.

    A bank's video with the path of the query is no neighbour of it: so the two may overlap, or be
    the same set. The means are those of the whole sets.

    Args:
        queries: Labelled features.
        bank: Labelled features.
        ks: Ranks, in any order.
        backend: "exact" or "faiss".
        faiss_index: See :func:`faiss_neighbours`.
        block: Queries compared at a time.
        bank_block: Rows of the bank compared at a time.

    Raises:
        ValueError: no labels, features of different sizes, a rank below 1, an unknown backend, a
            query for which no video of the bank is left; files and videos are named.
        ImportError: faiss is asked for and not installed.
    """
    searches: dict[str, Search] = {
        "exact": nearest_neighbours,
        "faiss": partial(faiss_neighbours, index=faiss_index),
    }
    if backend not in searches:
        raise ValueError(f"unknown backend {backend!r}, known: {', '.join(searches)}")
    _check_ranks(ks)
    for features in (queries, bank):
        check_labelled(features, "retrieval")
    check_same_size(queries, bank)
    query_groups, bank_groups, shared = shared_groups(queries.paths, bank.paths)
    rankings = {
        name: rank(
            queries.features,
            bank.features,
            queries.labels,
            bank.labels,
            k=max(ks),
            centred=name == "centred",
            query_groups=query_groups if shared else None,
            bank_groups=bank_groups if shared else None,
            search=partial(searches[backend], bank_block=bank_block),
            block=block,
        )
        for name in _PREFIXES
    }
    alone = torch.nonzero(torch.isneginf(rankings["plain"].similarities[:, 0])).flatten().tolist()
    if alone:
        raise ValueError(
            f"{bank.source or 'the bank'} holds nothing but the query itself for {len(alone)} "
            f"queries, the first is {queries.paths[alone[0]]}"
        )
    unseen = ~torch.isin(queries.labels, bank.labels.unique())
    return Retrieval(
        centred=rankings["centred"].recall(ks),
        plain=rankings["plain"].recall(ks),
        rankings=rankings,
        shared=shared,
        unseen=int(unseen.sum()),
    )


def shared_groups(
    query_paths: Sequence[str], bank_paths: Sequence[str]
) -> tuple[Tensor, Tensor, int]:
    """Groups by path, which leave a query itself out of the bank.

    Returns:
        Groups of the queries (N,) and of the bank (M,), equal where the paths are; and the number
        of queries whose path is in the bank.
    """
    number = {path: i for i, path in enumerate(query_paths)}
    held = Counter(path for path in bank_paths if path in number)
    # -1 is no query's number: what is not shared belongs to no query.
    return (
        torch.tensor([number[path] for path in query_paths], dtype=torch.long),
        torch.tensor([number.get(path, -1) for path in bank_paths], dtype=torch.long),
        sum(path in held for path in query_paths),
    )
