"""Facts about a folder or table of videos, from the headers of some of its files or rows."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.base import FrameCountError, VideoDecodeError
from sce_video.datasets.sources import is_table, list_videos, open_video
from sce_video.datasets.tables.row_columns import FrameIndex
from sce_video.datasets.tables.table import is_remote
from sce_video.datasets.tables.table_rows import named_rows
from sce_video.datasets.transforms.lazy_view import is_repeat
from sce_video.datasets.video_list import VideoList, split_segment

#: Number of files or rows to examine. They are evenly spaced in the sorted list.
EXAMINED = 48
#: Share of unreadable files that the folder recipes tolerate
MAX_BAD_SHARE = 0.1
#: Time limit for reading a file, in seconds
_SECONDS_PER_FILE = 10.0
#: Number of videos whose adjacent frames are compared
_COMPARED = 12
#: Number of frames that are compared per video, beginning in its middle
_FRAMES = 17


@dataclass(frozen=True)
class FolderFacts:
    """Facts about a folder or table of videos, as medians over the opened files or rows."""

    folder: str  # absolute path, or the URI of a table
    num_videos: int  # files in the folder and its sub-folders, or rows in the table
    num_classes: int  # first-level sub-folders with videos
    num_examined: int  # files or rows that were opened
    unreadable: tuple[tuple[str, str], ...]  # (path, reason)
    duration: float  # in seconds
    height: int  # in pixels, as displayed
    width: int
    fps: float
    key_distance: float  # frames between key frames, at which decoding can begin
    codec: str  # the most frequent codec
    # Share of frames that repeat the previous frame, measured in the middle of up to 12 videos. It
    # is 0 for a table in an object store, because such a table is not read for this purpose.
    repeats: float = 0.0
    extensions: tuple[str, ...] | None = None  # extensions used for listing the folder

    @property
    def short_side(self) -> int:
        """Smaller of height and width, in pixels."""
        return min(self.height, self.width)

    def check_readable(self) -> FolderFacts:
        """Return these facts, or raise ValueError if unreadable files would end training.

        If only some files were examined, a larger share must be unreadable, to be certain.
        """
        whole = self.num_examined == self.num_videos
        # If a tenth of the folder is unreadable, the chance that more than 12 of the 48 examined
        # files are unreadable is 1 in 1,500.
        if len(self.unreadable) > (1 if whole else 2.5) * MAX_BAD_SHARE * self.num_examined:
            path, reason = self.unreadable[0]
            raise ValueError(
                f"{len(self.unreadable)} of {self.num_examined} examined videos in {self.folder} "
                f"cannot be read, but a training run tolerates only {MAX_BAD_SHARE:.0%}. Find them "
                f"with sce-video verify, and remove them. The first is {path}: {reason}"
            )
        return self

    def describe(self) -> str:
        """Return a sentence about the videos for the user."""
        bad = f", {len(self.unreadable)} of them unreadable" if self.unreadable else ""
        keys = f"a key frame every {self.key_distance:.0f} frames"
        keys = "every frame is a key frame" if self.key_distance < 1.5 else keys
        repeats = f"; {100 * self.repeats:.0f} % of adjacent frames are equal"
        return (
            f"{self.num_videos:,} videos in {self.folder}; median of {self.num_examined} "
            f"examined{bad}: {self.duration:.1f} s, {self.width} x {self.height}, "
            f"{self.fps:.0f} frames/s, {self.codec}, {keys}{repeats * (self.repeats >= 0.005)}"
        )


def examine_folder(
    folder: str, listed: VideoList | None = None, extensions: Sequence[str] | None = None
) -> FolderFacts:
    """Count the videos of a folder or a table, and open up to 48 of them.

    Args:
        folder: Folder or table of videos.
        listed: Videos in the folder to consider; None for all.
        extensions: Extensions by which a folder is listed; None for
            :func:`~sce_video.datasets.sources.listed_extensions`.

    Raises:
        ValueError: If the folder does not exist or contains no video, or none of the examined files
            can be read.
        TableError: If the table cannot be read.
    """
    rows_known = listed is None and is_table(folder)
    listed = list_videos(folder, extensions) if listed is None else listed
    chosen = np.unique(np.linspace(0, len(listed) - 1, EXAMINED).round().astype(int))
    paths = [os.path.join(folder, listed.path(int(index))) for index in chosen]
    rows = _examine_rows(folder, chosen) if rows_known else map(_examine, paths)
    found = dict(zip(paths, rows, strict=True))
    unreadable = [(path, facts) for path, facts in found.items() if isinstance(facts, str)]
    readable = {path: facts for path, facts in found.items() if not isinstance(facts, str)}
    if not readable:
        raise ValueError(
            f"none of the {len(chosen)} examined videos in {folder!r} can be read. The first is "
            f"{unreadable[0][0]}: {unreadable[0][1]}"
        )
    numbers = np.median([facts for facts, _ in readable.values()], axis=0).tolist()
    duration, height, width, fps, distance = numbers
    codecs = [codec for _, codec in readable.values()]
    return FolderFacts(
        folder=folder if is_remote(folder) else os.path.abspath(folder),
        num_videos=len(listed),
        num_classes=len(listed.classes),
        num_examined=len(chosen),
        unreadable=tuple(unreadable),
        duration=duration,
        height=round(height),
        width=round(width),
        fps=fps,
        key_distance=distance,
        codec=max(set(codecs), key=codecs.count),
        repeats=0.0 if is_remote(folder) else _repeated_share(list(readable)),
        extensions=None if extensions is None else tuple(extensions),
    )


def _repeated_share(paths: Sequence[str]) -> float:
    """Return the share of equal adjacent frames in some videos.

    Frames are equal if the frame rate of the footage was raised, or if nothing moves. The RGB
    difference of equal frames would be a uniform image.
    """
    chosen = np.unique(np.linspace(0, len(paths) - 1, _COMPARED).round().astype(int))
    equal = compared = 0
    for path in (paths[index] for index in chosen):
        try:
            with open_video(path, deadline=time.monotonic() + _SECONDS_PER_FILE) as reader:
                count = len(reader.timestamps)
                first = min(count // 2, max(0, count - _FRAMES))
                frames = reader.decode(np.arange(first, min(count, first + _FRAMES)))
                images = [frames[number] for number in range(len(frames))]
        except (VideoDecodeError, FrameCountError):
            continue
        equal += sum(is_repeat(before, image) for before, image in pairwise(images))
        compared += len(images) - 1
    return equal / max(1, compared)


#: Duration, height, width, frame rate, key-frame distance and codec of a video, or the reason why
#: it is unreadable
_Facts = tuple[tuple[float, ...], str] | str


def _examine(path: str) -> _Facts:
    segment = split_segment(path)
    video, start, end = segment or (path, 0.0, math.inf)
    try:
        with closing(AvReader(video, deadline=time.monotonic() + _SECONDS_PER_FILE)) as reader:
            rate = len(reader.timestamps) / max(reader.duration, 1e-6)
            duration = max(0.0, min(end, reader.duration) - start)
            return (duration, *reader.size, rate, reader.key_distance), reader.file.codec.name
    except VideoDecodeError as error:
        return str(error)


def _examine_rows(table: str, samples: np.ndarray) -> Iterator[_Facts]:
    """Yield the facts about some rows of a table, without decoding frames."""
    for index in named_rows(table).frame_indexes(samples):
        if not isinstance(index, FrameIndex):
            yield index
            continue
        frames, size = len(index.pts), (index.parameters.height, index.parameters.width)
        # Rotating the video by 90 degrees for display swaps height and width.
        size = size[::-1] if index.turns % 2 else size
        distance = frames / np.count_nonzero(index.is_key)
        rate = frames / max(index.duration, 1e-6)
        yield (index.duration, *size, rate, distance), index.parameters.codec
