"""Search for copies that were edited more than near-duplicates.

Each video is prepared in two views: without borders, and reduced to what changes. In both views,
single frames vote for hypotheses (:mod:`~sce_video.curation.copy_votes`), which alignment confirms
or rejects (:mod:`~sce_video.curation.copy_alignment`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from sce_video.curation.comparison import StoredThumbnails, ThumbnailFile, computed
from sce_video.curation.copy_alignment import DECISION, EditedCopy, Views, verified
from sce_video.curation.copy_votes import Hypothesis, hypotheses
from sce_video.curation.matching import FLAT, SIDE, Part, Thumbnails, cut_part
from sce_video.options.find import PARTS

# Settings are defined just before the step that uses them. Unless another reason is given, we chose
# them by hand on the development sets of benchmarks/copy_queries.py (docs/curate.md).

#: Number of seconds to read from each video if ``late`` is requested.
LATE_SECONDS = 3600.0
#: Minimum similarity of a copy. In two generated sets, all videos that are not copies stay below it
#: (docs/curate.md).
COPY_SIMILARITY = 0.85


def without_borders(video: Thumbnails) -> Thumbnails:
    """Cut off borders that always have one grey level.

    The rest is resized to 32 x 32 pixels again, so that a moved or letterboxed copy shows only a
    part of its original. At least a third of each side remains. A video without borders, or with
    only one grey level, is returned unchanged.
    """
    frames = video.frames[:: max(1, len(video.frames) // 64)].astype(np.float32)
    spread = frames.std(axis=0)
    box = []
    for axis in (0, 1):  # rows, then columns
        # Borders do not change over time, and are flat along their direction.
        still = (spread.mean(axis=1 - axis) < 1.5) & (frames.mean(axis=0).std(axis=1 - axis) < FLAT)
        filled = np.flatnonzero(~still)
        low, high = (filled[0], filled[-1] + 1) if len(filled) else (0, SIDE)
        if high - low < SIDE // 3:
            low, high = 0, SIDE
        box.append((int(low), int(high)))
    if box == [(0, SIDE), (0, SIDE)]:
        return video
    (top, low), (left, right) = box
    part = left / SIDE, top / SIDE, (right - left) / SIDE, (low - top) / SIDE
    return replace(video, frames=cut_part(video.frames, part, SIDE).round().astype(np.uint8))


#: Number of seconds before and after a frame over which the mean is computed.
_AROUND = 1.0
#: Factor by which the difference from the mean is multiplied, so that small changes survive
#: rounding to bytes.
_GAIN = 3.0
#: Number of frames to process together, because the sums for an hour would take gigabytes.
_CHANGED_AT_ONCE = 1024


def changes(video: Thumbnails) -> Thumbnails:
    """Return what changes in a video: 128 + 3 (frame - mean over two seconds).

    Text, pictures and backgrounds that do not move vanish.
    """
    firsts = np.searchsorted(video.times, video.times - _AROUND)
    lasts = np.searchsorted(video.times, video.times + _AROUND, "right")
    found = np.empty_like(video.frames)
    for begin in range(0, len(found), _CHANGED_AT_ONCE):
        rows = slice(begin, begin + _CHANGED_AT_ONCE)
        first, last = firsts[rows] - firsts[begin], lasts[rows] - firsts[begin]
        near = video.frames[firsts[begin] : lasts[rows][-1]]
        total = np.zeros((len(near) + 1, SIDE, SIDE), dtype=np.int32)
        total[1:] = near
        for row in range(1, len(near)):  # np.cumsum over this axis takes 16 times as long
            total[row + 1] += total[row]
        mean = np.subtract(total[last], total[first], dtype=np.float32)
        mean *= (-_GAIN / (last - first)).astype(np.float32)[:, None, None]
        mean += video.frames[rows] * np.float32(_GAIN) + 128.5  # 0.5 makes the conversion round
        found[rows] = mean.clip(0, 255)
    return replace(video, frames=found)


@dataclass(frozen=True)
class _RectangleSettings:
    """Settings for finding rectangles with fixed edges in thumbnails of 32 x 32 pixels."""

    #: Maximum number of rectangles per video. Each one adds a part to search in every frame.
    most: int = 4
    #: Minimum side in pixels, almost a third of the frame.
    smallest: int = 10
    #: Minimum score of a rectangle, which is the mean over its sides plus its weakest side.
    least_score: float = 0.4
    #: Maximum score of a pixel. It keeps a short but strong piece from counting as a whole side.
    most_of_a_pixel: float = 0.7
    #: Number of frames, at equal steps, over which edges are averaged.
    frames: int = 40


_RECTANGLES = _RectangleSettings()


def rectangles(video: Thumbnails) -> list[Part]:
    """Find up to four rectangles that may show another video, the best first.

    The sides of a rectangle are edges that do not move. At an edge, the difference of neighbouring
    pixels, averaged over time, is larger than two pixels away. The score of a rectangle is the mean
    over its sides plus the weakest side. Sides at the border of the frame are ignored.
    """
    frames = video.frames[:: max(1, len(video.frames) // _RECTANGLES.frames)].astype(np.float32)
    spans = _spans()
    low, high = spans.T
    lengths = (high - low).astype(np.float32)[:, None]
    sums, worst = [], []
    bound = _RECTANGLES.most_of_a_pixel
    for axis in (2, 1):  # edges between columns, then between rows
        step = np.abs(np.diff(frames, axis=axis)).mean(axis=0)
        step = step if axis == 2 else step.T  # (along the edge, edges)
        wide = np.pad(step, ((0, 0), (2, 2)), mode="edge")
        edge = (step - (wide[:, :-4] + wide[:, 4:]) / 2) / (step.mean() + 2)
        # The frame's own borders do not count as edges, so pad them with zeros.
        total = np.cumsum(np.pad(edge.clip(-bound, bound), ((1, 0), (1, 1))), axis=0)
        mean = (total[high] - total[low]) / lengths
        sums.append(mean[:, low] + mean[:, high])
        mean[:, [0, SIDE]] = np.inf
        worst.append(np.minimum(mean[:, low], mean[:, high]))
    # Compute the scores for each span of rows and each span of columns.
    inside = (low > 0).astype(np.float32) + (high < SIDE)
    sides = inside[:, None] + inside
    score = (sums[0] + sums[1].T) / np.maximum(sides, 1)
    score += np.minimum(worst[0], worst[1].T)
    score[sides < 2] = -1.0
    found: list[Part] = []
    for _ in range(_RECTANGLES.most):
        row, column = divmod(int(score.argmax()), len(spans))
        if score[row, column] < _RECTANGLES.least_score:
            break
        (top, end), (left, right) = spans[row].tolist(), spans[column].tolist()
        found.append((left / SIDE, top / SIDE, (right - left) / SIDE, (end - top) / SIDE))
        near = [np.abs(spans - spans[n]).max(axis=1) <= 1 for n in (row, column)]
        score[np.ix_(*near)] = -1.0
    return found


@cache
def _spans() -> np.ndarray:
    """Return begin and end (n, 2) of every interval of pixels that a rectangle may cover."""
    ends = [(a, b) for a in range(SIDE) for b in range(a + _RECTANGLES.smallest, SIDE + 1)]
    return np.array(ends)


def _guesses(
    stored: ThumbnailFile,
    numbers: Sequence[int],
    prepared: ThumbnailFile,
    edits: Collection[str],
    most: int,
) -> dict[int, list[Hypothesis]]:
    """Return the hypotheses with the most votes for each video, by the lower of the two videos.

    The two views of each video are added to ``prepared``.
    """
    inside = []
    for row, number in enumerate(numbers):
        video = without_borders(stored.places[number].read())
        inside.append(rectangles(video) if PARTS in edits else [])
        for view, frames in enumerate((video, changes(video))):
            prepared.add(2 * row + view, frames)
    of_video: dict[int, list[Hypothesis]] = {}
    for view in (0, 1):
        videos = ((prepared.places[2 * n + view].read(), parts) for n, parts in enumerate(inside))
        for guess in hypotheses(videos, edits, most):
            of_video.setdefault(guess.inner, []).append(guess)
    guesses: dict[int, list[Hypothesis]] = {}
    for some in of_video.values():
        for guess in sorted(some, key=lambda guess: -guess.votes)[:most]:
            guesses.setdefault(min(guess.outer, guess.inner), []).append(guess)
    return guesses


def edited_copies(
    stored: ThumbnailFile,
    edits: Collection[str],
    most: int,
    workers: int,
    on_step: Callable[[str, int, bool], None] | None = None,
    least: float = COPY_SIMILARITY,
) -> list[EditedCopy]:
    """Find the copies among stored videos, and return the best copy of each pair in their order.

    Each second of video needs 9 KB of memory, or a fifth of that without ``parts``. During the
    search, a second file in the folder of ``stored`` needs twice as much space as the first.

    Args:
        stored: Thumbnails of the videos.
        edits: Kinds of copies to search, from ``EDITS``.
        most: Largest number of hypotheses that are compared for each video.
        workers: Number of processes. 0 compares in this process.
        on_step: Called with ``comparing copies``, the number of videos and False after each video.
        least: Smallest similarity that makes a video a copy.
    """
    numbers = sorted(stored.places)
    copies: list[EditedCopy] = []
    with closing(ThumbnailFile(stored.folder)) as prepared:
        guesses = _guesses(stored, numbers, prepared, edits, most)
        places = prepared.places
        rows = {low: {n for g in some for n in (g.outer, g.inner)} for low, some in guesses.items()}
        items = (
            (low, _Guesses(edits, some, {n: (places[2 * n], places[2 * n + 1]) for n in rows[low]}))
            for low, some in guesses.items()
        )
        for _, found in computed(verify_all, items, workers):
            copies += [copy for copy in found if copy.alignment.similarity >= least]
            if on_step is not None:
                on_step("comparing copies", len(guesses), False)
    ordered = sorted(copies, key=lambda c: (min(c.inner, c.outer), max(c.inner, c.outer)))
    return [replace(c, inner=numbers[c.inner], outer=numbers[c.outer]) for c in ordered]


@dataclass(frozen=True)
class _Guesses:
    """Hypotheses about one video and several others, which a process compares.

    Attributes:
        edits: Kinds of copies to search, from ``EDITS``.
        guesses: Hypotheses to compare.
        places: Positions of the two views of each video in the file, by the video's number.
    """

    edits: Collection[str]
    guesses: list[Hypothesis]
    places: dict[int, tuple[StoredThumbnails, StoredThumbnails]]

    def read(self, number: int) -> Views:
        """Read the two views of a video."""
        plain, changed = self.places[number]
        return Views(plain.read(), changed.read())


def verify_all(item: _Guesses) -> list[EditedCopy]:
    """Return the best copy of each pair of videos in an item.

    The hypotheses of a pair are tried in the order of their votes, until a copy is certain.
    """
    pairs: dict[tuple[int, int], list[Hypothesis]] = {}
    for guess in sorted(item.guesses, key=lambda guess: -guess.votes):
        pair = min(guess.inner, guess.outer), max(guess.inner, guess.outer)
        pairs.setdefault(pair, []).append(guess)
    found: list[EditedCopy] = []
    lower = min(number for pair in pairs for number in pair)
    videos = {lower: item.read(lower)}
    for (_, other), some in pairs.items():
        # Keep only two videos in memory at a time, because they may be long.
        videos = {lower: videos[lower], other: item.read(other)}
        copies: list[EditedCopy] = []
        for guess in some:
            copy = verified(videos[guess.outer], videos[guess.inner], guess, item.edits)
            copies += [copy] if copy is not None else []
            if copies and copies[-1].alignment.similarity >= DECISION.certain:
                break
        found += sorted(copies, key=lambda copy: -copy.alignment.similarity)[:1]
    return found
