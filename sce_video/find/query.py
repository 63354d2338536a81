"""Queries, and the search for the most similar rows or moments of an index."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from sce_video.datasets.sources import Query
from sce_video.find.store import READ_ROWS, VideoIndex
from sce_video.options.search import LIKE_WEIGHT, TEXT_WEIGHT, UNLIKE_WEIGHT

#: Smallest number by which a feature is divided to normalise it, so that zeros remain zeros
_TINY = 1e-12
#: If the sum of weighted unit features is shorter than this fraction of the weights, the features
#: cancel out.
_CANCELLED = 1e-6


@dataclass(frozen=True)
class Weights:
    """Weights of a query's parts, which Rocchio's method calls alpha, beta and gamma.

    Attributes:
        text: Weight of the text.
        like: Weight of all examples together.
        unlike: Weight of all counter-examples together, which is subtracted.
    """

    text: float = TEXT_WEIGHT
    like: float = LIKE_WEIGHT
    unlike: float = UNLIKE_WEIGHT


@dataclass(frozen=True)
class SearchQuery:
    """Examples, text and label to search for.

    Attributes:
        like: Videos, images or moments that results should resemble.
        unlike: Videos, images or moments that results should not resemble.
        text: Text that results should match, for an index that a video-text model has built.
        label: Label whose videos are further examples. Videos with other labels are
            counter-examples.
        weights: Weights of these parts.
    """

    like: tuple[Query, ...] = ()
    unlike: tuple[Query, ...] = ()
    text: str | None = None
    label: str | None = None
    weights: Weights = Weights()

    def describe(self) -> str:
        """Describe the query in words, with weights if it has several parts."""
        weights, label = self.weights, self.label
        parts = [
            (list(map(str, self.like)), "", weights.like),
            ([f"the label {label!r}"] * (label is not None), "", weights.like),
            ([repr(self.text)] * (self.text is not None), "", weights.text),
            (list(map(str, self.unlike)), "not ", weights.unlike),
            (["other labels"] * (label is not None), "not ", weights.unlike),
        ]
        given = [(names, sign, weight) for names, sign, weight in parts if names]
        if len(given) == 1:
            return ", ".join(given[0][0])
        return "; ".join(f"{sign}{', '.join(names)} ({weight:g})" for names, sign, weight in given)


@dataclass(frozen=True, eq=False)
class QueryFeatures:
    """Features of a query (M, D) and their weights (M,), negative for counter-examples.

    The features are centred or whitened if the search does so, scaled to length 1, and added with
    their weights (Rocchio 1971, "Relevance feedback in information retrieval"). A single feature is
    used unchanged.
    """

    features: np.ndarray
    weights: np.ndarray

    def __post_init__(self) -> None:
        if not (self.weights > 0).any():
            raise ValueError("no example, text or label has a weight above 0")

    def combined(self, compared: Callable[[np.ndarray], np.ndarray] | None = None) -> np.ndarray:
        """Combine the features into a single query (D,) float64.

        Args:
            compared: Map that the search applies to all features; None for no map.

        Raises:
            ValueError: If examples and counter-examples cancel each other out.
        """
        rows = self.features.astype(np.float64) if compared is None else compared(self.features)
        if len(rows) == 1:
            return rows[0]
        lengths = np.linalg.norm(rows, axis=1)
        total = self.weights @ (rows / np.maximum(lengths, _TINY)[:, None])
        if np.linalg.norm(total) < _CANCELLED * np.abs(self.weights).sum():
            raise ValueError(
                "the examples and counter-examples cancel each other out. Remove one of them, or "
                "change the weights"
            )
        return total * lengths.mean()  # adding the mean requires a query of typical length


@dataclass(frozen=True)
class Match:
    """One result of a query.

    Attributes:
        rank: Rank, counted from 1.
        path: Path relative to the indexed folder.
        similarity: Cosine similarity, -1 to 1.
        file: Absolute path of the video.
        row: Row of the index; for merged windows, the row of the most similar window.
        start: Start of the moment in seconds; None for a whole video.
        end: End of the moment in seconds; None for a whole video.
    """

    rank: int
    path: str
    similarity: float
    file: str
    row: int = field(default=-1, compare=False)  # an index update may move rows
    start: float | None = None
    end: float | None = None

    @property
    def distance(self) -> float:
        """Cosine distance, 1 - similarity, from 0 to 2."""
        return 1.0 - self.similarity

    @property
    def span(self) -> tuple[float, float]:
        """Start and end of the moment in seconds; infinite for a whole video."""
        if self.start is None or self.end is None:
            return -float("inf"), float("inf")
        return self.start, self.end


def merge_moments(ranked: Callable[[int], Sequence[Match]], k: int) -> list[Match]:
    """Merge similar windows of a video into moments, and return the k most similar moments.

    Among the k most similar windows, those that overlap or touch in the same video form a moment.
    It has the similarity and the row of its most similar window. If this gives fewer than k
    moments, the next most similar windows that touch no moment are added.

    Args:
        ranked: Returns the given number of most similar windows, or all if there are fewer.
        k: Number of moments.
    """
    count = 4 * k
    while True:
        windows = ranked(count)
        moments: list[Match] = []
        for number, window in enumerate(windows):
            # Merge with moments of the same video that overlap this window or touch it.
            (start, end), same = window.span, window.path
            touching = [
                i
                for i, moment in enumerate(moments)
                if moment.path == same and moment.span[0] <= end and start <= moment.span[1]
            ]
            if not touching:
                if len(moments) == k:
                    break
                moments.append(window)
            elif number < k:
                # The window may close the gap between two moments, which then become one.
                spans = [window.span, *(moments[i].span for i in touching)]
                start, end = min(s for s, _ in spans), max(e for _, e in spans)
                moments[touching[0]] = replace(moments[touching[0]], start=start, end=end)
                moments = [moment for i, moment in enumerate(moments) if i not in touching[1:]]
        if len(moments) == k or len(windows) < count:
            return [replace(moment, rank=rank) for rank, moment in enumerate(moments, start=1)]
        count *= 4


#: Number of rows that are compared at a time, so that they fit into the cache of a core
_CACHED_ROWS = 512
#: Number of extra candidates that a vector index returns, so that exact similarities can rank them
_SPARE = 16
#: Largest error of a similarity that is computed in single precision
_ROUNDING = 1e-6
#: Minimum number of windows that are compared after whitening
_POOL = 1000
#: In a large index, one in this many windows is compared after whitening.
_POOL_PART = 50
#: Number of candidates that a vector index returns within a few dozen milliseconds
_MOST_CANDIDATES = 2000
#: If at most this many rows are excluded, one more candidate per excluded row is requested from the
#: vector index. Otherwise the number of candidates grows with the share of excluded rows.
_MOST_LEFT_OUT = 1000
#: Safety factor for that number (chosen by hand). Excluded rows may be unusually similar.
_MORE = 1.5
#: If at most this many rows remain, all of them are compared, without the vector index.
_FEW = 5000
#: If less than one in this many rows remains, only the remaining rows are read.
_SMALL_PART = 8


def query_index(
    index: VideoIndex,
    feature: np.ndarray | QueryFeatures,
    k: int = 10,
    *,
    leave_out: Sequence[int] | np.ndarray = (),
    centred: bool = False,
    exact: bool = False,
    whitened: bool | None = None,
) -> list[Match]:
    """Find the videos of an index that are most similar to a feature, the most similar first.

    For an index of windows, results are moments (see :func:`~sce_video.find.query.merge_moments`).

    Args:
        index: Index from :func:`~sce_video.find.index.read_index`.
        feature: (D,) feature from the network of the index, or several features with weights.
        k: Number of results; all videos if the index has fewer.
        leave_out: Rows to exclude from the results, see
            :func:`~sce_video.find.examples.rows_of_file`.
        centred: Whether to subtract the mean feature of the index from all features first, which
            spreads out similarities that are all close to 1.
        exact: Whether to compare all features even if there is a vector index. A vector index is
            also ignored with ``centred``, or if few rows remain.
        whitened: Whether to rank by the cosine of whitened features. Only candidates are compared:
            1000 rows, or a fiftieth of the index if that is more. They have the largest inner
            products with the whitened query, mapped back to the original feature space. None
            whitens if ``index.whitens`` is set and ``centred`` is not.

    Raises:
        ValueError: If the index is empty, the feature has another size, or ``k`` is below 1.
    """
    if whitened is None:
        whitened = index.whitens and not centred
    if len(index) == 0:
        raise ValueError(f"the index {index.folder} contains no video that could be decoded")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if whitened and centred:
        raise ValueError("give either whitened or centred, because whitening centres features")
    query = as_query(feature)
    compared = query.combined()
    # Subtract the mean from several examples before combining them, and add it again afterwards,
    # because the search below subtracts it from the query and from every row.
    if centred and len(query.features) > 1:
        compared = index.mean + query.combined(lambda rows: rows - index.mean)
    single = compared.astype(np.float32)
    if whitened and single.shape == index.shape[1:]:
        # (x - mean) M . (q - mean) M equals x . (q - mean) M M^T plus a constant. A cosine with the
        # original features differs from this only by their lengths, so it can find the candidates.
        mapped = query.combined(index.whitening) @ index.whitening.matrix.T
        single = mapped.astype(np.float32)
    left_out = np.unique(np.asarray(leave_out, dtype=np.int64))
    # None means all rows. Checking a mask of ten million rows would take longer than the search.
    kept = None
    if len(left_out):
        kept = np.ones(len(index), dtype=bool)
        kept[left_out] = False
    approximate = not exact and searches_approximately(index, centred, len(left_out))

    @cache
    def candidates(size: int, least: int) -> tuple[np.ndarray, np.ndarray]:
        """Return about ``size`` similar rows, but at least ``least``, and their similarities."""
        found = _approximate(index, single, size, least, kept) if approximate else None
        rows, features = found or _exact(index, single, size, kept, centred)
        if whitened:
            return rows, cosines(query.combined(index.whitening), index.whitening(features))
        mean = index.mean if centred else 0.0
        return rows, cosines(single - mean, features - mean)

    def ranked(count: int) -> list[Match]:
        size = count if index.windows is None and not whitened else max(4 * count, _POOL)
        part = _MOST_CANDIDATES if approximate else len(index) // _POOL_PART
        size = max(size, part) if whitened else size
        rows, similarities = candidates(size, count if approximate else size)
        return _ranked(index, rows, similarities, count)

    return ranked(k) if index.windows is None else merge_moments(ranked, k)


def as_query(feature: np.ndarray | QueryFeatures) -> QueryFeatures:
    """Convert a feature (D,) to a query with one example."""
    if isinstance(feature, QueryFeatures):
        return feature
    return QueryFeatures(np.array(feature, dtype=np.float32).reshape(1, -1), np.ones(1))


def _approximate(
    index: VideoIndex, query: np.ndarray, size: int, least: int, kept: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Find about ``size`` similar rows among the kept rows, and return rows and features (n, D).

    Return None if the vector index finds fewer than ``least`` rows or cannot compare the query.
    """
    # The exact search reports what is wrong with a query that cannot be compared.
    if query.shape != index.shape[1:] or not np.isfinite(query).all() or not query.any():
        return None
    left = len(index) if kept is None else int(kept.sum())
    # Excluded rows, such as the query itself, may be the most similar ones.
    if len(index) - left <= _MOST_LEFT_OUT:
        count = size + len(index) - left + _SPARE
    else:
        part = left / len(index)
        needed = math.ceil(_MORE * (least + _SPARE) / part)
        count = max(needed, min(math.ceil(size / part), _MOST_CANDIDATES))
    rows, features = index.nearest(query, count, kept)
    return None if len(rows) < min(least, left) else (rows, features)


