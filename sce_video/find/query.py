"""Search by example: the videos of an index that are most similar to a given one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from sce_video.datasets import video_exists
from sce_video.datasets.sources import is_elsewhere, split_row_path
from sce_video.datasets.windows import Query, parse_query
from sce_video.engine.checkpoint import file_sha256
from sce_video.evaluation.functional.neighbours import NotFiniteError, nearest_neighbours
from sce_video.find.index import VideoIndex, read_index, real_path, setting_differences
from sce_video.inference.embed import embed
from sce_video.inference.encoders.text import text_feature
from sce_video.inference.model import VideoModel, build_model, checkpoint_of, load_model
from sce_video.inference.model_settings import ModelSettings
from sce_video.inference.windows import embed_span
from sce_video.utils.storage import exists, is_url


@dataclass(frozen=True)
class Match:
    """One result of a query.

    Attributes:
        rank: From 1.
        path: Relative to the indexed folder.
        similarity: Cosine, -1 to 1.
        file: Absolute path of the video.
        row: Of the index; of merged windows that of the most similar one.
        start: Of the moment, seconds; None for a whole video.
        end: Likewise.
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
    """The k most similar moments, of windows.

    Of the k most similar windows, those of one video that overlap or follow each other are merged;
    a moment has the similarity and the row of its most similar window. Further moments are the most
    similar windows that touch no moment before them.

    Args:
        ranked: Returns that many of the most similar windows, fewer if there are no more.
        k: Number of moments.
    """
    count = 4 * k
    while True:
        windows = ranked(count)
        moments = _merged(windows, k)
        if len(moments) == k or len(windows) < count:
            return [replace(moment, rank=rank) for rank, moment in enumerate(moments, start=1)]
        count *= 4


def _merged(windows: Sequence[Match], k: int) -> list[Match]:
    moments: list[Match] = []
    for place, window in enumerate(windows):
        touching = [i for i, moment in enumerate(moments) if _touch(moment, window)]
        if not touching:
            if len(moments) == k:
                break
            moments.append(window)
        elif place < k:
            # The window may close the gap between two moments.
            joined = [moments[i] for i in touching]
            moments = [moment for i, moment in enumerate(moments) if i not in touching[1:]]
            moments[touching[0]] = replace(
                joined[0],
                start=min(each.span[0] for each in [*joined, window]),
                end=max(each.span[1] for each in [*joined, window]),
            )
    return moments


def _touch(first: Match, second: Match) -> bool:
    """Whether two windows are of one video and overlap, or one begins where the other ends."""
    (a, b), (c, d) = first.span, second.span
    return first.path == second.path and a <= d and c <= b


#: Rows read from the file at a time, and compared at a time: these stay in the cache of a core.
_READ_ROWS, _CACHED_ROWS = 16384, 512
#: Candidates beyond k, which are ranked in double precision; and a difference of similarities that
#: rounding to single precision may make.
_SPARE, _ROUNDING = 16, 1e-6
_TINY = 1e-12
#: Windows that are compared after whitening: at least so many, or this part of the index.
_POOL, _POOL_PART = 1000, 50
#: With more rows left out all others are compared.
_MOST_LEFT_OUT = 1000


def model_of_index(
    index: VideoIndex,
    checkpoint: str | os.PathLike | None = None,
    config: str | os.PathLike | None = None,
    device: str | torch.device | None = None,
) -> VideoModel:
    """The network that an index was built with.

    It is built from the settings in the index, which are validated as untrusted data.

    Args:
        index: From :func:`~sce_video.find.index.read_index`.
        checkpoint: Current path of the checkpoint; None for the path stored in the index.
        config: Config file, for a network that is registered by its ``custom_imports``.
        device: As in :func:`~sce_video.inference.model.load_model`.

    Raises:
        FileNotFoundError: there is no checkpoint at that path.
        ValueError: the checkpoint or the config is not that of the index.
    """
    path = checkpoint_of_index(index, checkpoint)
    if config is None:
        settings = ModelSettings.from_dict(index.settings.get("model", {}))
        return build_model(settings, path, device)
    model = load_model(path, Path(config), device)
    differences = setting_differences(index.settings["model"], model.settings.to_dict())
    if differences:
        raise ValueError(
            f"{config} does not match the index {index.folder}: {'; '.join(differences)}"
        )
    return model


