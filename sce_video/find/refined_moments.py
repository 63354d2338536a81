"""Refinement of moments by windows that start between the windows of the index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sce_video.datasets.sources import is_elsewhere
from sce_video.find.examples import Moments
from sce_video.find.query import Match, QueryFeatures, as_query, cosines
from sce_video.find.store import VideoIndex
from sce_video.options.search import MOST_REFINED

# Import this only to embed windows, because a search for an indexed video needs only NumPy.
if TYPE_CHECKING:
    from sce_video.inference.features import Features
    from sce_video.inference.network_input import VideoNetwork, ViewOptions

#: The first pass divides a stride into this many parts, and the second pass each part again.
_PARTS = 4
#: Function that embeds windows, given a file, the start and end of one of its windows, and a step.
EmbedNear = Callable[[str, float, float, float], "Features"]


def refine_moments(
    index: VideoIndex,
    feature: np.ndarray | QueryFeatures,
    matches: Sequence[Match],
    near: EmbedNear,
    *,
    centred: bool = False,
    whitened: bool | None = None,
    without: Moments | None = None,
    count: int = MOST_REFINED,
) -> tuple[list[Match], list[tuple[str, str]]]:
    """Rank the best moments of a search again by windows that start between the indexed windows.

    If a moment lies between two windows of the index, a window in between shares more frames with
    it, so the right moment may move up in the ranking. The first pass moves the best window of each
    moment by up to three quarters of the stride to either side. The second pass moves the five best
    moments by sixteenths of the stride::

        index          [---------)[---------)[---------)
        moment                [---------)
        first pass         [---------)  ...  and 6 more
        second pass          [---------)  ...  and 6 more

    Args:
        index: Index of windows that were not divided at cuts.
        feature: (D,) feature of the query, or several features with weights.
        matches: Results of :func:`~sce_video.find.query.query_index` for this feature.
        near: Embeds windows with the network of the index: ``partial(windows_near, network,
            index.options)``, or a function that calls it in another process.
        centred: Whether the search subtracted the mean feature.
        whitened: Whether the search whitened the features.
        without: Moments of the query itself. No result may share frames with them.
        count: Number of moments to refine. All others keep their span and similarity.

    Returns:
        The moments, the most similar first, and the path and reason of each moment that could not
        be refined. A refined moment is a single window.

    Raises:
        ValueError: If the index has no windows, or they were divided at cuts.
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
        """Return the match at its best window; None if all windows share frames with the query."""
        start, end = span
        found = near(match.file, start, end, step)
        similarities = cosines(own, compared(found.values))
        for begin, stop in (without or {}).get(match.path, ()):
            similarities[(found.starts < stop) & (found.ends > begin)] = -np.inf
        # If several windows have the same frames, use the one that moves the match least.
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
                raise OSError(f"{match.file} has changed since it was indexed. Update the index")
            # A moment may consist of several windows, so start from the most similar window.
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
    """Return the time in seconds between the starts of consecutive windows in an index."""
    if index.windows is None:
        raise ValueError(
            f"the index {index.folder} contains whole videos, but only moments can be refined. "
            "Build an index of moments with sce-video index --windows 5s"
        )
    if index.windows.shots:
        raise ValueError(
            f"the moments of {index.folder} cannot be refined, because its windows end at cuts, "
            "which the index does not contain"
        )
    return index.windows.step


def windows_near(
    network: VideoNetwork, options: ViewOptions, file: str, start: float, end: float, step: float
) -> Features:
    """Embed a window of a video, and three more on either side at intervals of ``step`` seconds."""
    from sce_video.inference.windows import open_patiently, windows_of_reader

    with open_patiently(file, options) as reader:
        starts = start + np.arange(1 - _PARTS, _PARTS) * step
        starts = np.unique(np.clip(starts, 0.0, max(0.0, reader.duration - (end - start))))
        spans = np.stack([starts, np.minimum(starts + (end - start), reader.duration)], axis=1)
        return windows_of_reader(network, reader, spans, options)


def _by_similarity(matches: Sequence[Match]) -> list[Match]:
    """Sort moments by similarity, and keep only the better of two that share frames."""
    kept: list[Match] = []
    for match in sorted(matches, key=lambda m: (-m.similarity, m.path, m.start or 0.0)):
        a, b = match.span
        if not any(m.path == match.path and a < m.span[1] and m.span[0] < b for m in kept):
            kept.append(match)
    return [replace(match, rank=rank) for rank, match in enumerate(kept, start=1)]
