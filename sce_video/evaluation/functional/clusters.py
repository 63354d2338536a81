"""Clusters of features, nearest neighbours within them, and rows that are far from each other.

All features here are unit vectors (:func:`~.neighbours.normalised`), compared by cosine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sce_video.evaluation.functional.neighbours import ROW_BLOCK, nearest_neighbours, normalised

#: Rows per cluster from which the cluster centres are computed: a random sample is enough.
_ROWS_PER_CENTRE = 256
#: Rows up to which each is compared with all others, because the time grows with their square.
EXACT_ROWS = 30_000
#: Rows per cell where not all rows are compared.
_ROWS_PER_CELL = 1000
#: Cosines that are computed at once: 16 MB, that the processor's cache holds most of.
_COSINES = 2**22
#: Clusters up to which the first centres are drawn with care, one pass over the sample for each.
_CAREFUL = 256
#: Value of the byte that stands for 1, the largest one that int8 has.
_BYTE = 127.0
_GONE = -4  # in place of a cosine
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


def _cosines(x: Tensor, columns: Tensor) -> tuple[Tensor, float]:
    """Cosines (N, M) of unit vectors (N, D) and (D, M), and their unit.

    Float32 and 1; of :func:`as_bytes` int32 and 1 / 127 ** 2: the same on every machine.
    """
    if x.dtype != torch.int8:
        return x.float() @ columns.float(), 1.0
    if torch.backends.mkldnn.is_available():  # 2 to 15 times as fast
        return torch._int_mm(x, columns), _BYTE**-2
    # Sums of up to 1,040 products of bytes are exact in float32.
    return (x.float() @ columns.float()).int(), _BYTE**-2


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
    some = x[torch.randperm(len(x), generator=draw)[: _ROWS_PER_CENTRE * k]]
    sample = some.float() / (_BYTE if some.dtype == torch.int8 else 1.0)
    rows = [0] if k <= _CAREFUL else list(range(k))  # the sample is in random order
    distance = 1 - sample @ sample[0]
    while len(rows) < k:  # k-means++: squared distances are 2 - 2 cosine
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
    """The nearest centre of every row, (N,) int64, and its cosine, (N,)."""
    columns = (as_bytes(centres) if x.dtype == torch.int8 else centres).T.contiguous()
    # Into one tensor: small ones between the products keep malloc from reusing memory (10 GB).
    nearest, similar = torch.empty(len(x), dtype=torch.int64), torch.empty(len(x))
    at_once = max(1, _COSINES // len(centres))
    for begin in range(0, len(x), at_once):
        rows = slice(begin, begin + at_once)
        found, unit = _cosines(x[rows], columns)
        nearest[rows] = torch.from_numpy(found.numpy().argmax(axis=1))  # torch: 4 times as slow
        similar[rows] = found.gather(1, nearest[rows, None])[:, 0] * unit
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
    compared in float32, bytes exactly; rows of the query's own owner, integers (N,) and (M,), are
    left out.

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
        # Of one owner next to each other: what is left out is then an interval.
        owners, order = gallery_owners[others].sort(stable=True)
        others = others[order]
        columns = gallery.index_select(0, others).T.contiguous()
        # Cells of alike rows (flat frames) are large: memory must not grow with them.
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
    """The k largest of each row and their columns, as ``topk`` in half the time.

    They are among the 16 numbers each of the k groups whose largest numbers are the largest.
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
