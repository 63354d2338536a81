"""Clusters of features, nearest neighbours within them, and rows that are far from each other.

All features are unit vectors (:func:`~.neighbours.normalised`), compared by cosine similarity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sce_video.evaluation.functional.neighbours import ROW_BLOCK, nearest_neighbours, normalised

#: Number of rows sampled per cluster, which is enough to compute its centre
_ROWS_PER_CENTRE = 256
#: Maximum number of rows for which all pairs are compared. The time grows quadratically.
EXACT_ROWS = 30_000
#: Number of rows per cell if not all pairs are compared
_ROWS_PER_CELL = 1000
#: Number of cosines to compute at a time. Their 16 MB mostly fit into the processor's cache.
_COSINES = 2**22
#: Maximum number of clusters that k-means++ initialises, because it draws only one centre per pass
_CAREFUL = 256
#: Largest int8 value, which represents 1
_BYTE = 127.0
_GONE = -4  # value that marks a removed cosine
_EQUAL = 1e-6  # largest deviation of a cosine from 1 that rounding may cause


def unit_rows(features: Tensor, mean: Tensor | None = None) -> Tensor:
    """Subtract ``mean`` (D,) from features (N, D), and scale them to l2 norm 1, float32."""
    x = torch.empty(features.shape, dtype=torch.float32)
    for start in range(0, len(x), ROW_BLOCK):
        rows = slice(start, start + ROW_BLOCK)
        x[rows] = normalised(features[rows], mean)
    return x


def as_bytes(x: Tensor) -> Tensor:
    """Convert unit vectors (N, D) to int8 in units of 1/127, a quarter of float32's memory.

    The error of the cosine of two vectors with 64 numbers is about 0.003 (standard deviation).
    """
    return (x * _BYTE).round().to(torch.int8)


def _cosines(x: Tensor, columns: Tensor) -> tuple[Tensor, float]:
    """Compute cosines (N, M) of unit vectors (N, D) and (D, M), and their unit.

    The result is float32 with unit 1 or, for :func:`as_bytes`, int32 with unit 1 / 127 ** 2, which
    is the same on every machine.
    """
    if x.dtype != torch.int8:
        return x.float() @ columns.float(), 1.0
    if torch.backends.mkldnn.is_available():  # 2 to 15 times as fast as in float32
        return torch._int_mm(x, columns), _BYTE**-2
    # In float32, sums of up to 1,040 products of bytes are exact.
    return (x.float() @ columns.float()).int(), _BYTE**-2


def k_means(x: Tensor, k: int, *, seed: int = 0, steps: int = 20) -> Tensor:
    """Compute the centres (k, D) of spherical k-means, largest cluster first.

    Lloyd's steps use cosine similarity (Dhillon and Modha 2001) on a random sample of at most 256
    rows per centre. The first centres are drawn by k-means++ (Arthur and Vassilvitskii 2007), or at
    random for more than 256 clusters. A centre without rows moves to the row that is farthest from
    its own centre. The rows (N, D) are unit vectors in float32, float16 or :func:`as_bytes`. The
    algorithm ends after ``steps``, or if no row changes its cluster. ValueError is raised if ``k``
    is not from 1 to N.
    """
    if not 1 <= k <= len(x):
        raise ValueError(f"the number of clusters must be 1 to {len(x)} (the videos), got {k}")
    draw = torch.Generator().manual_seed(seed)
    some = x[torch.randperm(len(x), generator=draw)[: _ROWS_PER_CENTRE * k]]
    sample = some.float() / (_BYTE if some.dtype == torch.int8 else 1.0)
    rows = [0] if k <= _CAREFUL else list(range(k))  # the sample is already shuffled
    distance = 1 - sample @ sample[0]
    while len(rows) < k:  # k-means++ uses squared distances, which equal 2 - 2 cosine
        weights = distance.clamp_min(_EQUAL)
        rows.append(int(torch.multinomial(weights, 1, generator=draw)))
        distance = torch.minimum(distance, 1 - sample @ sample[rows[-1]])
    centres, before = sample[rows], None
    for _ in range(steps):
        nearest, similar = assign(some, centres)
        if before is not None and torch.equal(nearest, before):
            break
        before = nearest
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        empty = torch.bincount(nearest, minlength=k) == 0
        sums[empty] = sample[similar.argsort()[: int(empty.sum())]]
        centres = normalised(sums)
    counts = torch.bincount(assign(some, centres)[0], minlength=k)
    return centres[counts.argsort(descending=True, stable=True)]


def assign(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Find the nearest centre of every row, (N,) int64, and its cosine, (N,)."""
    columns = (as_bytes(centres) if x.dtype == torch.int8 else centres).T.contiguous()
    # Write all results into one tensor. Small tensors allocated between the products would fragment
    # memory and waste 10 GB.
    nearest, similar = torch.empty(len(x), dtype=torch.int64), torch.empty(len(x))
    at_once = max(1, _COSINES // len(centres))
    for begin in range(0, len(x), at_once):
        rows = slice(begin, begin + at_once)
        found, unit = _cosines(x[rows], columns)
        # NumPy's argmax is 4 times as fast as torch's.
        nearest[rows] = torch.from_numpy(found.numpy().argmax(axis=1))
        similar[rows] = found.gather(1, nearest[rows, None])[:, 0] * unit
    return nearest, similar


def neighbour_graph(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k other rows that are most similar to every row of unit vectors (N, D), N >= 2.

    The search is exact up to :data:`EXACT_ROWS` rows. With more rows, :func:`nearest_in_cells` is
    used, so the time grows with N instead of its square. Near-duplicates lie in the same cell or in
    neighbouring cells, so they are still found. Cosines and rows (N, min(k, N - 1)) are in
    descending order. If the cells of a row contain too few other rows, empty slots have -inf.
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
    """Find the k most similar gallery rows with another owner, among the rows of near cells.

    This is an inverted file. The gallery is clustered into cells of about 1000 rows (or into
    ``cells`` cells), and each query is compared with the rows of its ``probes`` nearest cells.
    Queries (N, D) and gallery (M, D) are unit vectors in float32, float16 or :func:`as_bytes`. They
    are compared in float32, bytes exactly. Rows with the query's own owner, integers (N,) and (M,),
    are excluded.

    Returns:
        Cosines (N, k) float32 and rows (N, k) int32, or int64 for 2**31 gallery rows or more, in
        descending order. Empty slots have -inf.
    """
    cells = cells or max(1, len(gallery) // _ROWS_PER_CELL)
    centres = k_means(gallery, cells, seed=seed, steps=steps)

    def by_cell(rows: Tensor) -> tuple[Tensor, ...]:
        """Return the row numbers of each cell."""
        cell = assign(rows, centres)[0]
        counts = torch.bincount(cell, minlength=len(centres))
        return cell.argsort(stable=True).split(counts.tolist())

    members = by_cell(gallery)
    near = (centres @ centres.T).topk(min(probes, len(centres))).indices
    best = torch.full((len(queries), k), -torch.inf)
    # Row numbers in int32 take half the memory.
    kind = torch.int32 if len(gallery) < 2**31 else torch.int64
    where = torch.zeros((len(queries), k), dtype=kind)
    for number, own in enumerate(by_cell(queries)):
        others = torch.cat([members[i] for i in near[number].tolist()])
        if len(own) == 0 or len(others) == 0:
            continue
        # Sort by owner, so that the rows to exclude are contiguous.
        owners, order = gallery_owners[others].sort(stable=True)
        others = others[order]
        columns = gallery.index_select(0, others).T.contiguous()
        # Split the queries, because a cell of similar videos (such as flat frames) may be huge, but
        # memory use must not grow with it.
        for some in own.split(max(1, _COSINES // len(others))):
            similar, unit = _cosines(queries.index_select(0, some), columns)
            first = torch.searchsorted(owners, query_owners[some])
            counts = torch.searchsorted(owners, query_owners[some], right=True) - first
            rows = torch.arange(len(some)).repeat_interleave(counts)
            since = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
            similar[rows, first[rows] + since] = int(_GONE / unit)
            values, at = _largest(similar, min(k, len(others)))
            filled = slice(values.shape[1])
            best[some, filled] = torch.where(values * unit > _GONE / 2, values * unit, -torch.inf)
            where[some, filled] = others[at].to(kind)
    return best, where


def _largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row and their columns, in half the time of ``topk``.

    They are in the k groups of 16 numbers with the largest maxima.
    """
    groups = x.shape[1] // 16
    if groups <= 2 * k:
        return x.topk(k)
    best = x[:, : 16 * groups].view(-1, 16, groups).amax(dim=1).topk(k).indices
    at = (best[:, None] + groups * torch.arange(16)[:, None]).flatten(1)
    rest = torch.arange(16 * groups, x.shape[1]).expand(len(x), -1)
    at = torch.cat([at, rest], dim=1)
    values, order = x.gather(1, at).topk(k)
    return values, at.gather(1, order)


def k_centre_greedy(x: Tensor, count: int) -> list[int]:
    """Select rows that are far from each other, most typical first (k-centre, Gonzalez 1985).

    The first row is nearest to the mean. Each following row is the one that is least similar, by
    cosine, to the rows before it, so every prefix of the list is also such a selection. Equal unit
    vectors (N, D) are selected once, so the result may have fewer than ``count`` rows.
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