def searches_approximately(index: VideoIndex, centred: bool = False, left_out: int = 0) -> bool:
    """Return whether :func:`query_index` uses a vector index, which may miss some results."""
    few = left_out > _MOST_LEFT_OUT and len(index) - left_out <= _FEW
    return index.indexed is not None and not centred and not few


def _exact(
    index: VideoIndex, feature: np.ndarray, k: int, kept: np.ndarray | None, centred: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k most similar rows among the kept rows by comparing all of them.

    Further rows are included if only rounding separates them from the k-th row. NumPy computes the
    similarities, because importing torch takes longer than most searches.

    Raises:
        ValueError: If sizes differ, or the query, a feature or their mean contains NaN or infinity.
    """
    if not np.isfinite(feature).all():
        raise ValueError(
            "the feature of the query contains NaN or infinity, because the network that computed "
            "it has diverged"
        )
    if feature.shape != index.shape[1:]:
        raise ValueError(
            f"the query has {feature.size} dimensions, but the index has {index.shape[1]}. Compute "
            "both with the same network"
        )
    kept = np.ones(len(index), dtype=bool) if kept is None else kept
    mean = index.mean.astype(np.float32) if centred else np.zeros_like(feature)
    query = _unit((feature - mean)[None])[0]
    similarities = np.full(len(index), -np.inf, dtype=np.float32)
    for rows, features in _blocks(index, kept):
        for at in range(0, len(rows), _CACHED_ROWS):
            part = features[at : at + _CACHED_ROWS] - mean
            similarities[rows[at : at + _CACHED_ROWS]] = _unit(part) @ query
        if not np.isfinite(similarities[rows]).all():
            bad = rows[~np.isfinite(features).all(axis=1)]
            what = f"feature of {index.path(int(bad[0]))}" if len(bad) else "mean of its features"
            raise ValueError(
                f"the index {index.folder} is damaged: the {what} contains NaN or infinity. Build "
                "it from scratch (--rebuild, rebuild=True)"
            )
    similarities[~kept] = -np.inf
    k = min(k, int(kept.sum()))
    least = np.partition(similarities, -k)[-k] - _ROUNDING if k else np.inf
    rows = np.flatnonzero(kept & (similarities >= least))
    return rows, np.asarray(index.features[rows])


def _unit(rows: np.ndarray) -> np.ndarray:
    """Scale features (n, D) to length 1."""
    with np.errstate(over="ignore", invalid="ignore"):  # The caller checks the values.
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        return rows / np.maximum(lengths, np.float32(_TINY))[:, None]


def _blocks(index: VideoIndex, kept: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows and features in blocks: of the kept rows if they are few, or of all rows."""
    if kept.sum() * _SMALL_PART > len(index):
        for start, features in index.blocks(READ_ROWS):
            yield np.arange(start, start + len(features)), features
        return
    rows = np.flatnonzero(kept)
    for start in range(0, len(rows), READ_ROWS):
        some = rows[start : start + READ_ROWS]
        yield some, np.asarray(index.features[some])


def _ranked(index: VideoIndex, rows: np.ndarray, similarities: np.ndarray, k: int) -> list[Match]:
    """Return the k most similar rows, sorted by similarity, then by path and start."""
    k = min(k, len(rows))
    if k == 0:
        return []
    best = similarities >= np.partition(similarities, -k)[-k]
    rows, similarities = rows[best], similarities[best]
    paths = index.paths_of(rows)
    places = [index.place(path) for path in paths]
    if index.spans is not None:
        spans = index.spans[rows].tolist()
        places = [(file, *span) for (file, _, _), span in zip(places, spans, strict=True)]
    found = [
        Match(0, path, similarity, file, row, start, end)
        for row, similarity, path, (file, start, end) in zip(
            rows.tolist(), similarities.tolist(), paths, places, strict=True
        )
    ]
    found.sort(key=lambda match: (-match.similarity, match.path, match.start or 0.0))
    return [replace(match, rank=rank) for rank, match in enumerate(found[:k], start=1)]


def cosines(query: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Compute the cosines (n,) of a query (D,) and features (n, D).

    Double precision, rounded to single precision, gives a match the same similarity whether or not
    a vector index has found it.
    """
    features = features.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(features, axis=1), _TINY)
    lengths *= max(float(np.linalg.norm(query)), _TINY)
    return np.clip((features * query.astype(np.float64)).sum(axis=1) / lengths, -1, 1).astype(
        np.float32
    )
