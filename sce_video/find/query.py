"""Queries, and search for the most similar rows or moments in an index."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from sce_video.datasets.sources import Query
from sce_video.find.store import VideoIndex
from sce_video.options.search import LIKE_WEIGHT, TEXT_WEIGHT, UNLIKE_WEIGHT

#: Smallest divisor for the length of a feature, so that zeros remain zeros
_TINY = 1e-12
#: A sum of unit features has no direction if it is shorter than this fraction of their weights.
_CANCELLED = 1e-6


@dataclass(frozen=True)
class Weights:
    """Weights of the parts of a query: alpha, beta and gamma of Rocchio's method.

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
        like: Videos, images, or moments of videos that results should resemble.
        unlike: Videos, images, or moments that results should not resemble.
        text: Text that results should match, for an index made by a video-text model.
        label: Label in the list. Its videos are additional examples, all others counter-examples.
        weights: Weights of these parts.
    """

    like: tuple[Query, ...] = ()
    unlike: tuple[Query, ...] = ()
    text: str | None = None
    label: str | None = None
    weights: Weights = Weights()

    def describe(self) -> str:
        """Return a description of the query, with weights if it has several parts."""
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

    The query is the weighted sum of the features, each scaled to length 1. The sum is formed after
    centring or whitening, if these are used (Rocchio 1971, "Relevance feedback in information
    retrieval"). A single feature is used unchanged.
    """

    features: np.ndarray
    weights: np.ndarray

    def __post_init__(self) -> None:
        if not (self.weights > 0).any():
            raise ValueError("no example, text or label has a weight above 0")

    def combined(self, compared: Callable[[np.ndarray], np.ndarray] | None = None) -> np.ndarray:
        """Return the query (D,) float64.

        Args:
            compared: Applies the same map to features as to the index; None for no map.

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
                "the examples cancel each other, so nothing is left to search for. Remove one of "
                "them, or change the weights"
            )
        return total * lengths.mean()  # restores a typical length, to which other terms relate


def weighted_features(
    like: np.ndarray, unlike: np.ndarray, text: np.ndarray | None, weights: Weights
) -> QueryFeatures:
    """Build the query from examples (P, D), counter-examples (N, D) and a text's embedding (D,).

    Features of one kind share its weight equally.

    Raises:
        ValueError: If no part has a weight above 0.
    """
    words = np.empty((0, 0)) if text is None else text.reshape(1, -1)
    parts = [(words, weights.text), (like, weights.like), (unlike, -weights.unlike)]
    kept = [(rows, weight) for rows, weight in parts if len(rows) and weight]
    if not kept:
        raise ValueError("no example, text or label has a weight above 0")
    return QueryFeatures(
        np.concatenate([rows for rows, _ in kept]),
        np.concatenate([np.full(len(rows), weight / len(rows)) for rows, weight in kept]),
    )


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
        """1 - similarity, 0 to 2."""
        return 1.0 - self.similarity

    @property
    def span(self) -> tuple[float, float]:
        """Start and end of the moment in seconds; a whole video spans all time."""
        if self.start is None or self.end is None:
            return -float("inf"), float("inf")
        return self.start, self.end


def merge_moments(ranked: Callable[[int], Sequence[Match]], k: int) -> list[Match]:
    """Find the k most similar moments in windows.

    Of the k most similar windows, windows in the same video that overlap or touch are merged. A
    moment has the similarity and the row of its most similar window. Additional moments are the
    most similar windows that touch no earlier moment.

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
                # The window may close the gap between two moments, so both are merged.
                spans = [window.span, *(moments[i].span for i in touching)]
                start, end = min(s for s, _ in spans), max(e for _, e in spans)
                moments[touching[0]] = replace(moments[touching[0]], start=start, end=end)
                moments = [moment for i, moment in enumerate(moments) if i not in touching[1:]]
        if len(moments) == k or len(windows) < count:
            return [replace(moment, rank=rank) for rank, moment in enumerate(moments, start=1)]
        count *= 4


