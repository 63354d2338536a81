"""Compares pairs of many videos by their frames, in memory that does not grow with the videos."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from sce_video.curation.matching import (
    MAX_RATE,
    MAX_SECONDS,
    MOST_STARTS,
    READ_SECONDS,
    REFINED,
    SIDE,
    Alignment,
    CopyMatcher,
    Thumbnails,
    read_thumbnail,
    refined,
)
from sce_video.curation.moments import SAME_CHANGES, same_moment
from sce_video.datasets.readers.base import VideoDecodeError
from sce_video.datasets.sources import is_elsewhere
from sce_video.datasets.video_list import video_of
from sce_video.jobs import (
    BatchJob,
    Facts,
    Item,
    ItemError,
    Record,
    RecordStore,
    State,
    Workers,
    file_state,
    is_current,
    run_job,
)
from sce_video.jobs.process_pool import process_items
from sce_video.utils.files import regular_file, remove_unfinished, unfinished_path

#: Thumbnails that are kept for a later run, in the folder of the results.
THUMBNAILS = "thumbnails.sqlite"
_FRAMES = "frames"  # the name of a temporary file
_SIDES = 2**16  # pixels; a frame is smaller
_FRAME_BYTES = 8 + SIDE * SIDE  # its time, and its pixels
_PAIR_SECONDS = 120.0  # time limit for all candidates of one video, or for pairs refined together
_REFINED_AT_ONCE = 32  # pairs


@dataclass(frozen=True)
class StoredThumbnails:
    """Position of one video's thumbnails in a shared file, for a process that reads them."""

    file: str
    offset: int  # bytes: times (T,) float64 begin here, then frames (T, 32, 32) uint8
    length: int  # T
    duration: float  # of the whole video, in seconds
    height: int  # of its frames, in pixels
    width: int
    most: float  # seconds of the video from which frames were read

    def read(self) -> Thumbnails:
        """Read the thumbnails."""
        # Store plain numbers only, because other users may also write to the folder.
        with open(self.file, "rb", buffering=0, opener=regular_file) as file:
            data = os.pread(file.fileno(), self.length * _FRAME_BYTES, self.offset)
        times = np.frombuffer(data, np.float64, self.length)
        frames = np.frombuffer(data, np.uint8, offset=8 * self.length).reshape(-1, SIDE, SIDE)
        return Thumbnails(frames, times, self.duration, self.height, self.width, self.most)


