"""Clusters of features, nearest neighbours within them, and rows that are far from each other.

All features here are unit vectors (:func:`~.neighbours.normalised`), compared by cosine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sce_video.evaluation.functional.neighbours import ROW_BLOCK, nearest_neighbours, normalised

#: Rows from which cluster centres are computed, per cluster; and rows up to which all are compared.
_ROWS_PER_CENTRE, EXACT_ROWS = 256, 30_000
_ROWS_PER_CELL, _QUERIES = 1000, 1024
_COSINES = 2**24  # that are computed at once between the queries of a cell and its neighbours
#: Clusters up to which the first centres are drawn with care, one pass over the sample for each.
_CAREFUL = 256
_BYTE = 127.0
_EQUAL = 1e-6  # difference of a cosine from 1 that rounding may make


def unit_rows(features: Tensor, mean: Tensor | None = None) -> Tensor:
    """Features (N, D), ``mean`` (D,) subtracted, divided by their l2 norms, float32."""
    x = torch.empty(features.shape, dtype=torch.float32)
    for start in range(0, len(x), ROW_BLOCK):
        rows = slice(start, start + ROW_BLOCK)
        x[rows] = normalised(features[rows], mean)
    return x


def as_bytes(x: Tensor) -> Tensor:
    """Unit vectors (N, D) as int8 in units of 1/127, a quarter of the memory of float32.

    The error of a cosine of two vectors of 64 numbers is about 0.003 (standard deviation).
    """
    return (x * _BYTE).round().to(torch.int8)


def _floats(x: Tensor) -> Tensor:
    """Vectors in float32, from :func:`as_bytes` or another type."""
    return x.float() / _BYTE if x.dtype == torch.int8 else x.float()


def k_means(x: Tensor, k: int, *, seed: int = 0, steps: int = 20) -> Tensor:
    """Centres (k, D) of spherical k-means, largest cluster first.

    Lloyd's steps with cosine similarity (Dhillon and Modha 2001), on a random sample of at most
    256 rows per centre. The first centres are drawn by k-means++ (Arthur and Vassilvitskii 2007),
    above 256 clusters at random. A centre without rows moves to the row that is farthest from its
    own. The rows (N, D) are unit vectors, float32, float16 or :func:`as_bytes`. The end is that of
    ``steps``, or no row changes its cluster. Raises ValueError: ``k`` is not 1 to N.
    """
    if not 1 <= k <= len(x):
        raise ValueError(f"the number of clusters must be 1 to {len(x)} (the videos), got {k}")
    draw = torch.Generator().manual_seed(seed)
    sample = _floats(x[torch.randperm(len(x), generator=draw)[: _ROWS_PER_CENTRE * k]])
    rows = [0] if k <= _CAREFUL else list(range(k))  # the sample is in random order
    distance = 1 - sample @ sample[0]
    while len(rows) < k:  # k-means++: squared distances are 2 - 2 cosine
        weights = distance.clamp_min(_EQUAL)
        rows.append(int(torch.multinomial(weights, 1, generator=draw)))
        distance = torch.minimum(distance, 1 - sample @ sample[rows[-1]])
    centres, before = sample[rows], None
    for _ in range(steps):
        nearest, similar = assign(sample, centres)
        if before is not None and torch.equal(nearest, before):
            break
        before = nearest
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        empty = torch.bincount(nearest, minlength=k) == 0
        sums[empty] = sample[similar.argsort()[: int(empty.sum())]]
        centres = normalised(sums)
    counts = torch.bincount(assign(sample, centres)[0], minlength=k)
    return centres[counts.argsort(descending=True, stable=True)]


def assign(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of every row, (N,) int64, and its cosine, (N,)."""
    # Into one tensor: small ones between the products keep malloc from reusing memory (10 GB).
    nearest, similar = torch.empty(len(x), dtype=torch.int64), torch.empty(len(x))
    for rows in torch.arange(len(x)).split(ROW_BLOCK):
        similar[rows], nearest[rows] = (_floats(x[rows]) @ centres.T).max(dim=1)
    return nearest, similar


