"""Examples of a query: their features, and the rows of the index that are the examples."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from sce_video.datasets.sources import Query, is_elsewhere, is_image, split_row_path, video_exists
from sce_video.find.label_list import LabelList
from sce_video.find.query import QueryFeatures, Weights
from sce_video.find.reading import real_path
from sce_video.find.store import VideoIndex

# Import this only to embed a file, because a search for an indexed video needs only NumPy.
if TYPE_CHECKING:
    from sce_video.inference.model import VideoModel
    from sce_video.inference.network_input import ViewOptions

#: Start and end in seconds of moments with which no result may share frames, by path in the index.
Moments = Mapping[str, Sequence[tuple[float, float]]]


def rows_of_file(index: VideoIndex, video: str | os.PathLike) -> list[int]:
    """Return the index rows of a file, given by any path or link, or of a row in a table."""
    of_table = split_row_path(os.fspath(video))
    if of_table is not None:
        return index.rows(of_table[1]) if real_path(of_table[0]) == index.root else []
    try:
        status = os.stat(video)
    except OSError:
        return []
    names = {
        os.path.relpath(os.path.abspath(video), index.root),
        os.path.relpath(os.path.realpath(video), index.root),
    }
    same_size = np.flatnonzero(index.sizes == status.st_size)
    for path in sorted(set(index.paths_of(same_size)) - names):
        with contextlib.suppress(OSError):
            if os.path.samestat(status, os.stat(index.file(path))):
                names.add(path)
    return sorted({row for name in names for row in index.rows(name)})


def _span(start: float | None, end: float | None) -> tuple[float, float]:
    """Return start and end of a moment in seconds; a whole video has no end."""
    return (0.0, math.inf) if start is None or end is None else (start, end)


def rows_of_query(index: VideoIndex, query: Query) -> list[int]:
    """Return the rows that are the query itself.

    For a file, these are all of its rows. For a moment, they are the windows or segments that share
    frames with it.
    """
    if index.listed_in is not None:
        real, (begin, stop) = cache(os.path.realpath), _span(query.start, query.end)
        own = []
        for row, path in enumerate(index.paths):
            file, first, last = index.place(path)
            start, end = _span(first, last)
            if start < stop and end > begin and real(file) == real(query.video):
                own.append(row)
        return own
    rows = rows_of_file(index, query.video)
    if query.start is None or query.end is None or index.spans is None:
        return rows
    starts, ends = index.spans[rows].T
    shared = (starts < query.end) & (ends > query.start)
    return [row for row, same in zip(rows, shared.tolist(), strict=True) if same]


def own_moment(
    index: VideoIndex, query: Query, rows: Sequence[int]
) -> dict[str, list[tuple[float, float]]]:
    """Return the moment of a query under each path that it has in the index."""
    if query.start is None or query.end is None:
        return {}  # For a whole video, excluding its rows is enough.
    paths = index.paths_of(np.array(rows, dtype=np.int64))
    return {path: [(query.start, query.end)] for path in paths}


def query_feature(
    index: VideoIndex, video: str | os.PathLike | Query, model: Callable[[], VideoModel]
) -> np.ndarray:
    """Return the feature (D,) of a video, of a moment in a video, or of an image.

    If the index contains the whole video and the file has not changed, the feature is read from the
    index. Otherwise the video is embedded.

    Args:
        index: The index.
        video: File, URL or row of a table, or a moment in one of these.
        model: Function that returns the network. It is called only to embed the video.

    Raises:
        FileNotFoundError: If the video does not exist.
        VideoDecodeError: If the video cannot be decoded.
    """
    query = video if isinstance(video, Query) else Query(os.fspath(video))
    if not video_exists(query.video):
        raise FileNotFoundError(f"no video at {query.video}")
    if query.start is None and index.windows is None and not is_elsewhere(query.video):
        for row in rows_of_file(index, query.video):
            if index.is_unchanged(row, query.video):
                return np.array(index.features[row])
    return embed_query(model(), query, index.options)


def embed_query(model: VideoModel, query: Query, views: ViewOptions) -> np.ndarray:
    """Embed a video, a moment in a video, or an image, and return the feature (D,).

    A video network receives an image as a clip that repeats the image in every frame.

    Raises:
        VideoDecodeError: If the file cannot be decoded, or its frames are too large.
        ValueError: If the query is a moment of an image, or lies beyond the end of the video.
    """
    from sce_video.datasets.readers.base import DecodeLimits
    from sce_video.datasets.readers.images import read_image
    from sce_video.inference.embed import embed_videos
    from sce_video.inference.windows import embed_span

    if is_image(query.video):
        if query.start is not None:
            raise ValueError(f"{query.video} is an image, which has no moments. Remove @START-END")
        return embed_videos(model, read_image(query.video, DecodeLimits())[None], views)[0]
    if query.start is not None and query.end is not None:
        return embed_span(model, query.video, query.start, query.end, views)
    return embed_videos(model, query.video, views)[0]


@dataclass(frozen=True, eq=False)
class Example:
    """One example, or all examples with a label.

    Attributes:
        features: (M, D) features.
        rows: Rows of the index that are the examples.
        moments: Moments with which no result may share frames.
    """

    features: np.ndarray
    rows: Sequence[int] | np.ndarray = ()
    moments: Moments = field(default_factory=dict)


def read_example(index: VideoIndex, query: Query, model: Callable[[], VideoModel]) -> Example:
    """Read a video, an image or a moment as an example, like :func:`query_feature`."""
    feature = query_feature(index, query, model)
    rows = rows_of_query(index, query)
    return Example(feature[None], rows, own_moment(index, query, rows))


def examples_of_label(index: VideoIndex, labels: LabelList, name: str) -> tuple[Example, Example]:
    """Return the indexed videos with a label as examples, and those with other labels separately.

    Raises:
        ValueError: If the list has no such label, or no video of the index has the label.
    """
    number, label_of_row = labels.number(name), labels.of_paths(index.paths)
    own = label_of_row == number
    if not own.any():
        raise ValueError(f"no video of the index {index.folder} has the label {name!r}")
    found = (np.flatnonzero(own), np.flatnonzero(~own & (label_of_row >= 0)))
    like, unlike = (Example(np.asarray(index.features[rows]), rows) for rows in found)
    # In an index of labelled segments, only counter-examples can be results, so keep their rows.
    return like, unlike if index.listed_in is None else replace(unlike, rows=())


@dataclass(frozen=True, eq=False)
class Examples:
    """All examples of a query, combined.

    Attributes:
        features: Features and their weights.
        rows: (R,) rows of the index that are the query itself.
        moments: Moments with which no result may share frames.
    """

    features: QueryFeatures
    rows: np.ndarray
    moments: Moments


def join_examples(
    like: Sequence[Example], unlike: Sequence[Example], text: np.ndarray | None, weights: Weights
) -> Examples:
    """Combine examples, counter-examples and a text embedding (D,) into one query.

    All examples together have one weight, which they share equally, and so do all counter-examples.

    Raises:
        ValueError: If no part has a weight above 0.
    """
    words = [] if text is None else [Example(text.reshape(1, -1))]
    parts = ((words, weights.text), (like, weights.like), (unlike, -weights.unlike))
    features, shares = [], []
    for examples, weight in parts:
        count = sum(len(example.features) for example in examples)
        if count and weight:
            features += [example.features for example in examples]
            shares.append(np.full(count, weight / count))
    if not features:
        raise ValueError("no example, text or label has a weight above 0")
    both = [*like, *unlike]
    moments: dict[str, list[tuple[float, float]]] = {}
    for example in both:
        for path, spans in example.moments.items():
            moments.setdefault(path, []).extend(spans)
    rows = [np.asarray(example.rows, dtype=np.int64) for example in both]
    return Examples(
        QueryFeatures(np.concatenate(features), np.concatenate(shares)),
        np.unique(np.concatenate([np.empty(0, dtype=np.int64), *rows])),
        moments,
    )
