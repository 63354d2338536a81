"""Compares pairs of many videos by their frames; memory does not grow with the videos."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sce_video.data_tools.copies.matching import Alignment, CopyMatcher
from sce_video.data_tools.copies.refinement import MOST_STARTS, REFINED, refined
from sce_video.data_tools.copies.thumbnails import SIDE, Thumbnails, read_thumbnails
from sce_video.jobs.process_pool import process_items

_PAIR_SECONDS = 120.0  # for all candidates of one video


@dataclass(frozen=True)
class ComparedPair:
    """Two videos by their numbers.

    Attributes:
        inner: The one that lies in the other, in time and in the frame.
        outer: The other.
        alignment: Where ``inner`` lies in ``outer``.
    """

    inner: int
    outer: int
    alignment: Alignment


class ThumbnailFile:
    """Thumbnails of many videos in an unnamed temporary file.

    Args:
        folder: On the disk to be used.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self._file = tempfile.TemporaryFile(dir=Path(folder))
        self._places: dict[int, tuple[int, int]] = {}
        self._end = 0
        #: Duration in seconds, height and width of every video.
        self.sizes: dict[int, tuple[float, int, int]] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __getitem__(self, number: int) -> Thumbnails:
        offset, count = self._places[number]
        data = os.pread(self._file.fileno(), count * (8 + SIDE * SIDE), offset)
        times = np.frombuffer(data, np.float64, count)
        frames = np.frombuffer(data, np.uint8, offset=8 * count).reshape(-1, SIDE, SIDE)
        return Thumbnails(frames, times, *self.sizes[number])

    def add(self, number: int, thumbnails: Thumbnails) -> None:
        """Keep the frames of a video."""
        data = thumbnails.times.tobytes() + thumbnails.frames.tobytes()
        os.pwrite(self._file.fileno(), data, self._end)
        self._places[number] = self._end, len(thumbnails.frames)
        self._end += len(data)
        self.sizes[number] = thumbnails.duration, thumbnails.height, thumbnails.width

    def close(self) -> None:
        """Release the space on the disk."""
        self._file.close()


def read_all(
    stored: ThumbnailFile,
    files: Sequence[str],
    numbers: Sequence[int],
    workers: int,
    on_video: Callable[[int, bool], None] | None = None,
) -> list[tuple[int, str]]:
    """Read the thumbnails of some of the files.

    Args:
        stored: They are added to it.
        files: All videos.
        numbers: Of those that are read.
        workers: Processes; 0 for this one.
        on_video: Called after each with the number of all and whether it could not be read.

    Returns:
        Number of and reason for each file that could not be read.
    """
    failures = []
    for i, found, reason in read_thumbnails([files[n] for n in numbers], workers):
        if found is None:
            failures.append((numbers[i], reason))
        else:
            stored.add(numbers[i], found)
        if on_video is not None:
            on_video(len(numbers), found is None)
    return sorted(failures)


def compare_pairs(
    stored: ThumbnailFile,
    pairs: Sequence[tuple[int, int]],
    workers: int,
    on_video: Callable[[int, bool], None] | None = None,
) -> Iterator[ComparedPair]:
    """Compare pairs of videos, each in both directions; the better one is yielded, in any order.

    Args:
        stored: Thumbnails of all of them.
        pairs: Each once.
        workers: Processes; 0 for this one.
        on_video: Called after each group of comparisons with the number of the groups, and False.

    Raises:
        RuntimeError: a comparison failed.
    """
    partners: dict[int, list[int]] = {}
    for a, b in pairs:
        partners.setdefault(a, []).append(b)
        partners.setdefault(b, []).append(a)
    items = (
        (outer, (stored[outer], [stored[inner] for inner in inners]))
        for outer, inners in partners.items()
    )
    half: dict[tuple[int, int], ComparedPair] = {}
    for outer, found in _aligned(items, workers):
        for inner, alignment in zip(partners[outer], found, strict=True):
            pair = ComparedPair(inner, outer, alignment)
            other = half.pop((min(inner, outer), max(inner, outer)), None)
            if other is None:
                half[min(inner, outer), max(inner, outer)] = pair
            else:
                yield max(pair, other, key=lambda p: (p.alignment.similarity, -p.outer))
        if on_video is not None:
            on_video(len(partners), False)


_Item = tuple[int, tuple[Thumbnails, list[Thumbnails]]]


def _aligned(items: Iterator[_Item], workers: int) -> Iterator[tuple[int, list[Alignment]]]:
    if workers == 0:
        for outer, item in items:
            yield outer, align_all(item)
        return
    for outer, outcome in process_items(
        align_all, items, workers=workers, timeout=_PAIR_SECONDS, preload=(__name__,)
    ):
        if outcome.value is None:
            raise RuntimeError(f"the comparison of frames failed: {outcome.detail}")
        yield outer, outcome.value


def align_all(item: tuple[Thumbnails, list[Thumbnails]]) -> list[Alignment]:
    """Where each of some videos lies best in one."""
    outer, inners = item
    matcher = CopyMatcher(outer.sampled())
    found = []
    for inner in inners:
        starts = matcher.alignments(inner.sampled(), MOST_STARTS)
        promising = [start for start in starts if start.similarity >= REFINED]
        found.append(refined(outer, inner, promising) if promising else starts[0])
    return found
