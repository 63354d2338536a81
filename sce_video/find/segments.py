"""Moments found to a fraction of the stride: windows around the best ones are embedded again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sce_video.datasets import VideoDecodeError
from sce_video.datasets.sources import is_elsewhere
from sce_video.datasets.windows import Query, Windows
from sce_video.find.index import VideoIndex
from sce_video.find.query import Match, cosine
from sce_video.inference.views import EmbedOptions, VideoNetwork
from sce_video.inference.windows import WindowFeatures, open_patiently, windows_of_reader

#: Moments that are refined unless another number is given, and the most that are refined twice.
MOST_REFINED = 5
_PARTS = 4  # of a stride in the first pass, and of that in the second
#: Takes a file, start and end of a window of it, and the seconds from one window to the next.
EmbedNear = Callable[[str, float, float, float], WindowFeatures]


@dataclass(frozen=True)
class RefinedMoments:
    """Moments, the most similar first.

    Attributes:
        matches: Those that were refined are single windows.
        failures: (path, reason) of those that stayed as they were.
    """

    matches: list[Match]
    failures: list[tuple[str, str]]


def refine_moments(
    index: VideoIndex,
    feature: np.ndarray,
    matches: Sequence[Match],
    network: VideoNetwork,
    *,
    centred: bool = False,
    whitened: bool | None = None,
    without: Mapping[str, tuple[float, float]] | None = None,
    count: int = MOST_REFINED,
) -> RefinedMoments:
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
        feature: (D,) of the query.
        matches: From :func:`~sce_video.find.query.query_index` with this feature.
        network: Of the index.
        centred: As for ``query_index``.
        whitened: Likewise.
        without: By path in the index, start and end of a moment with which no result may share
            frames: that of a query of which ``query_index`` has left out the own rows.
        count: Moments to refine, the first ones; the others keep span and similarity.

    Raises:
        ValueError: The index has no windows, or they end at cuts.
    """
    near = partial(windows_near, network, index.options)
    return refine_by(
        *(index, feature, matches, near),
        centred=centred,
        whitened=whitened,
        without=without,
        count=count,
    )


def refine_by(
    index: VideoIndex,
    feature: np.ndarray,
    matches: Sequence[Match],
    near: EmbedNear,
    *,
    centred: bool = False,
    whitened: bool | None = None,
    without: Mapping[str, tuple[float, float]] | None = None,
    count: int = MOST_REFINED,
) -> RefinedMoments:
    """:func:`refine_moments` with windows that another process may embed.

    Args:
        near: As :func:`windows_near`, without its first two arguments.
    """
    windows = _check_windows(index)
    if whitened is None:
        whitened = index.whitens and not centred

    def compared(features: np.ndarray) -> np.ndarray:
        if whitened:
            return index.whitening(features)
        return features.astype(np.float64) - (index.stored.mean if centred else 0.0)

    mover = _Mover(compared(np.reshape(feature, -1)), compared, near, without or {})
    refined, stay, failures = [], list(matches[count:]), []
    for match in matches[:count]:
        window = None
        try:
            _check_unchanged(index, match)
            window = mover(match, *_span(index, match), windows.step / _PARTS)
        except (VideoDecodeError, OSError) as error:
            failures.append((match.path, str(error)))
        if window is None:
            stay.append(match)
        else:
            refined.append(window)
    refined = _ranked(refined)
    for number, match in enumerate(refined[:MOST_REFINED]):
        assert match.start is not None and match.end is not None
        try:
            again = mover(match, match.start, match.end, windows.step / _PARTS**2)
        except (VideoDecodeError, OSError) as error:
            failures.append((match.path, str(error)))
        else:
            refined[number] = again or match
    return RefinedMoments(_ranked([*refined, *stay]), failures)


@dataclass(frozen=True)
class _Mover:
    """Finds the best window near one.

    Args:
        own: (D,) of the query, as compared.
        compared: From features to what is compared.
        near: As for :func:`refine_by`.
        without: Likewise.
    """

    own: np.ndarray
    compared: Callable[[np.ndarray], np.ndarray]
    near: EmbedNear
    without: Mapping[str, tuple[float, float]]

    def __call__(self, match: Match, start: float, end: float, step: float) -> Match | None:
        """The match with the best window; None where all share frames with the query."""
        found = self.near(match.file, start, end, step)
        similarities = np.array([cosine(self.own, row) for row in self.compared(found.features)])
        if match.path in self.without:
            begin, stop = self.without[match.path]
            similarities[(found.starts < stop) & (found.ends > begin)] = -np.inf
        # Of windows with the same frames the one that moves least.
        best = np.lexsort((np.abs(found.starts - start), -similarities))[0]
        if similarities[best] == -np.inf:
            return None
        start, end = found.spans[best].tolist()
        return replace(match, similarity=float(similarities[best]), start=start, end=end)


def own_moment(
    index: VideoIndex, query: Query, rows: Sequence[int]
) -> dict[str, tuple[float, float]]:
    """``without`` of :func:`refine_moments` for a query, given its rows in the index."""
    if query.start is None or query.end is None:
        return {}  # all of the video has been left out
    paths = index.stored.paths_of(np.array(rows, dtype=np.int64))
    return dict.fromkeys(paths, (query.start, query.end))


def windows_near(
    network: VideoNetwork, options: EmbedOptions, file: str, start: float, end: float, step: float
) -> WindowFeatures:
    """A window of a video, and three at either side, ``step`` seconds apart; inside the video.

    Raises:
        VideoDecodeError: None of them can be decoded.
    """
    with open_patiently(file, options) as reader:
        starts = start + np.arange(1 - _PARTS, _PARTS) * step
        starts = np.unique(np.clip(starts, 0.0, max(0.0, reader.duration - (end - start))))
        spans = np.stack([starts, np.minimum(starts + (end - start), reader.duration)], axis=1)
        return windows_of_reader(network, reader, spans, options)


def _check_windows(index: VideoIndex) -> Windows:
    windows = index.windows
    if windows is None:
        raise ValueError(
            f"the index {index.folder} is one of whole videos: only moments can be refined "
            "(sce-video index --windows 5s)"
        )
    if windows.shots:
        raise ValueError(
            f"the windows of {index.folder} end at cuts, which the index does not hold: their "
            "moments cannot be refined"
        )
    return windows


def _check_unchanged(index: VideoIndex, match: Match) -> None:
    if not is_elsewhere(match.file) and not index.is_unchanged(match.row, match.file):
        raise OSError(f"{match.file} has changed since it was indexed: update the index")


def _span(index: VideoIndex, match: Match) -> tuple[float, float]:
    """The best window of a moment."""
    spans = index.stored.spans_of(np.array([match.row]))
    assert spans is not None
    return float(spans[0, 0]), float(spans[0, 1])


def _ranked(matches: Sequence[Match]) -> list[Match]:
    """By similarity; of two moments that share frames the better one."""
    kept: list[Match] = []
    for match in sorted(matches, key=lambda m: (-m.similarity, m.path, m.start or 0.0)):
        if not any(_overlap(match, better) for better in kept):
            kept.append(match)
    return [replace(match, rank=rank) for rank, match in enumerate(kept, start=1)]


def _overlap(first: Match, second: Match) -> bool:
    if first.path != second.path or None in (first.start, first.end, second.start, second.end):
        return False
    assert first.start is not None and first.end is not None
    assert second.start is not None and second.end is not None
    return first.start < second.end and second.start < first.end
