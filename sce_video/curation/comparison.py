"""Comparison of many pairs of videos by their frames, which are kept in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from sce_video.utils.records import at

#: File in the results folder that keeps thumbnails for later runs.
THUMBNAILS = "thumbnails.sqlite"
#: Name of the temporary file that contains thumbnails.
_FRAMES = "frames"
#: Maximum height and width of a frame in pixels.
_SIDES = 2**16
#: Size in bytes of a thumbnail together with its time.
_FRAME_BYTES = 8 + SIDE * SIDE
#: Placeholder for arrays that are stored in the file.
_NONE = np.empty(0)
#: Time limit in seconds for comparing a video with all of its candidates, or for refining the pairs
#: of a block.
_PAIR_SECONDS = 120.0
#: Number of pairs that are refined together.
_REFINED_AT_ONCE = 32


@dataclass(frozen=True)
class StoredThumbnails:
    """Position of a video's thumbnails in a file, so that another process can read them."""

    file: str
    offset: int  # position in bytes: times (T,) float64, then frames (T, 32, 32) uint8
    length: int  # number T of frames
    video: Thumbnails  # without times and frames

    def read(self) -> Thumbnails:
        """Read the thumbnails."""
        # The file contains only numbers, because other users may be able to write to its folder.
        with open(self.file, "rb", buffering=0, opener=regular_file) as file:
            data = os.pread(file.fileno(), self.length * _FRAME_BYTES, self.offset)
        times = np.frombuffer(data, np.float64, self.length)
        frames = np.frombuffer(data, np.uint8, offset=8 * self.length).reshape(-1, SIDE, SIDE)
        return replace(self.video, frames=frames, times=times)


class ThumbnailFile:
    """Thumbnails of many videos in a temporary file in ``folder``.

    A file that a killed process has left in the folder is removed.

    Attributes:
        folder: Folder that contains the file.
        places: Position of the thumbnails in the file by the number of their video.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)
        remove_unfinished(self.folder, _FRAMES)
        self._path = unfinished_path(self.folder / _FRAMES)
        self._file = open(self._path, "xb", buffering=0)
        self._end = 0
        self.places: dict[int, StoredThumbnails] = {}

    def add(self, number: int, thumbnails: Thumbnails) -> None:
        """Append the thumbnails of a video."""
        data = thumbnails.times.tobytes() + thumbnails.frames.tobytes()
        os.pwrite(self._file.fileno(), data, self._end)
        length, video = len(thumbnails.frames), replace(thumbnails, frames=_NONE, times=_NONE)
        self.places[number] = StoredThumbnails(str(self._path), self._end, length, video)
        self._end += len(data)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class ThumbnailJob(BatchJob):
    """Job that reads thumbnails of the first ``most`` seconds of videos. Keys are paths."""

    name = "thumbnails"

    def __init__(self, most: float) -> None:
        self.settings = {"format": 1, "side": SIDE, "rate": MAX_RATE, "seconds": most}

    def process(self, item: Item) -> Facts:
        """Return times and frames as data; raise ItemError if the video cannot be decoded."""
        try:
            found = read_thumbnail(item.key, self.settings["seconds"])
        except VideoDecodeError as error:
            raise ItemError("bad", str(error).removeprefix(f"{item.key}: ")) from error
        facts = {"duration": found.duration, "height": found.height, "width": found.width}
        return Facts(facts, found.times.tobytes() + found.frames.tobytes())

    def source(self, item: Item) -> State:
        """Return size and modification time of a file; empty for objects and rows of tables."""
        return {} if is_elsewhere(item.key) else file_state(video_of(item.key)) or {}

    def holds(self, item: Item, record: Record) -> bool:
        """Return whether the record contains undamaged thumbnails of the file."""
        known = record.done and bool(item.source)
        return known and thumbnails_of(record, self.settings["seconds"]) is not None


def thumbnails_of(record: Record, most: float) -> Thumbnails | None:
    """Return the thumbnails in a record, which may be untrusted; None if they are not valid."""
    data = record.data or b""
    length, rest = divmod(len(data), _FRAME_BYTES)
    duration = at(record.facts, "duration", int | float)
    height, width = (at(record.facts, name, int) or 0 for name in ("height", "width"))
    if duration is None or not 0 <= duration < float("inf") or not length or rest:
        return None
    if not 0 < min(height, width) <= max(height, width) < _SIDES:
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
    """Add the thumbnails of files to ``stored``.

    Thumbnails of files that have not changed since the last run are taken from
    :data:`THUMBNAILS` in the same folder.

    Args:
        stored: File to which the thumbnails are added.
        files: Paths of the videos.
        workers: Number of processes. With 0, this process reads the files, so it must not crash.
        on_video: Called after each file with ``reading frames``, the number of files to read, and
            whether the file failed.
        most: Number of seconds to read from the beginning of each video.

    Returns:
        Number and reason of each file that cannot be read.
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
    """Yield the inner video, the outer video and their alignment for each pair of copies.

    Each pair is quickly aligned in both directions. Only the better direction is refined, and only
    if the pair may reach the threshold. Similar videos with different changes, such as two
    recordings of a fixed camera, are not copies.

    Args:
        stored: Thumbnails of all videos.
        pairs: (P, 2) integers, each pair once.
        threshold: Smallest similarity of the pairs that are yielded.
        workers: Number of processes. 0 compares in this process.
        on_step: Called after each group of pairs with ``comparing`` or ``refining``, the number of
            groups, and False.
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
    # Most pairs are dissimilar in both directions and are dropped. If both directions are equally
    # good, the outer video is the one with the lower number.
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
    """Apply a function to items in processes, and yield number and result in any order.

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
        # Limit each process to one thread, because there is a process for each core.
        start=partial(threadpool_limits, 1),
    ):
        if outcome.value is None:
            raise RuntimeError(f"videos could not be compared: {outcome.detail}")
        yield number, outcome.value


def align_all(item: tuple[StoredThumbnails, list[StoredThumbnails]]) -> list[list[Alignment]]:
    """Align several videos with one, and return the promising alignments of each, best first."""
    outer, inners = item
    frames = [inner.read().sampled() for inner in inners]
    found = CopyMatcher(outer.read().sampled()).alignments(frames, MOST_STARTS)
    return [[start for start in starts if start.similarity >= REFINED] for starts in found]


def refine_all(
    item: tuple[float, list[tuple[StoredThumbnails, StoredThumbnails, list[Alignment]]]],
) -> list[Alignment]:
    """Refine the alignments of pairs, and compare what changes if they reach the threshold.

    The item contains the threshold, and for each pair the outer video, the inner video and the
    alignments to start from.
    """
    threshold, pairs = item
    found = []
    for one, other, starts in pairs:
        outer, inner = one.read(), other.read()
        at = refined(outer, inner, starts, threshold)
        found.append(same_moment(outer, inner, at) if at.similarity >= threshold else at)
    return found