class ThumbnailFile:
    """Thumbnails of many videos in one temporary file in ``folder``.

    If a killed process left such a file in the folder, it is removed.

    Attributes:
        folder: Folder that contains the file.
        places: Position of each video's thumbnails in the file, by the video's number.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)
        remove_unfinished(self.folder, _FRAMES)
        self._path = unfinished_path(self.folder / _FRAMES)
        self._file = open(self._path, "xb", buffering=0)
        self._end = 0
        self.places: dict[int, StoredThumbnails] = {}

    def add(self, number: int, thumbnails: Thumbnails) -> None:
        """Keep the frames of a video."""
        data = thumbnails.times.tobytes() + thumbnails.frames.tobytes()
        os.pwrite(self._file.fileno(), data, self._end)
        self.places[number] = StoredThumbnails(
            file=str(self._path),
            offset=self._end,
            length=len(thumbnails.frames),
            duration=thumbnails.duration,
            height=thumbnails.height,
            width=thumbnails.width,
            most=thumbnails.most,
        )
        self._end += len(data)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class ThumbnailJob(BatchJob):
    """Job that reads the thumbnails of the first ``most`` seconds of videos. Keys are paths."""

    name = "thumbnails"

    def __init__(self, most: float) -> None:
        self.settings = {"format": 1, "side": SIDE, "rate": MAX_RATE, "seconds": most}

    def process(self, item: Item) -> Facts:
        """Return times and frames as data. Raise ItemError if the video cannot be decoded."""
        try:
            found = read_thumbnail(item.key, self.settings["seconds"])
        except VideoDecodeError as error:
            raise ItemError("bad", str(error).removeprefix(f"{item.key}: ")) from error
        facts = {"duration": found.duration, "height": found.height, "width": found.width}
        return Facts(facts, found.times.tobytes() + found.frames.tobytes())

    def source(self, item: Item) -> State:
        """Return size and modification time of the file. Objects and rows are read each time."""
        return {} if is_elsewhere(item.key) else file_state(video_of(item.key)) or {}

    def holds(self, item: Item, record: Record) -> bool:
        """Return whether the record contains undamaged thumbnails of the file."""
        known = record.done and bool(item.source)
        return known and thumbnails_of(record, self.settings["seconds"]) is not None


def thumbnails_of(record: Record, most: float) -> Thumbnails | None:
    """Return the thumbnails in a record; None if sizes or times cannot belong to a video.

    The file of records lies in the results folder, where it may be damaged or untrusted.
    """
    facts, data = record.facts, record.data or b""
    length = len(data) // _FRAME_BYTES
    duration, height, width = (facts.get(name) for name in ("duration", "height", "width"))
    if not isinstance(duration, int | float) or not 0 <= duration < float("inf"):
        return None
    if not isinstance(height, int) or not isinstance(width, int):
        return None
    if (
        not length
        or len(data) % _FRAME_BYTES
        or not 0 < min(height, width) <= max(height, width) < _SIDES
    ):
        return None
    times = np.frombuffer(data, np.float64, length)
    frames = np.frombuffer(data, np.uint8, offset=8 * length).reshape(-1, SIDE, SIDE)
    forward = np.isfinite(times).all() and times[0] == 0 and (np.diff(times) >= 0).all()
    if not forward or (length > 1 and times[-1] == 0):
        return None
    return Thumbnails(frames, times, float(duration), height, width, most)


def read_thumbnails(
    stored: ThumbnailFile,
    files: Sequence[str],
    workers: int,
    on_video: Callable[[str, int, bool], None] | None = None,
    most: float = MAX_SECONDS,
) -> list[tuple[int, str]]:
    """Add the thumbnails of files to ``stored``; return number and reason of each failed file.

    The first ``most`` seconds are read. Thumbnails of files that have not changed since a run in
    the same folder are taken from :data:`THUMBNAILS` there.

    ``workers`` processes read the files, so one of them may hang or crash. With 0, this process
    reads them. After each file, ``on_video`` is called with ``reading frames``, the number of files
    and whether the file failed.
    """
    job = ThumbnailJob(most)
    items = [Item(file, job.source(Item(file, None))) for file in dict.fromkeys(files)]
    numbers: dict[str, list[int]] = {}
    for number, file in enumerate(files):
        numbers.setdefault(file, []).append(number)
    failures = []
    with RecordStore(stored.folder / THUMBNAILS, job.name) as records:
        due = sum(not is_current(job, item, records) for item in items)

        def report(_: Item, record: Record | None) -> None:
            if on_video is not None:
                on_video("reading frames", due, record is None or not record.done)

        run_job(job, items, records, Workers(workers, max(READ_SECONDS, most)), report)
        for item in items:
            record = records.get(item.key)
            assert record is not None
            if not record.done:
                failures += [(number, record.reason) for number in numbers[item.key]]
                continue
            found = thumbnails_of(record, most)
            for number in numbers[item.key]:
                if found is None:
                    failures.append((number, "its frames have no usable times"))
                else:
                    stored.add(number, found)
    return sorted(failures)


def compare_pairs(
    stored: ThumbnailFile,
    pairs: np.ndarray,
    threshold: float,
    workers: int,
    on_step: Callable[[str, int, bool], None] | None = None,
) -> Iterator[tuple[int, int, Alignment]]:
    """Yield the inner and the outer video of similar pairs, and their alignment.

    Each pair is aligned in both directions, which is quick. Only the direction with the higher
    similarity is refined, and only if the pair can reach the threshold. Similar videos in which
    other things change, such as two moments of a fixed camera, are left out.

    Args:
        stored: Thumbnails of all videos.
        pairs: (P, 2) integers, each pair once.
        threshold: Smallest similarity of the pairs that are yielded.
        workers: Number of processes. 0 compares in this process.
        on_step: Called after each group of pairs with ``comparing`` or ``refining``, the total
            number of groups, and False.
    """
    places, step = stored.places, _REFINED_AT_ONCE
    partners: dict[int, list[int]] = {}
    for one, other in sorted(pairs.tolist()):
        partners.setdefault(one, []).append(other)
        partners.setdefault(other, []).append(one)
    items = (
        (outer, (places[outer], [places[inner] for inner in inners]))
        for outer, inners in partners.items()
    )
    # Most pairs are dissimilar in both directions and are dropped. Of two equally good directions,
    # the one into the video of the lower number is kept.
    best: dict[tuple[int, int], tuple[float, int, int, list[Alignment]]] = {}
    for outer, found in computed(align_all, items, workers):
        for inner, starts in zip(partners[outer], found, strict=True):
            if starts:
                pair = (min(inner, outer), max(inner, outer))
                this = (starts[0].similarity, -outer, inner, starts)
                best[pair] = max(best.get(pair, this), this, key=lambda way: way[:2])
        if on_step is not None:
            on_step("comparing", len(partners), False)
    promising = [(-outer, inner, starts) for _, (_, outer, inner, starts) in sorted(best.items())]
    blocks = [promising[i : i + step] for i in range(0, len(promising), step)]
    groups = (
        (number, (threshold, [(places[o], places[i], starts) for o, i, starts in block]))
        for number, block in enumerate(blocks)
    )
    for number, found in computed(refine_all, groups, workers):
        for (outer, inner, _), alignment in zip(blocks[number], found, strict=True):
            if alignment.changes is not None and alignment.changes >= SAME_CHANGES:
                yield inner, outer, alignment
        if on_step is not None:
            on_step("refining", len(blocks), False)


def computed(
    function: Callable[[Any], Any],
    items: Iterable[tuple[int, Any]],
    workers: int,
) -> Iterator[tuple[int, Any]]:
    """Yield the number and the result of each item, in any order.

    Raises:
        RuntimeError: If a process crashes, hangs or raises an error.
    """
    if workers == 0:
        yield from ((number, function(item)) for number, item in items)
        return
    for number, outcome in process_items(
        function,
        items,
        workers=workers,
        timeout=_PAIR_SECONDS,
        preload=(__name__,),
        # There is one process per core, so several threads per process would wait for each other.
        start=partial(threadpool_limits, 1),
    ):
        if outcome.value is None:
            raise RuntimeError(f"the comparison of videos failed: {outcome.detail}")
        yield number, outcome.value


def align_all(item: tuple[StoredThumbnails, list[StoredThumbnails]]) -> list[list[Alignment]]:
    """Align several videos with one. For each, return the alignments to refine, best first."""
    outer, inners = item
    frames = [inner.read().sampled() for inner in inners]
    found = CopyMatcher(outer.read().sampled()).alignments(frames, MOST_STARTS)
    return [[start for start in starts if start.similarity >= REFINED] for starts in found]


def refine_all(
    item: tuple[float, list[tuple[StoredThumbnails, StoredThumbnails, list[Alignment]]]],
) -> list[Alignment]:
    """Refine the alignments of pairs (outer video, inner one, starts).

    Alignments that reach the threshold, the first element of the item, also get the agreement of
    changes.
    """
    threshold, pairs = item
    found = []
    for one, other, starts in pairs:
        outer, inner = one.read(), other.read()
        at = refined(outer, inner, starts, threshold)
        found.append(same_moment(outer, inner, at) if at.similarity >= threshold else at)
    return found
