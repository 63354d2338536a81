"""Queries, and the rows or moments of an index that are most similar to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from sce_video.datasets.sources import Query
from sce_video.find.store import VideoIndex
from sce_video.options.search import LIKE_WEIGHT, TEXT_WEIGHT, UNLIKE_WEIGHT

#: Smallest length of a feature that is divided by, so that zeros remain zeros.
_TINY = 1e-12
#: A sum of unit features that is shorter than this part of their weights has no direction.
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
    """What is searched for.

    Attributes:
        like: Videos, images, or moments of videos that results should resemble.
        unlike: Videos, images, or moments that results should not resemble.
        text: What results show; for an index made by a video-text model.
        label: A label of the list. Its videos are further examples, all others counter-examples.
        weights: Weights of these parts.
    """

    like: tuple[Query, ...] = ()
    unlike: tuple[Query, ...] = ()
    text: str | None = None
    label: str | None = None
    weights: Weights = Weights()

    def describe(self) -> str:
        """Return what is searched for; the parts with their weights if there are several."""
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
    """Features of a query (M, D), and their weights (M,), negative for counter-examples.

    The query is the weighted sum of the features, each of length 1, where they are compared: after
    centring or whitening, if there is any (Rocchio 1971, "Relevance feedback in information
    retrieval"). A single one is the query as it is.
    """

    features: np.ndarray
    weights: np.ndarray

    def __post_init__(self) -> None:
        if not (self.weights > 0).any():
            raise ValueError("no example, text or label has a weight above 0")

    def combined(self, compared: Callable[[np.ndarray], np.ndarray] | None = None) -> np.ndarray:
        """Return the query (D,) float64.

        Args:
            compared: Maps features as the ones of the index are mapped; None leaves them.

        Raises:
            ValueError: If examples and counter-examples cancel each other.
        """
        rows = self.features.astype(np.float64) if compared is None else compared(self.features)
        if len(rows) == 1:
            return rows[0]
        lengths = np.linalg.norm(rows, axis=1)
        total = self.weights @ (rows / np.maximum(lengths, _TINY)[:, None])
        if np.linalg.norm(total) < _CANCELLED * np.abs(self.weights).sum():
            raise ValueError(
                "the examples cancel each other: nothing is left to search for; leave one out, or "
                "change the weights"
            )
        return total * lengths.mean()  # about as long as a feature, for what is added to it


def weighted_features(
    like: np.ndarray, unlike: np.ndarray, text: np.ndarray | None, weights: Weights
) -> QueryFeatures:
    """Build the query of examples (P, D), counter-examples (N, D) and the embedding (D,) of a text.

    Features of one kind share its weight equally.

    Raises:
        ValueError: If nothing has a weight above 0.
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
        rank: Rank from 1.
        path: Path relative to the indexed folder.
        similarity: Cosine, -1 to 1.
        file: Absolute path of the video.
        row: Row of the index; for merged windows, the row of the most similar one.
        start: Start of the moment in seconds; None for a whole video.
        end: End of the moment in seconds; None for a whole video.
    """

    rank: int
    path: str
    similarity: float
    file: str
    row: int = field(default=-1, compare=False)  # an update of the index may move rows
    start: float | None = None
    end: float | None = None

    @property
    def distance(self) -> float:
        """1 - similarity, 0 to 2."""
        return 1.0 - self.similarity

    @property
    def span(self) -> tuple[float, float]:
        """Start and end of the moment, seconds; of a whole video all time."""
        if self.start is None or self.end is None:
            return -float("inf"), float("inf")
        return self.start, self.end


def merge_moments(ranked: Callable[[int], Sequence[Match]], k: int) -> list[Match]:
    """Find the k most similar moments in windows.

    Among the k most similar windows, windows of one video that overlap or follow each other are
    merged. A moment has the similarity and the row of its most similar window. Further moments are
    the most similar windows that touch no moment before them.

    Args:
        ranked: Returns that many of the most similar windows, fewer if there are no more.
        k: Number of moments.
    """
    count = 4 * k
    while True:
        windows = ranked(count)
        moments: list[Match] = []
        for number, window in enumerate(windows):
            # Of one video, and they overlap or one begins where the other ends.
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
                # The window may close the gap between two moments.
                spans = [window.span, *(moments[i].span for i in touching)]
                start, end = min(s for s, _ in spans), max(e for _, e in spans)
                moments[touching[0]] = replace(moments[touching[0]], start=start, end=end)
                moments = [moment for i, moment in enumerate(moments) if i not in touching[1:]]
        if len(moments) == k or len(windows) < count:
            return [replace(moment, rank=rank) for rank, moment in enumerate(moments, start=1)]
        count *= 4


#: Rows that are read from the file at a time.
_READ_ROWS = 16384
#: Rows that are compared at a time, so that they stay in the cache of a core.
_CACHED_ROWS = 512
#: Candidates of a vector index beyond k, which are then ranked in double precision.
_SPARE = 16
#: Difference between two similarities that rounding to single precision may make.
_ROUNDING = 1e-6
#: Windows that are compared after whitening at least.
_POOL = 1000
#: Windows that are compared after whitening in a large index: one of this many.
_POOL_PART = 50
#: Candidates that a vector index gives within some dozen milliseconds, for whitening and filters.
_MOST_CANDIDATES = 2000
#: Rows left out up to which a vector index is asked for as many more candidates. With more rows
#: left out it is asked for more in proportion.
_MOST_LEFT_OUT = 1000
#: Factor on that proportion, chosen by hand, because the rows left out need not be typical.
_MORE = 1.5
#: Remaining rows up to which they are compared one by one, without the vector index.
_FEW = 5000
#: Where a smaller part of the rows remains, only these are read.
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

    In an index of windows, they are moments, see :func:`~sce_video.find.query.merge_moments`.

    Args:
        index: From :func:`~sce_video.find.index.read_index`.
        feature: (D,), from the network of the index; or several with their weights.
        k: Number of results; all videos if the index has fewer.
        leave_out: Rows excluded from the results, see
            :func:`~sce_video.find.examples.rows_of_file`.
        centred: Subtract the mean feature of the index from all features first. It spreads out
            similarities that are all close to 1.
        exact: Compare all features, also where there is a vector index. Without one they are; they
            are too for centred similarities, and where many rows are left out.
        whitened: Rank by the cosine of features after ``index.whitening``, of candidates (1000, or
            a fiftieth of the index) for which the product with the whitened query, mapped back, is
            largest; None for ``index.whitens``, unless ``centred``.

    Raises:
        ValueError: the index is empty, sizes differ, ``k`` is below 1.
    """
    if whitened is None:
        whitened = index.whitens and not centred
    if len(index) == 0:
        raise ValueError(f"the index {index.folder} contains no video that could be decoded")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if whitened and centred:
        raise ValueError("whitened features are centred already: choose one of the two")
    query = as_query(feature)
    compared = query.combined()
    if centred and len(query.features) > 1:  # the mean is subtracted again, with that of the rows
        compared = index.mean + query.combined(lambda rows: rows - index.mean)
    single = compared.astype(np.float32)
    if whitened and single.shape == index.shape[1:]:
        # (x - mean) M . (q - mean) M is x . (q - mean) M M^T and a constant: a cosine with the
        # features as they are finds candidates, and leaves out the length of (x - mean) M alone.
        mapped = query.combined(index.whitening) @ index.whitening.matrix.T
        single = mapped.astype(np.float32)
    left_out = np.unique(np.asarray(leave_out, dtype=np.int64))
    kept = None  # all: of ten million rows a mask takes longer than the vector index
    if len(left_out):
        kept = np.ones(len(index), dtype=bool)
        kept[left_out] = False
    approximate = not exact and searches_approximately(index, centred, len(left_out))

    @cache
    def candidates(size: int, least: int) -> tuple[np.ndarray, np.ndarray]:
        """Return about ``size`` of the most similar rows, or ``least``, and their similarities."""
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
    """Return a feature (D,) as a query with one example."""
    if isinstance(feature, QueryFeatures):
        return feature
    return QueryFeatures(np.array(feature, dtype=np.float32).reshape(1, -1), np.ones(1))


def _approximate(
    index: VideoIndex, query: np.ndarray, size: int, least: int, kept: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Rows and features (n, D) of about ``size`` of the most similar rows among those kept, by the
    vector index; None where it gives fewer than ``least``, or cannot compare the query."""
    # Of a query without direction, or of another size, the exact search says what is wrong.
    if query.shape != index.shape[1:] or not np.isfinite(query).all() or not query.any():
        return None
    left = len(index) if kept is None else int(kept.sum())
    if len(index) - left <= _MOST_LEFT_OUT:  # they may be the most similar ones: the query's own
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
    """Rows and features of the k most similar rows among those kept, and of those that rounding
    might put among them.

    By numpy: importing torch takes longer than most searches.

    Raises:
        ValueError: sizes differ, or the query, a feature or their mean holds NaN or infinity.
    """
    if not np.isfinite(feature).all():
        raise ValueError(
            "queries: 1 of 1 rows hold NaN or infinity, the first is row 0: the network that made "
            "them has diverged"
        )
    if feature.shape != index.shape[1:]:
        raise ValueError(
            f"queries have {feature.size} dimensions, the gallery {index.shape[1]}: they must come "
            "from the same network"
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
                f"the index {index.folder} is damaged: the {what} holds NaN or infinity; build it "
                "from scratch (--rebuild, rebuild=True)"
            )
    similarities[~kept] = -np.inf
    k = min(k, int(kept.sum()))
    least = np.partition(similarities, -k)[-k] - _ROUNDING if k else np.inf
    rows = np.flatnonzero(kept & (similarities >= least))
    return rows, np.asarray(index.features[rows])


def _unit(rows: np.ndarray) -> np.ndarray:
    """Return rows (n, D) divided by their lengths."""
    with np.errstate(over="ignore", invalid="ignore"):  # the caller sees what is not finite
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        return rows / np.maximum(lengths, np.float32(_TINY))[:, None]


def _blocks(index: VideoIndex, kept: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows and features, some at a time: all of an index, or only the kept ones if few."""
    if kept.sum() * _SMALL_PART > len(index):
        for start, features in index.blocks(_READ_ROWS):
            yield np.arange(start, start + len(features)), features
        return
    rows = np.flatnonzero(kept)
    for start in range(0, len(rows), _READ_ROWS):
        some = rows[start : start + _READ_ROWS]
        yield some, np.asarray(index.features[some])


def _ranked(index: VideoIndex, rows: np.ndarray, similarities: np.ndarray, k: int) -> list[Match]:
    """Return the k most similar of some rows, by similarity, then by path and start."""
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
    """(n,) cosines of a query (D,) and features (n, D), computed in double and given in single
    precision, so that a match is the same whichever way it was found."""
    features = features.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(features, axis=1), _TINY)
    lengths *= max(float(np.linalg.norm(query)), _TINY)
    return np.clip((features * query.astype(np.float64)).sum(axis=1) / lengths, -1, 1).astype(
        np.float32
    )


def feature_cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Cosine of two features (D,), computed in double and given in single precision."""
    lengths = max(float(np.linalg.norm(first)), _TINY) * max(float(np.linalg.norm(second)), _TINY)
    return max(-1.0, min(1.0, float(np.float32((first * second).sum() / lengths))))
