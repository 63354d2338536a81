"""Retrieval: R@k of queries in a gallery, as a metric and between two feature files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sce_video.evaluation.functional.neighbours import ROW_BLOCK
from sce_video.evaluation.functional.retrieval import (
    Ranking,
    check_ranks,
    rank,
    retrieval_hits,
)
from sce_video.evaluation.metrics.base import RowMetric, for_each_group
from sce_video.evaluation.rows import Rows, check_labelled, check_same_size
from sce_video.registry import METRICS

#: Prefix of the metric names for centred and plain features.
_PREFIXES = {"centred": "retrieval", "plain": "retrieval_plain"}


@METRICS.register_module()
class Retrieval(RowMetric):
    """``retrieval_r1, ...`` (centred features) and ``retrieval_plain_r1, ...``, 0 to 1.

    See :func:`~sce_video.evaluation.functional.retrieval.retrieval_hits`.

    Args:
        ks: Ranks.

    Raises:
        ValueError: no rank, or one below 1.
    """

    key = "retrieval"
    needs_gallery = True
    kinds = ("representation",)

    def __init__(self, ks: Sequence[int] = (1, 5, 10)) -> None:
        super().__init__()
        check_ranks(ks)
        self.ks = tuple(ks)

    def settings(self) -> dict[str, Any]:
        """``ks``."""
        return {"ks": self.ks}

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """See the class. With groups, each group is centred with the mean of its own gallery."""
        found = {}
        for name, prefix in _PREFIXES.items():
            hits = for_each_group(rows, gallery, partial(self._hits, name == "centred"))
            for column, k in enumerate(self.ks):
                found[f"{prefix}_r{k}"] = hits[:, column]
        return self.means_of(found)

    def _hits(self, centred: bool, queries: Rows, gallery: Rows, num_classes: int) -> Tensor:
        return retrieval_hits(
            queries.values.to(self.device),
            gallery.values.to(self.device),
            queries.labels.to(self.device),
            gallery.labels.to(self.device),
            ks=self.ks,
            centred=centred,
        ).cpu()


class RetrievalResult(NamedTuple):
    """The result of the retrieval protocol.

    Attributes:
        centred: R@k (0 to 1) by k, with centred features.
        plain: R@k (0 to 1) by k, without centring.
        rankings: The rankings of both, ``"centred"`` and ``"plain"``.
        shared: Number of queries whose path is in the gallery too; each was excluded as a
            neighbour of itself.
        unseen: Number of queries whose class is not in the gallery; they never have a hit.
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
    queries: Rows,
    gallery: Rows,
    *,
    ks: Sequence[int] = (1, 5, 10),
    block: int = 1024,
    gallery_block: int = ROW_BLOCK,
) -> RetrievalResult:
    """R@k of queries in a gallery, centred and plain.

    A gallery video with the path of the query is excluded, so the two sets may overlap or be the
    same. Centring uses the means of the whole sets.

    Args:
        queries: Labelled features.
        gallery: Labelled features.
        ks: Ranks, in any order.
        block: Queries compared at a time.
        gallery_block: Gallery rows compared at a time.

    Raises:
        ValueError: no labels, features of different sizes, a rank below 1, a query
            without any gallery video; the message names files and videos.
    """
    check_ranks(ks)
    for features in (queries, gallery):
        check_labelled(features, "retrieval")
    check_same_size(queries, gallery)
    query_groups, gallery_groups, shared = shared_groups(queries.paths, gallery.paths)
    rankings = {
        name: rank(
            queries.values,
            gallery.values,
            queries.labels,
            gallery.labels,
            k=max(ks),
            centred=name == "centred",
            query_groups=query_groups if shared else None,
            gallery_groups=gallery_groups if shared else None,
            block=block,
            gallery_block=gallery_block,
        )
        for name in _PREFIXES
    }
    alone = torch.nonzero(torch.isneginf(rankings["plain"].similarities[:, 0])).flatten().tolist()
    if alone:
        raise ValueError(
            f"{gallery.source or 'the gallery'} holds only the query itself for "
            f"{len(alone)} queries, the first is {queries.paths[alone[0]]}"
        )
    unseen = ~torch.isin(queries.labels, gallery.labels.unique())
    return RetrievalResult(
        centred=rankings["centred"].recall(ks),
        plain=rankings["plain"].recall(ks),
        rankings=rankings,
        shared=shared,
        unseen=int(unseen.sum()),
    )


def shared_groups(
    query_paths: Sequence[str], gallery_paths: Sequence[str]
) -> tuple[Tensor, Tensor, int]:
    """Groups by path, which exclude each query from its own neighbours.

    Returns:
        Groups of the queries (N,) and of the gallery (M,), equal for equal paths; and the number of
        queries whose path is in the gallery.
    """
    number = {path: i for i, path in enumerate(query_paths)}
    held = Counter(path for path in gallery_paths if path in number)
    # Group -1, which no query has: gallery videos that are no queries.
    return (
        torch.tensor([number[path] for path in query_paths], dtype=torch.long),
        torch.tensor([number.get(path, -1) for path in gallery_paths], dtype=torch.long),
        sum(path in held for path in query_paths),
    )
