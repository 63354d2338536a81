"""Small frames of the videos and images that a page shows, each file read once, in limited time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from sce_video.datasets import IMAGE_EXTENSIONS
from sce_video.datasets.decode_limits import MAX_IMAGE_PIXELS, DecodeLimits
from sce_video.datasets.readers.images import read_image
from sce_video.utils.progress import Progress
from sce_video.visualization.gallery import GalleryEntry, read_entry, small_frame

#: Seconds that one file may take.
_FILE_SECONDS = 10.0


class ClipReader:
    """Reads files until a number of seconds has passed since the first one.

    Args:
        seconds: Time for all files together; the others are not read, and say so.
    """

    def __init__(self, seconds: float = 20.0) -> None:
        self.seconds = seconds
        self._end: float | None = None
        self._entries: dict[str, GalleryEntry] = {}

    def read(self, path: str) -> GalleryEntry:
        """Frames of a file; an entry with ``problem`` set if it is gone, broken or too slow."""
        if path not in self._entries:
            self._entries[path] = self._read(path)
        return self._entries[path]

    def read_all(self, paths: Iterable[str]) -> dict[str, GalleryEntry]:
        """The entries of different files by their path, with progress on stderr."""
        paths = dict.fromkeys(paths)
        progress = Progress(len(paths), "reading clips for the page:", unit="files", quiet=True)
        entries = {}
        for path in paths:
            entries[path] = self.read(path)
            progress.advance(bool(entries[path].problem))
        progress.finish()
        return entries

    def _read(self, path: str) -> GalleryEntry:
        now = time.monotonic()
        self._end = self._end or now + self.seconds
        left = self._end - now
        entry = self._read_within(path, min(left, _FILE_SECONDS)) if left > 0 else None
        # A slow file that was cut off by the end is no damaged one.
        late = left < _FILE_SECONDS and time.monotonic() >= self._end
        if entry is None or (entry.problem and late):
            problem = f"skipped, time limit of {self.seconds:g} s for all files of a page"
            return GalleryEntry(path, path, problem=problem, skipped=True)
        return entry

    def _read_within(self, path: str, seconds: float) -> GalleryEntry:
        try:
            if Path(path).suffix.lower() in IMAGE_EXTENSIONS and Path(path).is_file():
                image = small_frame(read_image(path, DecodeLimits(MAX_IMAGE_PIXELS)))
                return GalleryEntry(path, path, frames=[image])
            return read_entry(path, path, num_frames=1, seconds=seconds)
        except Exception as error:  # a damaged file can raise anything: MemoryError, cv2.error
            return GalleryEntry(path, path, problem=f"{type(error).__name__}: {error}")


def clip_frames(entry: GalleryEntry) -> tuple[list, float]:
    """What is played of an entry, and the seconds it lasts; a video of one frame, or image: that.

    Returns:
        Frames (h, w, 3) uint8, at least one unless the entry has a problem; seconds.
    """
    if len(entry.played) > 1:
        return entry.played, min(3.0, entry.duration or 3.0)
    return entry.frames[:1], 0.0