def checkpoint_of_index(index: VideoIndex, checkpoint: str | os.PathLike | None = None) -> str:
    """Path of the checkpoint of an index, after a look at its content.

    Raises:
        FileNotFoundError: there is no checkpoint at that path.
        ValueError: it is not that of the index.
    """
    path = index.checkpoint["path"] if checkpoint is None else checkpoint_of(os.fspath(checkpoint))
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
    check_checkpoint(index, path)
    return path


def check_checkpoint(index: VideoIndex, path: str | os.PathLike) -> None:
    """Raise ValueError unless a file is the checkpoint that an index was built with."""
    digest = file_sha256(os.fspath(path))
    if digest != index.checkpoint["sha256"]:
        raise ValueError(
            f"{os.fspath(path)} (sha256 {digest[:12]}) is not the checkpoint that the index "
            f"{index.folder} was built with ({index.checkpoint['sha256'][:12]}, "
            f"{index.checkpoint['path']}): give that file (--checkpoint), "
            "or build the index from scratch"
        )


def rows_of_file(index: VideoIndex, video: str | os.PathLike) -> list[int]:
    """Rows of an index that are the given file, also if it is given by another path or a link; or
    the given row of the table that was indexed."""
    of_table = split_row_path(os.fspath(video))
    if of_table is not None:
        return index.stored.rows(of_table[1]) if real_path(of_table[0]) == index.root else []
    try:
        status = os.stat(video)
    except OSError:
        return []
    names = {
        os.path.relpath(os.path.abspath(video), index.root),
        os.path.relpath(os.path.realpath(video), index.root),
    }
    same_size = np.flatnonzero(index.stored.sizes == status.st_size)
    for path in sorted(set(index.stored.paths_of(same_size)) - names):
        with contextlib.suppress(OSError):
            if os.path.samestat(status, os.stat(index.file(path))):
                names.add(path)
    return sorted({row for name in names for row in index.stored.rows(name)})


def rows_of_query(index: VideoIndex, query: Query) -> list[int]:
    """Rows that are the query itself: those of the file, or its windows that share frames with
    the moment."""
    rows = rows_of_file(index, query.video)
    spans = index.stored.spans_of(np.array(rows, dtype=np.int64))
    if query.start is None or query.end is None or spans is None or not rows:
        return rows
    shared = (spans[:, 0] < query.end) & (spans[:, 1] > query.start)
    return [row for row, same in zip(rows, shared.tolist(), strict=True) if same]


def query_feature(
    index: VideoIndex, video: str | os.PathLike | Query, model: Callable[[], VideoModel]
) -> np.ndarray:
    """The feature (D,) of a video or of a moment of it; taken from an index of whole videos if the
    file is in it and unchanged.

    Args:
        index: From :func:`~sce_video.find.index.read_index`.
        video: A file, a URL or a row of a table; or the moment of one.
        model: Called for the network if the video has to be embedded.

    Raises:
        FileNotFoundError: no such file.
        VideoDecodeError: it cannot be decoded.
    """
    start = end = None
    if isinstance(video, Query):
        start, end = video.start, video.end
        video = video.video
    if not video_exists(video):
        raise FileNotFoundError(f"no video at {os.fspath(video)}")
    if start is not None and end is not None:
        return embed_span(model(), os.fspath(video), start, end, index.options)
    if index.windows is not None:
        return embed(model(), video, index.options)[0]
    for row in [] if is_elsewhere(os.fspath(video)) else rows_of_file(index, video):
        if index.is_unchanged(row, video):
            return np.array(index.features[row])
    return embed(model(), video, index.options)[0]


def text_query(
    index: VideoIndex, text: str, checkpoint: str | os.PathLike | None = None
) -> np.ndarray:
    """The embedding (D,) of a text, by the text encoder beside the index's video encoder.

    Args:
        index: Made by a video-text model.
        text: What the videos should show.
        checkpoint: Current path of the checkpoint; None for the path stored in the index.

    Raises:
        FileNotFoundError: there is no checkpoint at that path.
        ValueError: the checkpoint is not that of the index or has no text encoder; the text is
            empty or too long.
    """
    path = checkpoint_of_index(index, checkpoint)
    return text_feature(path, index.settings["model"]["backbone"], text)


