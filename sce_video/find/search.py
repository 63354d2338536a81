"""Search by examples and texts: what is searched for, its network, and refined moments."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sce_video.datasets.sources import Query, is_elsewhere, is_image, split_row_path, video_exists
from sce_video.find.columns import columns_of_index
from sce_video.find.label_list import LabelList, label_file
from sce_video.find.query import (
    Given,
    Match,
    QueryFeatures,
    SearchQuery,
    Weights,
    as_query,
    feature_cosine,
    query_index,
    weighted_features,
)
from sce_video.find.reading import index_mismatches, read_index, real_path
from sce_video.find.store import VideoIndex
from sce_video.utils.storage import exists, is_url

# What decodes and embeds is imported where it does: a search for an indexed video takes numpy only.
if TYPE_CHECKING:
    import torch

    from sce_video.inference.features import Features
    from sce_video.inference.model import VideoModel
    from sce_video.inference.network_input import VideoNetwork, ViewOptions


def model_of_index(
    index: VideoIndex,
    checkpoint: str | os.PathLike | None = None,
    config: str | os.PathLike | None = None,
    device: str | torch.device | None = None,
) -> VideoModel:
    """The network that an index was built with.

    It is built from the settings in the index, which are validated as untrusted data.

    Args:
        index: The index.
        checkpoint: Current path of the checkpoint; None for the path stored in the index.
        config: Config file, for a network that is registered by its ``custom_imports``.
        device: As in :func:`~sce_video.inference.model.load_model`.

    Raises:
        FileNotFoundError: there is no checkpoint at that path.
        ValueError: the checkpoint or the config is not that of the index.
    """
    from sce_video.inference.model import build_model, load_model
    from sce_video.inference.network_input import ModelSettings

    path = checkpoint_of_index(index, checkpoint)
    if config is None:
        settings = ModelSettings.from_dict(index.settings.get("model", {}))
        return build_model(settings, path, device)
    model = load_model(path, Path(config), device)
    differences = index_mismatches(index.settings["model"], model.settings.to_dict())
    if differences:
        raise ValueError(
            f"{config} does not match the index {index.folder}: {'; '.join(differences)}"
        )
    return model


def checkpoint_of_index(index: VideoIndex, checkpoint: str | os.PathLike | None = None) -> str:
    """Path of the checkpoint of an index, after a look at its content.

    Args:
        index: The index.
        checkpoint: Its current path; None for the path stored in the index.

    Raises:
        FileNotFoundError: there is no checkpoint at that path.
        ValueError: it is not that of the index, or the index names a URL and none was given.
    """
    from sce_video.engine.checkpoint import file_sha256
    from sce_video.inference.model import checkpoint_of

    stored, sha256 = index.checkpoint["path"], index.checkpoint["sha256"]
    path = stored if checkpoint is None else checkpoint_of(os.fspath(checkpoint))
    if checkpoint is None and is_url(path):  # an index may be a stranger's: it causes no requests
        raise ValueError(
            f"the index {index.folder} names a checkpoint in a store, which is not opened unasked: "
            f"give it, if you trust it: --checkpoint {path}"
        )
    if not exists(path):
        advice = ": give its current path (--checkpoint)" if checkpoint is None else ""
        raise FileNotFoundError(
            f"the checkpoint of the index {index.folder} is not at {path}{advice}"
        )
    digest = file_sha256(path)
    if digest != sha256:
        raise ValueError(
            f"{path} (sha256 {digest[:12]}) is not the checkpoint that the index {index.folder} "
            f"was built with ({sha256[:12]}, {stored}): give that file (--checkpoint), or build "
            "the index from scratch"
        )
    return path


def rows_of_file(index: VideoIndex, video: str | os.PathLike) -> list[int]:
    """Rows of an index that are the given file, by whatever path or link, or the row of a table."""
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
    """Rows that are the query itself: of the file, or windows and segments that share frames with
    the moment."""
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


def query_feature(
    index: VideoIndex, video: str | os.PathLike | Query, model: Callable[[], VideoModel]
) -> np.ndarray:
    """The feature (D,) of a video, of a moment of it, or of an image; taken from an index of whole
    videos if the file is in it and unchanged.

    Args:
        index: From :func:`~sce_video.find.index.read_index`.
        video: A file, a URL or a row of a table; or the moment of one.
        model: Called for the network if the video has to be embedded.

    Raises:
        FileNotFoundError: no such file.
        VideoDecodeError: it cannot be decoded.
    """
    query = video if isinstance(video, Query) else Query(os.fspath(video))
    if not video_exists(query.video):
        raise FileNotFoundError(f"no video at {query.video}")
    if query.start is None and index.windows is None and not is_elsewhere(query.video):
        for row in rows_of_file(index, query.video):
            if index.is_unchanged(row, query.video):
                return np.array(index.features[row])
    return embed_query(model(), query, index.options)


def embed_query(model: VideoModel, query: Query, options: ViewOptions) -> np.ndarray:
    """The feature (D,) of a video, of a moment of it, or of an image.

    An image is a clip of one repeated frame for a video network, and a frame for an image encoder.

    Raises:
        VideoDecodeError: it cannot be decoded, or is too large.
        ValueError: the moment of an image, or one behind the end of a video.
    """
    from sce_video.datasets.readers.base import DecodeLimits
    from sce_video.datasets.readers.images import read_image
    from sce_video.inference.embed import embed_videos
    from sce_video.inference.windows import embed_span

    if is_image(query.video):
        if query.start is not None:
            raise ValueError(f"{query.video} is an image: it has no moments")
        return embed_videos(model, read_image(query.video, DecodeLimits())[None], options)[0]
    if query.start is not None and query.end is not None:
        return embed_span(model, query.video, query.start, query.end, options)
    return embed_videos(model, query.video, options)[0]


class Example(NamedTuple):
    """Of an example, or of several of a label: features (M, D), its rows in the index, and by path
    the moments (start, end) in seconds with which no result may share frames."""

    features: np.ndarray
    rows: Sequence[int] | np.ndarray = ()
    moments: Mapping[str, list[tuple[float, float]]] = {}


def read_example(index: VideoIndex, query: Query, model: Callable[[], VideoModel]) -> Example:
    """A video, an image or a moment as an example; errors as of :func:`query_feature`."""
    feature = query_feature(index, query, model)
    rows = rows_of_query(index, query)
    return Example(feature[None], rows, own_moment(index, query, rows))


def examples_of_label(index: VideoIndex, labels: LabelList, name: str) -> tuple[Example, Example]:
    """The videos of an index with a label as one example, those with other labels as another.

    ValueError where the list has no such label, or no video of the index has it.
    """
    number, label_of_row = labels.number(name), labels.of_paths(index.paths)
    own = label_of_row == number
    if not own.any():
        raise ValueError(f"no video of the index {index.folder} has the label {name!r}")
    found = (np.flatnonzero(own), np.flatnonzero(~own & (label_of_row >= 0)))
    like, unlike = (Example(np.asarray(index.features[rows]), rows) for rows in found)
    # Where all rows are labelled, those with other labels are what can be found.
    return like, unlike if index.listed_in is None else unlike._replace(rows=())


class Examples(NamedTuple):
    """All of a query: its features, its rows in the index, and the moments of each path."""

    features: QueryFeatures
    rows: np.ndarray
    moments: dict[str, list[tuple[float, float]]]


def join_examples(
    like: Sequence[Example], unlike: Sequence[Example], text: np.ndarray | None, weights: Weights
) -> Examples:
    """Examples, counter-examples and the embedding (D,) of a text as one query."""
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


#: Moments that are refined unless another number is given, and the most that are refined twice.
MOST_REFINED = 5
_PARTS = 4  # of a stride in the first pass, and of that in the second
#: Takes a file, start and end of a window of it, and the seconds from one window to the next.
EmbedNear = Callable[[str, float, float, float], "Features"]


def refine_moments(
    index: VideoIndex,
    feature: np.ndarray | QueryFeatures,
    matches: Sequence[Match],
    near: EmbedNear,
    *,
    centred: bool = False,
    whitened: bool | None = None,
    without: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    count: int = MOST_REFINED,
) -> tuple[list[Match], list[tuple[str, str]]]:
    """Rank the best moments of a search again, by windows that begin between those of the index.

    The best window of each moment is moved by quarters of the stride, up to three to either side
    (the next whole one is in the index), then the five best by sixteenths. A window between two of
    the index shares more frames with a planted moment than either, so the right moment may overtake
    others, too::

        index          [---------)[---------)[---------)
        moment                [---------)
        first pass         [---------)  ...  and 6 more
        second pass          [---------)  ...  and 6 more

    Args:
        index: Of windows, not within shots.
        feature: (D,) of the query; or several with their weights.
        matches: From :func:`~sce_video.find.query.query_index` with this feature.
        near: Embeds windows by the network of the index: ``partial(windows_near, network,
            index.options)``, or what lets another process do that.
        centred: As for ``query_index``, like ``whitened``.
        whitened: Likewise.
        without: By path in the index, start and end of moments with which no result may share
            frames: those of a query of which ``query_index`` has left out the own rows.
        count: Moments to refine, the first ones; the others keep span and similarity.

    Returns:
        The moments, the most similar first, of which those that were refined are single windows;
        and (path, reason) of those that stayed as they were.

    Raises:
        ValueError: The index has no windows, or they end at cuts.
    """
    from sce_video.datasets.readers.base import VideoDecodeError

    step = _refinable_step(index)
    if whitened is None:
        whitened = index.whitens and not centred

    def compared(features: np.ndarray) -> np.ndarray:
        if whitened:
            return index.whitening(features)
        return features.astype(np.float64) - (index.mean if centred else 0.0)

    own = as_query(feature).combined(compared)

    def moved(match: Match, span: Sequence[float], step: float) -> Match | None:
        """The match with the best window near one; None where all share frames with the query."""
        start, end = span
        found = near(match.file, start, end, step)
        similarities = np.array([feature_cosine(own, row) for row in compared(found.values)])
        for begin, stop in (without or {}).get(match.path, ()):
            similarities[(found.starts < stop) & (found.ends > begin)] = -np.inf
        # Of windows with the same frames the one that moves least.
        best = np.lexsort((np.abs(found.starts - start), -similarities))[0]
        if similarities[best] == -np.inf:
            return None
        start, end = float(found.starts[best]), float(found.ends[best])
        return replace(match, similarity=float(similarities[best]), start=start, end=end)

    refined: list[Match] = []
    stay, failures = list(matches[count:]), []
    for match in matches[:count]:
        window = None
        try:
            if not is_elsewhere(match.file) and not index.is_unchanged(match.row, match.file):
                raise OSError(f"{match.file} has changed since it was indexed: update the index")
            # Its most similar window, of which it may have several.
            assert index.spans is not None
            window = moved(match, index.spans[match.row].tolist(), step / _PARTS)
        except (VideoDecodeError, OSError) as error:
            failures.append((match.path, str(error)))
        (stay if window is None else refined).append(window or match)
    refined = _by_similarity(refined)
    for number, match in enumerate(refined[:MOST_REFINED]):
        try:
            refined[number] = moved(match, match.span, step / _PARTS**2) or match
        except (VideoDecodeError, OSError) as error:
            failures.append((match.path, str(error)))
    return _by_similarity([*refined, *stay]), failures


def _refinable_step(index: VideoIndex) -> float:
    """Seconds from one window of an index to the next."""
    if index.windows is None:
        raise ValueError(
            f"the index {index.folder} is one of whole videos: only moments can be refined "
            "(sce-video index --windows 5s)"
        )
    if index.windows.shots:
        raise ValueError(
            f"the windows of {index.folder} end at cuts, which the index does not hold: their "
            "moments cannot be refined"
        )
    return index.windows.step


def own_moment(
    index: VideoIndex, query: Query, rows: Sequence[int]
) -> dict[str, list[tuple[float, float]]]:
    """``without`` of :func:`refine_moments` for a query, given its rows in the index."""
    if query.start is None or query.end is None:
        return {}  # all of the video has been left out
    paths = index.paths_of(np.array(rows, dtype=np.int64))
    return {path: [(query.start, query.end)] for path in paths}


def windows_near(
    network: VideoNetwork, options: ViewOptions, file: str, start: float, end: float, step: float
) -> Features:
    """A window of a video, and three at either side, ``step`` seconds apart; inside the video."""
    from sce_video.inference.windows import open_patiently, windows_of_reader

    with open_patiently(file, options) as reader:
        starts = start + np.arange(1 - _PARTS, _PARTS) * step
        starts = np.unique(np.clip(starts, 0.0, max(0.0, reader.duration - (end - start))))
        spans = np.stack([starts, np.minimum(starts + (end - start), reader.duration)], axis=1)
        return windows_of_reader(network, reader, spans, options)


def _by_similarity(matches: Sequence[Match]) -> list[Match]:
    """By similarity; of two moments that share frames the better one."""
    kept: list[Match] = []
    for match in sorted(matches, key=lambda m: (-m.similarity, m.path, m.start or 0.0)):
        a, b = match.span
        if not any(m.path == match.path and a < m.span[1] and m.span[0] < b for m in kept):
            kept.append(match)
    return [replace(match, rank=rank) for rank, match in enumerate(kept, start=1)]


def search(
    index: VideoIndex | str | os.PathLike,
    query: SearchQuery | Given | Sequence[Given],
    k: int = 10,
    *,
    where: str = "",
    columns: str | os.PathLike | None = None,
    labels: str | os.PathLike | None = None,
    checkpoint: str | os.PathLike | None = None,
    config: str | os.PathLike | None = None,
    device: str | torch.device | None = None,
    include_self: bool = False,
    centred: bool = False,
    exact: bool = False,
    whitened: bool | None = None,
    refine: int = 0,
    on_failure: Callable[[str, str], None] | None = None,
) -> list[Match]:
    """The videos of an index that are most similar to what is searched for; of an index of windows
    the moments.

    This is what ``sce-video search`` lists.

    Args:
        index: From :func:`~sce_video.find.index.read_index`, or its folder.
        query: A file (video or image), a URL or a row of a table; a moment, ``a.mp4@12.5-17``;
            several of them; or a :class:`~sce_video.find.query.SearchQuery` with
            counter-examples, a text, a label and weights.
        k: Number of results.
        where: Only videos of which this SQL condition on ``columns`` is true.
        columns: CSV file of :class:`~sce_video.find.columns.VideoColumns`; None for
            ``INDEX/columns.csv``, if it is there.
        labels: List of labels of ``query.label``; None for ``INDEX/labels.txt``.
        checkpoint: Current path of the checkpoint; None for the path stored in the index.
        config: As of :func:`model_of_index`.
        device: Of the network.
        include_self: List the examples, too, if they are indexed.
        centred: As of :func:`query_index`, like ``exact`` and ``whitened``; queries with a text are
            not whitened unless it is asked for.
        exact: See above.
        whitened: See above.
        refine: Embed windows around so many of the best moments again, and rank anew; 0 for none.
        on_failure: Called with path and reason of each moment that could not be refined.

    Raises:
        FileNotFoundError: no such index, checkpoint, video or file of columns.
        VideoDecodeError: a video cannot be decoded.
        ValueError: the index, the checkpoint, the condition or an option does not fit.
    """
    if not isinstance(index, VideoIndex):
        index = read_index(index)
    if not isinstance(query, SearchQuery):
        query = SearchQuery(like=query)
    if checkpoint is not None:
        checkpoint = checkpoint_of_index(index, checkpoint)
    if whitened is None:
        whitened = index.whitens and query.text is None and not centred

    @cache
    def model() -> VideoModel:
        return model_of_index(index, checkpoint, config, device)

    # Before anything is decoded: a mistyped condition is told at once.
    passing = columns_of_index(index, columns).matching(where) if where else None
    given = _read_query(index, query, model, labels, checkpoint)
    out = np.empty(0, np.int64) if include_self else given.rows
    if passing is not None:
        out = np.concatenate([out, np.flatnonzero(~passing)])
    count = max(k, refine) if k > 0 else k
    matches = query_index(
        *(index, given.features, count),
        leave_out=out,
        centred=centred,
        exact=exact,
        whitened=whitened,
    )
    if refine:
        matches, failures = refine_moments(
            *(index, given.features, matches, partial(windows_near, model(), index.options)),
            centred=centred,
            whitened=whitened,
            without={} if include_self else given.moments,
            count=refine,
        )
        for path, reason in failures:
            if on_failure is not None:
                on_failure(path, reason)
        matches = matches[:k]
    return matches


def _read_query(
    index: VideoIndex,
    query: SearchQuery,
    model: Callable[[], VideoModel],
    labels: str | os.PathLike | None,
    checkpoint: str | os.PathLike | None,
) -> Examples:
    """The features of the examples, the text and the label of a query."""
    like, unlike = (
        [read_example(index, each, model) for each in examples]
        for examples in (query.like, query.unlike)
    )
    if query.label is not None:
        known = LabelList(label_file(index.folder, labels))
        own, others = examples_of_label(index, known, query.label)
        like, unlike = [*like, own], [*unlike, others]
    text = None
    if query.text is not None:
        from sce_video.inference.encoders.text import text_feature

        path = checkpoint_of_index(index, checkpoint)
        text = text_feature(path, index.settings["model"]["backbone"], query.text)
    return join_examples(like, unlike, text, query.weights)
