"""Examples of a query: their features, and their own rows in the index."""

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
from sce_video.find.query import QueryFeatures, Weights, weighted_features
from sce_video.find.reading import real_path
from sce_video.find.store import VideoIndex

# Imported where a file is embedded, because a search for an indexed video needs NumPy only.
if TYPE_CHECKING:
    from sce_video.inference.model import VideoModel
    from sce_video.inference.network_input import ViewOptions

#: For each path in the index, start and end in seconds of the moments with which no result may
#: share frames.
Moments = Mapping[str, Sequence[tuple[float, float]]]


def rows_of_file(index: VideoIndex, video: str | os.PathLike) -> list[int]:
    """Return the rows of an index that are a file, by any path or link, or a row of a table."""
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
    return (0.0, math.inf) if start is None or end is None else (start, end)


def rows_of_query(index: VideoIndex, query: Query) -> list[int]:
    """Return the rows that are the query itself.

    They are the rows of its file. Among windows and segments, they are the rows that share frames
    with the moment.
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
    """Return the moment of a query by the paths of its rows in the index."""
    if query.start is None or query.end is None:
        return {}  # all rows of the video have been left out
    paths = index.paths_of(np.array(rows, dtype=np.int64))
    return {path: [(query.start, query.end)] for path in paths}


def query_feature(
    index: VideoIndex, video: str | os.PathLike | Query, model: Callable[[], VideoModel]
) -> np.ndarray:
    """Return the feature (D,) of a video, of a moment of it, or of an image.

    It is read from an index of whole videos if the file is in it and has not changed.

    Args:
        index: The index.
        video: A file, a URL or a row of a table; or the moment of one.
        model: Called for the network if the video has to be embedded.

    Raises:
        FileNotFoundError: If there is no such file.
        VideoDecodeError: If it cannot be decoded.
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
    """Embed a video, a moment of it, or an image to a feature (D,).

    An image is a clip of one repeated frame for a video network, and a frame for an image encoder.

    Raises:
        VideoDecodeError: If it cannot be decoded, or is too large.
        ValueError: If it is the moment of an image, or a moment beyond the end of a video.
    """
    from sce_video.datasets.readers.base import DecodeLimits
    from sce_video.datasets.readers.images import read_image
    from sce_video.inference.embed import embed_videos
    from sce_video.inference.windows import embed_span

    if is_image(query.video):
        if query.start is not None:
            raise ValueError(f"{query.video} is an image, so it has no moments")
        return embed_videos(model, read_image(query.video, DecodeLimits())[None], views)[0]
    if query.start is not None and query.end is not None:
        return embed_span(model, query.video, query.start, query.end, views)
    return embed_videos(model, query.video, views)[0]


@dataclass(frozen=True, eq=False)
class Example:
    """An example, or several examples of a label.

    Attributes:
        features: (M, D) features.
        rows: Rows of the index that are the examples.
        moments: Moments with which no result may share frames.
    """

    features: np.ndarray
    rows: Sequence[int] | np.ndarray = ()
    moments: Moments = field(default_factory=dict)


def read_example(index: VideoIndex, query: Query, model: Callable[[], VideoModel]) -> Example:
    """Return a video, an image or a moment as an example; see :func:`query_feature` for errors."""
    feature = query_feature(index, query, model)
    rows = rows_of_query(index, query)
    return Example(feature[None], rows, own_moment(index, query, rows))


def examples_of_label(index: VideoIndex, labels: LabelList, name: str) -> tuple[Example, Example]:
    """Return an index's videos with a label as one example, and all others as another.

    Raises:
        ValueError: If the list has no such label, or no video of the index has it.
    """
    number, label_of_row = labels.number(name), labels.of_paths(index.paths)
    own = label_of_row == number
    if not own.any():
        raise ValueError(f"no video of the index {index.folder} has the label {name!r}")
    found = (np.flatnonzero(own), np.flatnonzero(~own & (label_of_row >= 0)))
    like, unlike = (Example(np.asarray(index.features[rows]), rows) for rows in found)
    # If all rows are labelled, rows with other labels are the only possible results.
    return like, unlike if index.listed_in is None else replace(unlike, rows=())


@dataclass(frozen=True, eq=False)
class Examples:
    """All parts of a query.

    Attributes:
        features: The features and their weights.
        rows: (R,) rows of the index that are the query itself.
        moments: Moments with which no result may share frames.
    """

    features: QueryFeatures
    rows: np.ndarray
    moments: Moments


def join_examples(
    like: Sequence[Example], unlike: Sequence[Example], text: np.ndarray | None, weights: Weights
) -> Examples:
    """Join examples, counter-examples and the embedding (D,) of a text to one query."""
    none = np.empty((0, 0), dtype=np.float32)
    parts = [
        np.concatenate([e.features for e in examples]) if examples else none
        for examples in (like, unlike)
    ]
    both = [*like, *unlike]
    moments: dict[str, list[tuple[float, float]]] = {}
    for example in both:
        for path, spans in example.moments.items():
            moments.setdefault(path, []).extend(spans)
    rows = [np.asarray(example.rows, dtype=np.int64) for example in both]
    return Examples(
        weighted_features(parts[0], parts[1], text, weights),
        np.unique(np.concatenate([np.empty(0, dtype=np.int64), *rows])),
        moments,
    )