#: Number of rows read from the file at a time
_READ_ROWS = 16384
#: Number of rows compared at a time, so that they stay in a core's cache
_CACHED_ROWS = 512
#: Additional candidates from a vector index, which are then ranked in double precision
_SPARE = 16
#: Largest difference between similarities that rounding to single precision can cause
_ROUNDING = 1e-6
#: Minimum number of windows compared after whitening
_POOL = 1000
#: Fraction of a large index that is compared after whitening: 1 / _POOL_PART
_POOL_PART = 50
#: Candidates that a vector index returns within a few dozen milliseconds
_MOST_CANDIDATES = 2000
#: Up to this number of excluded rows, as many additional candidates are requested from a vector
#: index. If more rows are excluded, the number of candidates grows in proportion.
_MOST_LEFT_OUT = 1000
#: Safety factor on that proportion, chosen by hand, because excluded rows need not be typical
_MORE = 1.5
#: Largest number of remaining rows that are compared one by one, without the vector index
_FEW = 5000
#: If fewer than 1 / _SMALL_PART of the rows remain, only these are read.
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
        centred: Whether to subtract the mean feature of the index from all features first. It
            spreads out similarities that are all close to 1.
        exact: Whether to compare all features even if there is a vector index. They are also all
            compared without a vector index, with ``centred``, or if many rows are excluded.
        whitened: Whether to rank by the cosine of features after ``index.whitening``. The
            candidates to compare (1000, or a fiftieth of the index if larger) have the largest
            inner products with the whitened query, mapped back to the original feature space. None
            means ``index.whitens``, unless ``centred``.

    Raises:
        ValueError: If the index is empty, sizes differ, or ``k`` is below 1.
    """
    if whitened is None:
        whitened = index.whitens and not centred
    if len(index) == 0:
        raise ValueError(f"the index {index.folder} contains no video that could be decoded")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if whitened and centred:
        raise ValueError("whitened features are already centred. Choose only one of the two")
    query = as_query(feature)
    compared = query.combined()
    if centred and len(query.features) > 1:  # the mean is subtracted again below, as for the rows
        compared = index.mean + query.combined(lambda rows: rows - index.mean)
    single = compared.astype(np.float32)
    if whitened and single.shape == index.shape[1:]:
        # (x - mean) M . (q - mean) M equals x . (q - mean) M M^T plus a constant. A cosine with
        # unchanged features therefore finds candidates, ignoring only the length of (x - mean) M.
        mapped = query.combined(index.whitening) @ index.whitening.matrix.T
        single = mapped.astype(np.float32)
    left_out = np.unique(np.asarray(leave_out, dtype=np.int64))
    kept = None  # stands for all rows; a mask over ten million takes longer than the vector index
    if len(left_out):
        kept = np.ones(len(index), dtype=bool)
        kept[left_out] = False
    approximate = not exact and searches_approximately(index, centred, len(left_out))

    @cache
    def candidates(size: int, least: int) -> tuple[np.ndarray, np.ndarray]:
        """Return about ``size`` similar rows (or exactly ``least``) and their similarities."""
        found = _approximate(index, single, size, least, kept) if approximate else None
        rows, features = found or _exact(index, single, size, kept, centred)
        if whitened:
            return rows, _cosines(query.combined(index.whitening), index.whitening(features))
        mean = index.mean if centred else 0.0
        return rows, _cosines(single - mean, features - mean)

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
    """Find about ``size`` similar rows among those kept, and their features (n, D).

    Return None if the vector index finds fewer than ``least`` rows or cannot compare the query.
    """
    # For a query without direction or of another size, the exact search reports the error.
    if query.shape != index.shape[1:] or not np.isfinite(query).all() or not query.any():
        return None
    left = len(index) if kept is None else int(kept.sum())
    if len(index) - left <= _MOST_LEFT_OUT:  # excluded rows, such as the query's, may rank first
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
    """Find the k most similar rows among those kept, and all that rounding might rank among them.

    NumPy is used, because importing torch takes longer than most searches.

    Raises:
        ValueError: If sizes differ, or the query, a feature or their mean contains NaN or infinity.
    """
    if not np.isfinite(feature).all():
        raise ValueError(
            "queries: 1 of 1 rows contain NaN or infinity, the first is row 0. The network has "
            "diverged"
        )
    if feature.shape != index.shape[1:]:
        raise ValueError(
            f"queries have {feature.size} dimensions, but the gallery has {index.shape[1]}. "
            "Compute both with the same network"
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
    with np.errstate(over="ignore", invalid="ignore"):  # the caller checks for non-finite values
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        return rows / np.maximum(lengths, np.float32(_TINY))[:, None]


def _blocks(index: VideoIndex, kept: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows and features in blocks of the whole index, or of the kept rows if they are few."""
    if kept.sum() * _SMALL_PART > len(index):
        for start, features in index.blocks(_READ_ROWS):
            yield np.arange(start, start + len(features)), features
        return
    rows = np.flatnonzero(kept)
    for start in range(0, len(rows), _READ_ROWS):
        some = rows[start : start + _READ_ROWS]
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


def _cosines(query: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Compute (n,) cosines of a query (D,) and features (n, D).

    They are computed in double and returned in single precision, so that a match has the same
    similarity whichever way it was found.
    """
    features = features.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(features, axis=1), _TINY)
    lengths *= max(float(np.linalg.norm(query)), _TINY)
    return np.clip((features * query.astype(np.float64)).sum(axis=1) / lengths, -1, 1).astype(
        np.float32
    )


def feature_cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Compute the cosine of two features (D,) in double, and return it in single precision."""
    lengths = max(float(np.linalg.norm(first)), _TINY) * max(float(np.linalg.norm(second)), _TINY)
    return max(-1.0, min(1.0, float(np.float32((first * second).sum() / lengths))))