def search(
    index: VideoIndex | str | os.PathLike,
    video: Query | str | os.PathLike | None = None,
    k: int = 10,
    *,
    text: str | None = None,
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
    """The videos of an index that are most similar to a video; of an index of windows the moments.

    This is what ``sce-video search`` lists.

    Args:
        index: From :func:`~sce_video.find.index.read_index`, or its folder.
        video: A file, a URL or a row of a table; or a moment of one, ``a.mp4@12.5-17``.
        k: Number of results.
        text: In place of a video: what the videos show; for an index made by a video-text model.
        checkpoint: Current path of the checkpoint; None for the path stored in the index.
        config: As of :func:`model_of_index`.
        device: Of the network.
        include_self: List the query itself, too, if it is indexed.
        centred: As of :func:`query_index`, like ``exact`` and ``whitened``; texts are not whitened
            unless it is asked for.
        exact: See above.
        whitened: See above.
        refine: Embed windows around so many of the best moments again, and rank anew; 0 for none.
        on_failure: Called with path and reason of each moment that could not be refined.

    Raises:
        FileNotFoundError: no such index, checkpoint or video.
        VideoDecodeError: the video cannot be decoded.
        ValueError: the index, the checkpoint or an option does not fit.
    """
    # Imported here, as that module imports this one.
    from sce_video.find.segments import own_moment, refine_moments, windows_near

    if not isinstance(index, VideoIndex):
        index = read_index(index)
    if checkpoint is not None:
        checkpoint = checkpoint_of_index(index, checkpoint)
    if whitened is None:
        whitened = index.whitens and text is None and not centred

    @cache
    def model() -> VideoModel:
        return model_of_index(index, checkpoint, config, device)

    own: list[int] = []
    moment: dict[str, tuple[float, float]] = {}
    if text is not None and video is None:
        feature = text_query(index, text, checkpoint)
    elif video is None or text is not None:
        raise ValueError("give a video or a text to search for, one of the two")
    else:
        query = video if isinstance(video, Query) else parse_query(os.fspath(video))
        feature = query_feature(index, query, model)
        if not include_self:
            own = rows_of_query(index, query)
            moment = own_moment(index, query, own)
    count = max(k, refine) if k > 0 else k
    matches = query_index(
        *(index, feature, count), leave_out=own, centred=centred, exact=exact, whitened=whitened
    )
    if refine:
        near = partial(windows_near, model(), index.options)
        found = refine_moments(
            *(index, feature, matches, near),
            centred=centred,
            whitened=whitened,
            without=moment,
            count=refine,
        )
        for path, reason in found.failures:
            if on_failure is not None:
                on_failure(path, reason)
        matches = found.matches[:k]
    return matches


def query_index(
    index: VideoIndex,
    feature: np.ndarray,
    k: int = 10,
    *,
    leave_out: list[int] | None = None,
    centred: bool = False,
    exact: bool = False,
    whitened: bool | None = None,
) -> list[Match]:
    """The videos of an index that are most similar to a feature, the most similar first.

    Of an index of windows they are moments: see :func:`~sce_video.find.query.merge_moments`.

    Args:
        index: From :func:`~sce_video.find.index.read_index`.
        feature: (D,), from the network of the index.
        k: Number of results; all videos if the index has fewer.
        leave_out: Rows excluded from the results, see :func:`rows_of_file`.
        centred: Subtract the mean feature of the index from all features first. It spreads out
            similarities that are all close to 1.
        exact: Compare all features, also where there is a vector index. Without one they are; they
            are too for centred similarities, and where many rows are left out.
        whitened: See :func:`query_rows`; None for ``index.whitens``, unless ``centred``.

    Raises:
        ValueError: the index is empty, sizes differ, ``k`` is below 1.
    """
    if whitened is None:
        whitened = index.whitens and not centred
    rows = partial(
        query_rows,
        *(index, feature),
        leave_out=leave_out,
        centred=centred,
        exact=exact,
        whitened=whitened,
    )
    return rows(k) if index.windows is None else merge_moments(rows, k)


def query_rows(
    index: VideoIndex,
    feature: np.ndarray,
    k: int,
    *,
    leave_out: list[int] | None = None,
    centred: bool = False,
    exact: bool = False,
    whitened: bool = False,
) -> list[Match]:
    """The k most similar rows, which may be windows of the same moment; see :func:`query_index`.

    ``whitened`` ranks the most similar rows (1000, or a fiftieth of the index) once more, by the
    cosine of their features after ``index.whitening``.
    """
    if len(index) == 0:
        raise ValueError(f"the index {index.folder} contains no video that could be decoded")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if whitened:
        if centred:
            raise ValueError("whitened features are centred already: choose one of the two")
        count = max(4 * k, _POOL, len(index) // _POOL_PART)
        pool = query_rows(index, feature, count, leave_out=leave_out, exact=exact)
        rows = np.array([match.row for match in pool], dtype=np.int64)
        features = index.whitening(np.asarray(index.stored.features[rows]))
        query = index.whitening(np.reshape(feature, -1))
        return _ranked(index, query, rows, features, [match.path for match in pool])[:k]
    query = np.array(feature, dtype=np.float32).reshape(-1)
    left_out = np.unique(np.array(leave_out or [], dtype=np.int64))
    wanted = min(k, len(index) - len(left_out))
    stored = index.stored
    usable = query.shape == stored.shape[1:] and np.isfinite(query).all() and query.any()
    # Of a query without direction, or of another size, the exact search says what is wrong.
    if usable and not exact and searches_approximately(index, centred, len(left_out)):
        rows, features, paths = stored.nearest(query, k + len(left_out) + _SPARE)
        kept = np.flatnonzero(~np.isin(rows, left_out))
        if len(kept) >= wanted:
            paths = [paths[i] for i in kept.tolist()]
            return _ranked(index, query, rows[kept], features[kept], paths)[:k]
    rows = _exact(index, query, k, left_out, centred)
    features, paths = np.asarray(stored.features[rows]), stored.paths_of(rows)
    mean = stored.mean if centred else None
    return _ranked(index, query, rows, features, paths, mean)[:k]


def searches_approximately(index: VideoIndex, centred: bool = False, left_out: int = 0) -> bool:
    """Whether :func:`query_index` uses a vector index, which may miss some of the results."""
    return index.stored.indexed is not None and not centred and left_out <= _MOST_LEFT_OUT


def _exact(
    index: VideoIndex, feature: np.ndarray, k: int, left_out: np.ndarray, centred: bool
) -> np.ndarray:
    """Rows of the k most similar features, and of some more that are about as similar."""
    query = torch.from_numpy(feature).reshape(1, -1)
    own = torch.zeros(len(index), dtype=torch.long)
    own[torch.from_numpy(left_out)] = 1
    mean = torch.from_numpy(index.stored.mean) if centred else None
    count = k + _SPARE
    while True:
        parts = []
        for start, features in index.stored.blocks(_READ_ROWS):
            # torch warns of arrays that it could write to but must not
            block = torch.from_numpy(features if features.flags.writeable else features.copy())
            try:
                values, rows = nearest_neighbours(
                    query,
                    block,
                    count,
                    query_groups=torch.ones(1, dtype=torch.long),
                    gallery_groups=own[start : start + len(block)],
                    query_mean=mean,
                    gallery_mean=mean,
                    gallery_block=_CACHED_ROWS,
                )
            except NotFiniteError as error:
                path = index.path(start + error.row)
                raise ValueError(
                    f"the index {index.folder} is damaged: the feature of {path} holds NaN or "
                    "infinity; build it from scratch (--rebuild, rebuild=True)"
                ) from error
            parts.append((values[0], rows[0] + start))
        similarities = torch.cat([values for values, _ in parts])
        rows = torch.cat([rows for _, rows in parts])
        similarities, order = similarities.sort(descending=True, stable=True)
        found = rows[order[:count]][similarities[:count] != float("-inf")].numpy()
        if len(found) < count or similarities[k - 1] - similarities[count - 1] > _ROUNDING:
            return found
        count *= 8  # many are as similar as the last one: their paths decide


def _ranked(
    index: VideoIndex,
    query: np.ndarray,
    rows: np.ndarray,
    features: np.ndarray,
    paths: list[str],
    mean: np.ndarray | None = None,
) -> list[Match]:
    """Candidates by their similarity, computed in double precision, then by path and start.

    So a match is the same whichever way it was found.
    """
    shift = 0.0 if mean is None else mean
    own = query.astype(np.float64) - shift
    spans = index.stored.spans_of(rows)
    times = [(None, None)] * len(paths) if spans is None else spans.tolist()
    found: list[Match] = []
    for row, feature, path, (start, end) in zip(rows, features, paths, times, strict=True):
        similarity = feature_cosine(own, feature.astype(np.float64) - shift)
        found.append(Match(0, path, similarity, index.file(path), int(row), start, end))
    found.sort(key=lambda match: (-match.similarity, match.path, match.start or 0.0))
    return [replace(match, rank=rank) for rank, match in enumerate(found, start=1)]


def feature_cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Cosine of two features (D,), computed in double and given in single precision."""
    lengths = max(float(np.linalg.norm(first)), _TINY) * max(float(np.linalg.norm(second)), _TINY)
    return max(-1.0, min(1.0, float(np.float32((first * second).sum() / lengths))))
