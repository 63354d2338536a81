"""Finds copies that were edited more than near-duplicates, by frame votes, then alignment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from sce_video.curation.comparison import StoredThumbnails, ThumbnailFile, computed
from sce_video.curation.copy_alignment import DECISION, EditedCopy, verified
from sce_video.curation.copy_views import Views, changes, rectangles, without_borders
from sce_video.curation.copy_votes import Hypothesis, hypotheses
from sce_video.options.find import PARTS

#: Seconds of a video that are read with ``late``.
LATE_SECONDS = 3600.0
#: Smallest similarity of a copy. Videos that are not copies stay below it in two generated sets
#: (docs/curate.md).
COPY_SIMILARITY = 0.85


def _guesses(
    stored: ThumbnailFile,
    numbers: Sequence[int],
    prepared: ThumbnailFile,
    edits: Collection[str],
    most: int,
) -> dict[int, list[Hypothesis]]:
    """Return each video's hypotheses with the most votes, by the lower of their two videos.

    ``prepared`` gets the videos without borders and their changes, one after the other.
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
    """Return the copies among stored videos in their order, and only the best one of two videos.

    Searched parts need 9 KB of memory per second of video, a fifth of it without ``parts``. Until
    the end of the search, a second file next to the file of ``stored`` needs twice as much space.

    Args:
        stored: Thumbnails of the videos.
        edits: Kinds of copies to search, from ``EDITS``.
        most: Maximum number of hypotheses per video that are compared.
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
    """Hypotheses on pairs that share one video, which are compared by one process.

    Attributes:
        edits: Kinds of copies to search, from ``EDITS``.
        guesses: Hypotheses to compare.
        places: Positions of each video's thumbnails and changes in their file, by its number.
    """

    edits: Collection[str]
    guesses: list[Hypothesis]
    places: dict[int, tuple[StoredThumbnails, StoredThumbnails]]

    def read(self, number: int) -> Views:
        """Read a video and its changes."""
        plain, changed = self.places[number]
        return Views(plain.read(), changed.read())


def verify_all(item: _Guesses) -> list[EditedCopy]:
    """Return each pair's best copy among hypotheses on pairs that share one video.

    The hypothesis with the most votes is tried first. The others are left out once it is certain.
    """
    pairs: dict[tuple[int, int], list[Hypothesis]] = {}
    for guess in sorted(item.guesses, key=lambda guess: -guess.votes):
        pair = min(guess.inner, guess.outer), max(guess.inner, guess.outer)
        pairs.setdefault(pair, []).append(guess)
    found: list[EditedCopy] = []
    lower = min(number for pair in pairs for number in pair)
    videos = {lower: item.read(lower)}
    for (_, other), some in pairs.items():
        # Only two videos are in memory at a time, because they may be long.
        videos = {lower: videos[lower], other: item.read(other)}
        copies: list[EditedCopy] = []
        for guess in some:
            copy = verified(videos[guess.outer], videos[guess.inner], guess, item.edits)
            copies += [copy] if copy is not None else []
            if copies and copies[-1].alignment.similarity >= DECISION.certain:
                break
        found += sorted(copies, key=lambda copy: -copy.alignment.similarity)[:1]
    return found