def neighbour_graph(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k other rows that are most similar to every row of unit vectors (N, D), N >= 2.

    Exact up to :data:`EXACT_ROWS` rows; beyond, of :func:`nearest_in_cells`: time grows with N
    instead of its square, and near-duplicates, which lie in the same cell or in neighbouring ones,
    are found all the same. Cosines and rows (N, min(k, N - 1)) are in descending order; a row with
    fewer others in its cells has -inf in the remaining slots.
    """
    k, rows = min(k, len(x) - 1), torch.arange(len(x))
    if len(x) <= EXACT_ROWS:
        return nearest_neighbours(x, x, k, groups=(rows, rows))
    similar, where = nearest_in_cells(x, x, k, rows, rows)
    return similar, where.long()


def nearest_in_cells(
    queries: Tensor,
    gallery: Tensor,
    k: int,
    query_owners: Tensor,
    gallery_owners: Tensor,
    *,
    probes: int = 8,
    seed: int = 0,
    cells: int = 0,
    steps: int = 10,
) -> tuple[Tensor, Tensor]:
    """The k most similar rows of a gallery that have another owner, among those of near cells.

    An inverted file: the gallery is clustered into cells of about 1000 rows (or into ``cells``),
    and each query is compared with the rows of the ``probes`` cells nearest to it.
    Queries (N, D) and gallery (M, D) are unit vectors, float32, float16 or :func:`as_bytes`, and
    computed in float32; rows of the query's own owner, integers (N,) and (M,), are left out.

    Returns:
        Cosines (N, k) float32 and rows (N, k) int32 (int64 from 2**31 rows of the gallery on), in
        descending order; -inf where there are fewer.
    """
    cells = cells or max(1, len(gallery) // _ROWS_PER_CELL)
    centres = k_means(gallery, cells, seed=seed, steps=steps)

    def by_cell(rows: Tensor) -> tuple[Tensor, ...]:
        """Numbers of the rows of each cell."""
        cell = assign(rows, centres)[0]
        counts = torch.bincount(cell, minlength=len(centres))
        return cell.argsort(stable=True).split(counts.tolist())

    members = by_cell(gallery)
    near = (centres @ centres.T).topk(min(probes, len(centres))).indices
    best = torch.full((len(queries), k), -torch.inf)
    # Half the memory of the answers is that of int64.
    kind = torch.int32 if len(gallery) < 2**31 else torch.int64
    where = torch.zeros((len(queries), k), dtype=kind)
    for number, own in enumerate(by_cell(queries)):
        others = torch.cat([members[i] for i in near[number].tolist()])
        if len(own) == 0 or len(others) == 0:
            continue
        columns = _floats(gallery[others]).T
        # Cells of alike rows (flat frames) are large: memory must not grow with them.
        for some in own.split(max(1, min(_QUERIES, _COSINES // len(others)))):
            similar = _floats(queries[some]) @ columns
            same = query_owners[some, None] == gallery_owners[others]
            top = similar.masked_fill_(same, -torch.inf).topk(min(k, len(others)))
            best[some, : top.values.shape[1]] = top.values
            where[some, : top.values.shape[1]] = others[top.indices].to(kind)
    return best, where


def k_centre_greedy(x: Tensor, count: int) -> list[int]:
    """Rows that are far from each other, most typical first (k-centre greedy, Gonzalez 1985).

    The first is the one nearest to the mean; each further one is the least similar, by cosine, to
    those before it, so every beginning of the list is such a subset too. Equal rows of the unit
    vectors (N, D) are taken once, so there may be fewer than ``count``.
    """
    chosen = [int((x @ x.mean(dim=0)).argmax())]
    nearest = x @ x[chosen[0]]
    nearest[chosen[0]] = torch.inf
    while len(chosen) < min(count, len(x)):
        farthest = int(nearest.argmin())
        if nearest[farthest] > 1 - _EQUAL:
            break
        chosen.append(farthest)
        torch.maximum(nearest, x @ x[farthest], out=nearest)
        nearest[farthest] = torch.inf
    return chosen
