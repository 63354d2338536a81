"""What a folder of videos holds, from the headers of some of its files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np

from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.video_list import scan_folder

#: Files that are opened, at equal steps over the sorted list.
EXAMINED = 48
_SECONDS_PER_FILE = 10.0


@dataclass(frozen=True)
class FolderFacts:
    """A folder of videos; medians over the files that were opened.

    Attributes:
        folder: Absolute path.
        num_videos: Files below it.
        num_classes: First-level sub-folders with videos.
        num_examined: Files that were opened.
        unreadable: (path, reason) of those that could not be read.
        duration: Seconds.
        height: Pixels as displayed.
        width: Pixels as displayed.
        fps: Frames per second.
        key_distance: Frames from one key frame to the next; decoding a random clip begins at one.
        codec: The most frequent one.
    """

    folder: str
    num_videos: int
    num_classes: int
    num_examined: int
    unreadable: tuple[tuple[str, str], ...]
    duration: float
    height: int
    width: int
    fps: float
    key_distance: float
    codec: str

    @property
    def short_side(self) -> int:
        """The smaller of height and width, pixels."""
        return min(self.height, self.width)

    def describe(self) -> str:
        """One sentence for the user."""
        bad = f", {len(self.unreadable)} of them unreadable" if self.unreadable else ""
        return (
            f"{self.num_videos:,} videos in {self.folder}; median of {self.num_examined} "
            f"examined{bad}: {self.duration:.1f} s, {self.width} x {self.height}, "
            f"{self.fps:.0f} frames/s, {self.codec}, a key frame every {self.key_distance:.0f} "
            "frames"
        )


def examine_folder(folder: str) -> FolderFacts:
    """Count the videos below a folder, and open up to 48 of them.

    Raises:
        ValueError: No such folder, no video in it, or none of the examined files can be read.
    """
    listed = scan_folder(folder)
    chosen = np.unique(np.linspace(0, len(listed) - 1, EXAMINED).round().astype(int))
    rows, codecs, unreadable = [], [], []
    for index in chosen:
        path = os.path.join(folder, listed.path(int(index)))
        try:
            row, codec = _examine(path)
        except VideoDecodeError as error:
            unreadable.append((path, str(error)))
            continue
        rows.append(row)
        codecs.append(codec)
    if not rows:
        raise ValueError(
            f"none of {len(chosen)} examined videos in {folder!r} can be read; "
            f"{unreadable[0][0]}: {unreadable[0][1]}"
        )
    duration, height, width, fps, distance = np.median(rows, axis=0).tolist()
    return FolderFacts(
        folder=os.path.abspath(folder),
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
    )


def _examine(path: str) -> tuple[tuple[float, ...], str]:
    """Duration, height, width, rate and key-frame distance of a file; and its codec."""
    reader = AvReader(path, deadline=time.monotonic() + _SECONDS_PER_FILE)
    try:
        _, codec, _, distance = reader.facts
        rate = len(reader.timestamps) / max(reader.duration, 1e-6)
        return (reader.duration, reader.height, reader.width, rate, distance), codec
    finally:
        reader.close()
