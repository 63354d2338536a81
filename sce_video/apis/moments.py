"""Moments of videos: results that are merged windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace


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
                start=min(each.start or 0.0 for each in [*joined, window]),
                end=max(each.end or 0.0 for each in [*joined, window]),
            )
    return moments


def _touch(first: Match, second: Match) -> bool:
    """Whether two windows are of one video and overlap, or one begins where the other ends."""
    if first.path != second.path or None in (first.start, first.end, second.start, second.end):
        return False
    assert first.start is not None and first.end is not None
    assert second.start is not None and second.end is not None
    return first.start <= second.end and second.start <= first.end
